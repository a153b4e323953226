"""`papm doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def add(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """Say what this machine offers and whether anything is missing.

    Example: papm doctor
    """
    import shutil

    import torch

    from papm.cli import ui
    from papm.engine.run_folder import environment

    facts = environment()
    cache = Path(os.environ.get("PAPM_CACHE", "~/.cache/papm")).expanduser()
    base = next(p for p in (cache, *cache.parents) if p.exists())
    facts["threads"] = torch.get_num_threads()
    facts["cache"] = str(cache)
    facts["cache_free_gb"] = round(shutil.disk_usage(base).free / 1e9, 1)
    facts["cache_writable"] = os.access(base, os.W_OK)
    for module, gives in (("cv2", "video"), ("triton", "fast transport on a GPU"), ("onnx", "export")):
        from importlib.util import find_spec

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
    rows = [[k, "none" if v == [] else str(v)] for k, v in facts.items()]
    ui.table(["what", "found"], rows + [[k, v] for k, v in packages.items()])
    for p in problems:
        ui.note(f"papm: {p}")
