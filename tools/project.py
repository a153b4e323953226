"""What pyproject.toml, constraints.txt and requirements.lock say about packages, for the other tools and for tests."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


def requirements(extras: Iterable[str] = (), root: Path = ROOT) -> list[Requirement]:
    """The dependencies of papm, and those of extras with the extras that they name."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines, waiting, seen = list(project["dependencies"]), list(extras), set()
    while waiting:
        extra = waiting.pop(0)
        if extra in seen:
            continue
        seen.add(extra)
        for line in project["optional-dependencies"][extra]:
            needed = Requirement(line)
            if canonicalize_name(needed.name) == project["name"]:
                waiting += sorted(needed.extras)
            else:
                lines.append(line)
    return [Requirement(line) for line in lines]


def bounds(extras: Iterable[str] = (), root: Path = ROOT) -> dict[str, SpecifierSet]:
    """What each package may be, all that is said about it taken together."""
    found: dict[str, SpecifierSet] = {}
    for needed in requirements(extras, root):
        name = canonicalize_name(needed.name)
        found[name] = found.get(name, SpecifierSet()) & needed.specifier
    return found


def every_extra(root: Path = ROOT) -> list[str]:
    """The names of all extras."""
    return list(
        tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )


def pins(path: Path) -> dict[str, str]:
    """Package and version of every line `name==version` of constraints.txt or requirements.lock."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^\s#\\;]+)", path.read_text(encoding="utf-8"), flags=re.M)
    return {canonicalize_name(name): version for name, version in lines}
