"""Do the bounds of pyproject.toml hold? The fast tests with the lowest and with the newest versions that they admit.

    python tools/bounds.py lowest
    python tools/bounds.py newest --python python3.12
    python tools/bounds.py lowest --torch 2.6.0 tests/losses tests/models

torch stays as constraints.txt pins it, in both: other releases on PyPI bring gigabytes of CUDA packages. So the bounds of torch
itself are not tested unless --torch names another one. Packages that only other packages ask for are as new as pip finds
them. Further words go to pytest. What was tested is written in docs/guide/install.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from environments import Environment
from project import ROOT, bounds, pins, requirements

EXTRAS = "train,report,serve,video,export,ray,openvino,bench"  # not docs and dev: tools, whose tests skip here
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "httpx2", "openpyxl")  # the tests' own, as pinned
OLDER_CLIENT = "httpx>=0.27,<0.29"  # the test client of starlette before 1.2 knows no httpx2


def lowest(allowed: SpecifierSet) -> str:
    """The lowest version that a specifier admits, as it is named there.

    >>> lowest(SpecifierSet(">=2.6.4,<2.7")), lowest(SpecifierSet(">=1.26"))
    ('2.6.4', '1.26')
    """
    named = [part.version for part in allowed if part.operator == ">="]
    if not named:
        raise ValueError(f"{allowed}: names no lowest version")
    return max(named, key=Version)


def wanted(which: str, torch: str, extras: list[str]) -> list[str]:
    """What pip is asked for."""
    pinned, allowed = pins(ROOT / "constraints.txt"), bounds(extras)
    parts = {canonicalize_name(r.name): f"[{','.join(sorted(r.extras))}]" for r in requirements(extras) if r.extras}
    asked = [f"torch=={torch}", OLDER_CLIENT, *(f"{name}=={pinned[name]}" for name in TOOLS)]
    for name, versions in allowed.items():
        if name != "torch":
            version = f"=={lowest(versions)}" if which == "lowest" else str(versions)
            asked.append(f"{name}{parts.get(name, '')}{version}")
    return asked


def main() -> None:
    """Install and test."""
    parser = argparse.ArgumentParser(description="Test the bounds of pyproject.toml.")
    parser.add_argument("which", choices=("lowest", "newest"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torch", default=pins(ROOT / "constraints.txt")["torch"], help="the torch to test with")
    parser.add_argument("--extras", default=EXTRAS, help="extras whose bounds are tested too")
    parser.add_argument("--workers", default="2", help="processes of pytest")
    given, more = parser.parse_known_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # a process a core, one thread each
    with tempfile.TemporaryDirectory() as place:
        made = Environment(Path(place) / "bounds", given.python)
        made.install(*wanted(given.which, given.torch, given.extras.split(",")))
        made.run("-m", "pip", "check")
        listed = json.loads(made.run("-m", "pip", "list", "--format", "json", "--disable-pip-version-check"))
        print("\n".join(f"{p['name']} {p['version']}" for p in listed), flush=True)
        path = next(made.folder.glob("lib/python*/site-packages")) / "papm-source.pth"
        path.write_text(f"{ROOT / 'src'}\n", encoding="utf-8")
        options = ["-p", "no:cacheprovider", "-n", given.workers, "--dist", "worksteal", "--disable-warnings"]
        print(made.run("-m", "pytest", *options, *(more or ["-m", "not slow"]), cwd=ROOT, timeout=3600)[-2000:])


if __name__ == "__main__":
    main()
