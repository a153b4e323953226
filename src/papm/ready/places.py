"""Where ready models are."""

from __future__ import annotations

import difflib
import functools
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from papm.errors import CheckpointError
from papm.ready.card import Card
from papm.untrusted import read_header

GROUP = "papm.models"
OWN = Path(__file__).parent
SUFFIX = ".safetensors"

# Models of packages of ours that may not be installed, and what they count.
ELSEWHERE: Mapping[str, str] = {"crowd": "people in photographs of crowds", "vehicles": "cars seen from above"}
PACKAGE = "papm-models"


@dataclass(frozen=True)
class Ready:
    """A model that is here, by name."""

    name: str
    path: Path

    @property
    def bytes(self) -> int:
        """Size of the file."""
        return self.path.stat().st_size

    @functools.cached_property
    def card(self) -> Card:
        """What the model says about itself; CheckpointError where its file cannot be read."""
        try:
            return Card.parse(read_header(self.path).get("card", ""))
        except ValueError as error:
            raise CheckpointError(f"{self.path}: not a readable model: {error}; install its package again") from None


def known() -> dict[str, Path]:
    """Every ready model of papm and of installed packages that say they have one, with the file where it should be."""
    found = {file.stem: file for file in sorted(OWN.glob(f"*{SUFFIX}"))}
    for point in sorted(entry_points(group=GROUP)):
        if (file := _file_of(point)) is not None:
            found.setdefault(point.name, file)
    return found


def _file_of(point: EntryPoint) -> Path | None:
    """The file that an entry point names; None where its package is not here."""
    package, _, file = point.value.partition(":")
    first, *inner = package.strip().split(".")  # to find a package inside another would run the outer one
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError, AttributeError):
        return None
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(folders[0], *inner) / (file.strip() or f"{point.name}{SUFFIX}") if folders else None


def find(name: str) -> Ready:
    """The ready model of that name; where there is none, an error that says what to install or names the nearest."""
    files = known()
    if name in files and files[name].is_file():
        return Ready(name, files[name])
    if name in missing():
        raise CheckpointError(f"{name}: {missing()[name]}")
    names = sorted({*files, *ELSEWHERE})
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'? Ready" if near else "ready"
    raise CheckpointError(
        f"{name}: no such checkpoint file or run folder, and no ready model of that name; {hint}: {', '.join(names)}"
    )


def missing() -> dict[str, str]:
    """Ready models that one may know of and that are not here, with what to do about it."""
    files = known()
    absent = [name for name in (*ELSEWHERE, *files) if not (name in files and files[name].is_file())]
    return {name: _remedy(name, name in files) for name in dict.fromkeys(absent)}


def _remedy(name: str, installed: bool) -> str:
    if installed:
        return f"a ready model whose package is installed without its file; a later release of {PACKAGE} brings it"
    return f"a ready model of the package {PACKAGE}, which is not installed; pip install packages/{PACKAGE} in papm's sources"


def shipped(path: Path) -> str:
    """The name of the ready model that a file is; nothing where it is the user's own."""
    return next((name for name, file in known().items() if file.resolve() == path.resolve()), "")
