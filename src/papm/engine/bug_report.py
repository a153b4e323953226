"""What a bug report needs to say about a machine, as Markdown, and nothing that is private.

Only known facts go in: versions, processor, devices, compiled loops, extras. From their values, user and host names, home
folders and other paths are taken out. Of the environment only names of papm's own variables are told, never values.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from papm.extras import EXTRAS

CORE = ("torch", "numpy", "scipy", "pillow", "safetensors", "pyyaml", "typer", "click", "rich", "filelock")
TOLD = ("papm", "revision", "python", "platform", "hardware", "cuda", "threads", "cache_free_gb", "cache_writable")
# From a root (/, ~, C:\, \\server, file:) to the next space, bracket or quote; not the slash of `and/or`, nor of an address.
_PATH = re.compile(r"(?<![\w/:.])(?:~?/|[A-Za-z]:[\\/]|\\\\|file:/)[^\s'\"<>|),;]*[\w.-]")


def bug_report(facts: Mapping[str, Any]) -> str:
    """The facts of `papm doctor` as a Markdown block for an issue."""
    told = {k: facts.get(k) for k in TOLD} | {"processor": processor(), "variables set": variables()}
    loops = {"C": facts.get("c_loops", {}), "CUDA": facts.get("cuda_kernels", {})}
    told |= {f"compiled {kind}, {what}": built for kind, each in loops.items() for what, built in each.items()}
    told["core"] = ", ".join(f"{name} {version(name)}" for name in CORE)
    for extra, packages in EXTRAS.items():
        told[f"extra {extra}"] = ", ".join(f"{name} {version(name)}" for name in packages.values())
    told["problems"] = "; ".join(facts.get("problems", ())) or "none"
    secrets = names()
    rows = [f"| {key} | {_cell(redacted(_word(value), secrets))} |" for key, value in told.items()]
    return "\n".join(["### papm doctor", "", "| what | found |", "|---|---|", *rows])


def version(package: str) -> str:
    """The version of an installed package, or that it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def processor() -> str:
    """The name of the CPU, as its maker calls it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^model name\s*:\s*(.+)$", text, flags=re.M):
            return found[1]
    except OSError:
        pass
    return platform.processor() or platform.machine()


def variables() -> str:
    """Names of papm's variables that are set."""
    return ", ".join(sorted(k for k in os.environ if k.startswith("PAPM_"))) or "none"


def names() -> list[str]:
    """Names of the user and of the machine, the longest first."""
    found = {os.environ.get(k, "") for k in ("USER", "LOGNAME", "USERNAME", "HOSTNAME", "COMPUTERNAME")}
    found |= {platform.node(), platform.node().partition(".")[0], Path.home().name}
    with contextlib.suppress(KeyError, OSError, ImportError):  # a user without a name, as in some containers
        found.add(getpass.getuser())
    return sorted((n for n in found if len(n) > 1 and n != "root"), key=len, reverse=True)


def redacted(text: str, secrets: list[str]) -> str:
    """Text without paths and without these names.

    >>> redacted("less than 1 GB is free in /home/eve/.cache; ask eve at lab-7", ["lab-7", "eve"])
    'less than 1 GB is free in <path>; ask <name> at <name>'
    >>> redacted(r"C:\\Users\\eve\\x and ~/y and/or https://pypi.org", [])
    '<path> and <path> and/or https://pypi.org'
    """
    text = _PATH.sub("<path>", text)
    for name in secrets:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "<name>", text, flags=re.I)
    return text


def _word(value: object) -> str:
    return {True: "yes", False: "no", None: "no"}[value] if value is None or isinstance(value, bool) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
