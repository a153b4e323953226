"""Where datasets are: as given, else by looking into the folders that the variable PAPM_DATA names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from papm.data import base
from papm.errors import DataError
from papm.study.cells import Study
from papm.study.run import Request


def found_in(roots: str | None, studies: Sequence[Study], given: Mapping[str, str]) -> dict[str, str]:
    """Dataset → folder: what is given, and for the other datasets of the studies the first folder that holds one.

    `roots` are folders separated as in PATH; each is looked at itself, then the folders in it, the one of the dataset's
    name first.
    """
    folders = [Path(r).expanduser() for r in (roots or "").split(os.pathsep) if r]
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"PAPM_DATA: {folder}: no such folder")
    wanted = [d for d in dict.fromkeys(d for s in studies for d in s.datasets) if d not in given]
    found = {d: next(_places(d, folders), None) for d in wanted if base.reader(d).make is None}
    return {**{d: str(p) for d, p in found.items() if p is not None}, **given}


def _places(dataset: str, folders: Sequence[Path]) -> Iterator[Path]:
    reader = base.reader(dataset)
    for folder in folders:
        inner = sorted((p for p in folder.iterdir() if p.is_dir()), key=lambda p: (p.name.lower() != dataset, p.name))
        yield from (p for p in (folder, *inner) if reader.recognise(p))


def lacking(studies: Sequence[Study], request: Request) -> list[str]:
    """Datasets of the cells asked for that cannot be read, for want of a folder."""
    cells = (c for s in studies for c, _ in s.wanted(request.tiers, request.seeds))
    asked = dict.fromkeys(str(c.settings["dataset"]) for c in cells)
    return [d for d in asked if d not in request.data and base.reader(d).make is None]
