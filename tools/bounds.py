"""Do the bounds of pyproject.toml hold? The fast tests with the lowest and with the newest versions that they admit.

    python tools/bounds.py lowest                     # torch as pinned: lower ones have no CPU build on PyPI
    python tools/bounds.py newest --python python3.12
    python tools/bounds.py lowest --torch 2.6.0 tests/losses tests/models

Further words go to pytest. What was tested is written beside the bounds in docs/guide/install.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from packaging.version import Version

from environments import Environment
from project import ROOT, bounds, pins

TOOLS = ("pytest", "hypothesis")  # the tests' own, as pinned


def lowest(allowed: object) -> str:
    """The lowest release that a specifier admits; of two numbers, the newest patch of that series.

    >>> lowest(">=2.6.4,<2.7"), lowest(">=1.11")
    ('2.6.4', '1.11.*')
    """
    named = [word.removeprefix(">=") for word in str(allowed).split(",") if word.startswith(">=")]
    if not named:
        raise ValueError(f"{allowed}: names no lowest version")
    found = str(max(named, key=Version))
    return found if found.count(".") > 1 else f"{found}.*"


def wanted(which: str, torch: str, extras: list[str]) -> list[str]:
    """What pip is asked for."""
    pinned, asked = pins(ROOT / "constraints.txt"), [f"torch=={torch}"]
    asked += [f"{name}=={pinned[name]}" for name in TOOLS]
    for name, allowed in bounds(extras).items():
        if name != "torch":
            asked.append(f"{name}=={lowest(allowed)}" if which == "lowest" else f"{name}{allowed}")
    return asked


def main() -> None:
    """Install and test."""
    parser = argparse.ArgumentParser(description="Test the bounds of pyproject.toml.")
    parser.add_argument("which", choices=("lowest", "newest"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--torch", default=pins(ROOT / "constraints.txt")["torch"], help="the torch to test with")
    parser.add_argument("--extras", default="train,report,video", help="extras whose bounds are tested too")
    given, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as place:
        made = Environment(Path(place) / "bounds", given.python)
        made.install("--upgrade", *wanted(given.which, given.torch, given.extras.split(",")))
        listed = json.loads(made.run("-m", "pip", "list", "--format", "json", "--disable-pip-version-check"))
        print("\n".join(f"{p['name']} {p['version']}" for p in listed), flush=True)
        path = next(made.folder.glob("lib/python*/site-packages")) / "papm-source.pth"
        path.write_text(f"{ROOT / 'src'}\n", encoding="utf-8")
        tests = more or ["-m", "not slow"]
        print(made.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=ROOT, timeout=3600)[-2000:])


if __name__ == "__main__":
    main()
