"""Are any of the packages that papm names, pins or finds known to be bad? Without the network, from tools/known_bad.toml.

python tools/audit.py             # pins, the lock, the bounds of pyproject.toml
python tools/audit.py --installed # and what is installed here
python tools/audit.py --online    # and pip-audit, which asks the advisory database (pip install pip-audit)
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from project import ROOT, bounds, every_extra, pins


@dataclass(frozen=True)
class Bad:
    """Releases of a package that must not be installed."""

    package: str
    versions: SpecifierSet
    why: str
    example: str = ""


def known() -> list[Bad]:
    """The list of the repository."""
    path = Path(__file__).with_name("known_bad.toml")
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["bad"]
    return [Bad(**{**entry, "versions": SpecifierSet(entry["versions"])}) for entry in entries]


def bad_pins(where: str, found: Mapping[str, str], bad: Iterable[Bad]) -> list[str]:
    """Pins that are bad, in words."""
    return [
        f"{where}: {b.package} {found[b.package]} is bad: {b.why}"
        for b in bad
        if b.package in found and b.versions.contains(found[b.package], prereleases=True)
    ]


def lax_bounds(allowed: Mapping[str, SpecifierSet], bad: Iterable[Bad]) -> list[str]:
    """Bounds that admit a bad release, in words."""
    return [
        f"pyproject.toml: {b.package}{allowed[b.package]} admits {b.example}: {b.why}"
        for b in bad
        if b.example and b.package in allowed and allowed[b.package].contains(b.example)
    ]


def installed() -> dict[str, str]:
    """Every package of this environment; what an installation that was stopped left behind has no name."""
    return {canonicalize_name(name): d.version for d in metadata.distributions() if (name := d.metadata["Name"])}


def complaints(root: Path = ROOT, here: bool = False) -> list[str]:
    """All that is wrong; nothing where no bad release can come in."""
    bad, found = known(), []
    for name in ("constraints.txt", "requirements.lock"):
        if (root / name).exists():
            found += bad_pins(name, pins(root / name), bad)
    found += lax_bounds(bounds(every_extra(root), root), bad)
    return found + (bad_pins("installed", installed(), bad) if here else [])


def online() -> int:
    """What pip-audit says of the lock; 0 where it finds nothing."""
    if importlib.util.find_spec("pip_audit") is None:
        raise SystemExit("pip-audit is not installed: pip install pip-audit")
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--disable-pip",
        "--require-hashes",
        "-r",
        str(ROOT / "requirements.lock"),
    ]
    return subprocess.run(command, check=False).returncode


def main() -> None:
    """Say what is bad; exit code 1 where something is."""
    parser = argparse.ArgumentParser(description="Look for releases that are known to be bad.")
    parser.add_argument("--installed", action="store_true", help="also what is installed here")
    parser.add_argument("--online", action="store_true", help="also pip-audit, which needs the network")
    given = parser.parse_args()
    if found := complaints(here=given.installed):
        raise SystemExit("\n".join(found))
    print(f"none of {len(known())} known bad releases is admitted, pinned or locked")
    sys.exit(online() if given.online else 0)


if __name__ == "__main__":
    main()
