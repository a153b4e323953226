"""`papm doctor`."""

from __future__ import annotations

import os
import shutil
from typing import Annotated, Any

from typer import Option

from papm.cli import ui
from papm.cli.options import Json
from papm.errors import ConfigError
from papm.extras import EXTRAS, missing

WORDS = {
    "cuda": "CUDA of torch",
    "threads": "threads of torch",
    "cache_free_gb": "free in the cache, GB",
    "cache_writable": "the cache can be written to",
}


def doctor(
    report: Annotated[bool, Option("--report", help="As Markdown for a bug report, without names and paths.")] = False,
    json: Json = False,
) -> None:
    """Say what this machine offers and whether anything is missing.

    Examples:

    papm doctor

    papm doctor --report
    """
    if report and json:
        raise ConfigError("--report is Markdown and --json is JSON; choose one")
    facts = _facts()
    problems = facts["problems"] = _problems(facts)
    if report:
        from papm.engine.bug_report import bug_report

        ui.say(bug_report(facts))
        return
    if json:
        ui.print_json(facts)
        return
    packages = facts.pop("packages")
    facts |= {f"papm[{extra}]": _without(absent) for extra, absent in facts.pop("extras").items()}
    loops = {"C": facts.pop("c_loops"), "CUDA": facts.pop("cuda_kernels")}
    facts |= {f"compiled {kind}: {what}": built for kind, each in loops.items() for what, built in each.items()}
    rows = [[WORDS.get(k, k), _shown(v)] for k, v in facts.items() if k != "problems"]
    rows += [[k, v] for k, v in packages.items()] + [["problems", str(len(problems)) if problems else "none"]]
    ui.table(["what", "found"], rows)
    for p in problems:
        ui.note(f"papm: {p}")


def _facts() -> dict[str, Any]:
    import torch

    from papm.engine.fast_paths import c_paths, cuda_paths
    from papm.engine.run_folder import environment
    from papm.files import cache_root

    facts, cache = environment(), cache_root()
    base = next(p for p in (cache, *cache.parents) if p.exists())
    facts["threads"] = torch.get_num_threads()
    facts["cache"] = str(cache)
    facts["cache_free_gb"] = round(shutil.disk_usage(base).free / 1e9, 1)
    facts["cache_writable"] = os.access(base, os.W_OK)
    facts["extras"] = {extra: missing(extra) for extra in EXTRAS}
    with ui.err.status("building what is compiled at first use"):
        facts["c_loops"], facts["cuda_kernels"] = c_paths(), cuda_paths()
    return facts


def _problems(facts: dict[str, Any]) -> list[str]:
    import torch

    problems, cache = [], facts["cache"]
    if facts["cache_free_gb"] < 1:
        problems.append(f"less than 1 GB is free in {cache}; set PAPM_CACHE to a larger place")
    if not facts["cache_writable"]:
        problems.append(f"{cache} cannot be written to; set PAPM_CACHE to a folder that can")
    if torch.version.cuda and not torch.cuda.is_available():
        problems.append("this torch was built for CUDA but sees no GPU; training will run on the CPU")
    off = os.environ.get("PAPM_NATIVE", "1") == "0"
    if not off and (slow := [k for k, built in facts["c_loops"].items() if not built]):
        problems.append(f"no C loop for {', '.join(slow)}, which run slower: install a C compiler, or set CC to one")
    if slow := [k for k, built in facts["cuda_kernels"].items() if not built]:
        problems.append(f"no CUDA kernel for {', '.join(slow)}, which run slower; a warning above says why")
    return problems


def _without(packages: list[str]) -> str:
    return f"without {', '.join(packages)}" if packages else "yes"


def _shown(value: object) -> str:
    """A fact in words.

    >>> _shown(True), _shown(None), _shown(67.9)
    ('yes', 'no', '67.9')
    """
    return {True: "yes", False: "no", None: "no"}[value] if value is None or isinstance(value, bool) else str(value)
