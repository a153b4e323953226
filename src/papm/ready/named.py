"""Which file a user means who names a model: a checkpoint, a run folder or a ready model."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from papm.errors import CheckpointError
from papm.ready import places

log = logging.getLogger(__name__)


def resolve(model: str | os.PathLike[str]) -> Path:
    """The checkpoint a user means: a file, or a run folder's best.ckpt, else its last.ckpt; else a ready model of that name.

    What is typed decides: `cells` may be a name, also beside a folder of images that is called so, and `./cells` is a path. A
    `Path` has lost its `./`. A run whose training left no checkpoint is refused in either way.
    """
    typed = os.fspath(model)
    path, word = Path(typed).expanduser(), _is_name(typed)
    named = word and typed in {*places.known(), *places.missing()}
    found = run_checkpoint(path) if path.is_dir() else path if path.exists() else None
    if found is None and word and (not path.exists() or (named and not _is_run(path))):
        return places.find(typed).path
    if path.is_dir() and found is None:
        raise CheckpointError(f"{typed}: this folder holds neither best.ckpt nor last.ckpt")
    if found is None and _is_name(str(path)):  # ./cells: what is handed on from here is read as a name
        raise CheckpointError(f"{typed}: no such checkpoint file or run folder")
    if found is not None and (path / "config.yaml").is_file() and not (path / "result.json").is_file():
        log.warning("%s: this run has not ended; %s is used", path, found.name)
    if named:
        log.warning(
            "%s: the %s here is used, not the ready model of that name", path, "folder" if path.is_dir() else "file"
        )
    return found or path


def _is_name(typed: str) -> bool:
    """Whether what was given for a model may be a name: one word, without an ending.

    >>> _is_name("crowd"), _is_name("./crowd"), _is_name("runs/crowd"), _is_name("crowd.ckpt")
    (True, False, False, False)
    """
    return re.fullmatch(r"\w[\w-]*", typed) is not None


def _is_run(folder: Path) -> bool:
    """Whether a training wrote into a folder."""
    return any((folder / name).is_file() for name in ("config.yaml", "metrics.csv"))


def run_checkpoint(folder: Path) -> Path | None:
    """The best.ckpt of a run folder, else its last.ckpt; None where it has neither."""
    return next((f for name in ("best.ckpt", "last.ckpt") if (f := folder / name).is_file()), None)
