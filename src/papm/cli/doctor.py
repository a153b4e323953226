"""`papm doctor`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

WORDS = {
    "cuda": "CUDA of torch",
    "threads": "threads of torch",
    "cache_free_gb": "free in the cache, GB",
    "cache_writable": "the cache can be written to",
}


def add(app: typer.Typer) -> None:
    app.command("doctor", short_help="Say what this machine offers.")(doctor)


def doctor(json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """Say what this machine offers and whether anything is missing.

    Example: papm doctor
    """
    import shutil
    from importlib.util import find_spec

    import torch

    from papm.cli import ui
    from papm.engine.run_folder import environment
    from papm.files import cache_root

    facts = environment()
    cache = cache_root()
    base = next(p for p in (cache, *cache.parents) if p.exists())
    facts["threads"] = torch.get_num_threads()
    facts["cache"] = str(cache)
    facts["cache_free_gb"] = round(shutil.disk_usage(base).free / 1e9, 1)
    facts["cache_writable"] = os.access(base, os.W_OK)
    for module, gives in (
        ("triton", "fast transport on a GPU"),
        ("onnx", "papm export"),
        ("onnxruntime", "its check"),
        ("cv2", "videos"),
    ):
        facts[f"{module} ({gives})"] = find_spec(module) is not None
    problems = []
    if facts["cache_free_gb"] < 1:
        problems.append(f"less than 1 GB is free in {cache}; set PAPM_CACHE to a larger place")
    if not facts["cache_writable"]:
        problems.append(f"{cache} cannot be written to; set PAPM_CACHE to a folder that can")
    if torch.version.cuda and not torch.cuda.is_available():
        problems.append("this torch was built for CUDA but sees no GPU; training will run on the CPU")
    facts["problems"] = problems
    if json:
        ui.print_json(facts)
        return
    packages = facts.pop("packages")
    rows = [[WORDS.get(k, k), _shown(v)] for k, v in facts.items() if k != "problems"]
    rows += [[k, v] for k, v in packages.items()] + [["problems", str(len(problems)) if problems else "none"]]
    ui.table(["what", "found"], rows)
    for p in problems:
        ui.note(f"papm: {p}")


def _shown(value: object) -> str:
    """A fact in words.

    >>> _shown(True), _shown(None), _shown(67.9)
    ('yes', 'no', '67.9')
    """
    return {True: "yes", False: "no", None: "no"}[value] if value is None or isinstance(value, bool) else str(value)
