"""The folder of a training run: what was asked, on what machine, what came out.

config.yaml  environment.json  used_images.csv  metrics.csv  tensorboard/  last.ckpt  best.ckpt  result.json  predictions.csv
report.html
"""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from papm import config as configuration
from papm.config import TrainConfig
from papm.data.splits import Splits
from papm.engine import used_images
from papm.engine.resumed import ADAPTED, check_same
from papm.engine.resumed import stored_config as stored_config
from papm.errors import ConfigError
from papm.files import write_json, write_text
from papm.text import n_of
from papm.version import __version__

log = logging.getLogger(__name__)

MARKS = ("config.yaml", "last.ckpt", "best.ckpt", "metrics.csv")
# What a run writes, in the order in which it can be taken back: with config.yaml alone a run can still be resumed.
RESULTS = ("result.json", "predictions.csv")
FILES = (
    *RESULTS, "metrics.csv", "last.ckpt", "best.ckpt", "environment.json", used_images.NAME,
    "config.yaml",
)  # fmt: skip


def check(folder: Path, config: TrainConfig, resume: bool, splits: Splits | None = None) -> None:
    """Refuse a folder that holds something else, or a run that was not asked to go on, or cannot."""
    check_place(folder, resume)
    if resume:
        require_same(folder, config, splits)
        for draft in folder.glob(".*.tmp"):  # of a checkpoint that a killed process was writing
            draft.unlink(missing_ok=True)


def check_place(folder: Path, resume: bool) -> None:
    """What can be refused before anything is known of the data."""
    if _used(folder) and not resume:
        raise ConfigError(f"{folder}: this folder holds a run already; go on with --resume, or choose another --out")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file, not a folder")
    if not resume and (own := next((n for n in RESULTS if (folder / n).exists()), None)):
        raise ConfigError(f"{folder / own}: is not of a run, which would write over it; choose another --out")
    if resume and not (folder / "config.yaml").exists():
        raise ConfigError(f"{folder}: there is no run to resume here (no config.yaml)")


def require_same(folder: Path, config: TrainConfig, splits: Splits | None = None) -> None:
    """Refuse to go on with what is no run, or with other settings or images than its own."""
    check_place(folder, resume=True)
    check_same(folder, config)
    if splits is not None:
        used_images.require_same(folder, splits)


def _used(folder: Path) -> bool:
    return folder.exists() and any((folder / name).exists() for name in MARKS)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other trainings out of a folder until this one ends, also where it is killed: a lock goes with its process.

    Where there are no locks (a disk that is full or read-only, some network drives) it goes without.
    """
    made = [p for p in (folder, *folder.parents) if not p.exists()]
    lock = FileLock(folder / ".lock", blocking=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise ConfigError(
            f"{folder}: another training writes here; wait until it ends, or choose another --out"
        ) from None
    except OSError:
        pass
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a folder that was made read-only, or replaced by a file
            if lock.is_locked:
                Path(lock.lock_file).unlink()
        with contextlib.suppress(OSError):
            lock.release()
        for new in made:
            with contextlib.suppress(OSError):  # not empty, or not there
                new.rmdir()


def discard(folder: Path, before: Collection[str]) -> None:
    """Take back what a run that never saved itself has written: the folder is free for another try.

    `before` are the names that were in the folder when the run began: they are somebody else's.
    """
    if "tensorboard" not in before:
        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    for name in FILES:
        if name not in before:
            (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty, or not there
        folder.rmdir()


def create(
    folder: Path,
    config: TrainConfig,
    asked: TrainConfig | None = None,
    splits: Splits | None = None,
    weights_sha256: str | None = None,
    precision: str | None = None,
) -> None:
    """A new run: its images, its configuration, which may be another than what was `asked` for, and environment, with the
    weights file that its trunk starts from and the precision of its steps; nothing of an attempt that came before.
    """
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        for draft in folder.glob(f".{name}.*.tmp"):  # of a process that was killed while it wrote
            draft.unlink(missing_ok=True)
    if splits is not None:  # before config.yaml, which makes the folder one that can be resumed
        used_images.write(folder, used_images.used(splits))
    write_text(folder / "config.yaml", configuration.to_yaml(config))
    wanted = {} if asked is None else {k: v for k in ADAPTED if (v := getattr(asked, k)) != getattr(config, k)}
    more = {"weights_sha256": weights_sha256, "precision": precision, **({"asked": wanted} if wanted else {})}
    write_json(folder / "environment.json", environment() | more)


def revision() -> str:
    """The git revision of the source tree, with a plus sign when it has uncommitted changes; of a tree without git, as in a
    container, PAPM_REVISION; else the version.
    """
    here = Path(__file__).resolve().parent
    told = os.environ.get("PAPM_REVISION", "")
    without_git = told if re.fullmatch(r"[\w.+-]{1,40}", told) else __version__
    try:
        top = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=5)
        if top.returncode:
            return without_git
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True, timeout=5
        )
        return top.stdout.strip()[:12] + ("+" if dirty.stdout.strip() else "")
    except (OSError, subprocess.SubprocessError):
        return without_git


def hardware(device: torch.device | None = None) -> str:
    """The machine in words: the device that does the work, by default the fastest there is."""
    if torch.cuda.is_available() and (device is None or device.type == "cuda"):
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {n_of(torch.get_num_threads(), 'thread')}"


def environment() -> dict[str, Any]:
    """What a result depends on besides the configuration."""
    from importlib import metadata

    packages = ("torch", "lightning", "torchmetrics", "numpy", "scipy", "pillow", "triton")
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "papm": __version__,
        "revision": revision(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "hardware": hardware(),
        "cuda": torch.version.cuda,
        "packages": versions,
    }


class MetricsFile:
    """metrics.csv: appended row by row, so that resuming adds to it; columns are fixed by the first row's superset."""

    COLUMNS = ("step", "seconds", "loss", "count_error", "lr", "mae", "rmse", "nae", "bias", "terms")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._said = False

    def append(self, row: Mapping[str, Any]) -> None:
        """One row; values outside the columns go to `terms` as key=value."""
        before = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("a", newline="", encoding="utf-8") as stream:
                stream.write(self._text([row], header=not before))
        except OSError as error:  # a full disk: the row is lost, the run is not
            with contextlib.suppress(OSError):
                os.truncate(self.path, before)  # no half of a row
            if not self._said:
                log.warning("%s: rows are lost (%s)", self.path, error.strerror)
            self._said = True

    def truncate_after(self, step: int) -> None:
        """Forget rows beyond a step: what a killed run wrote after its last checkpoint will be written again."""
        if not self.path.exists():
            return
        rows = [r for r in read_metrics(self.path) if r["step"] <= step]
        write_text(self.path, self._text([{**r, **r.pop("terms")} for r in rows], header=True))

    def _text(self, rows: Iterable[Mapping[str, Any]], header: bool) -> str:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, self.COLUMNS, lineterminator="\n")
        if header:
            writer.writeheader()
        for row in rows:
            known = {k: _cell(row[k]) for k in self.COLUMNS if k in row}
            known["terms"] = " ".join(f"{k}={_cell(v)}" for k, v in row.items() if k not in self.COLUMNS)
            writer.writerow(known)
        return buffer.getvalue()


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """metrics.csv as rows of numbers; `terms` is a dictionary."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]  # a killed process may have left its last line unfinished
    for raw in csv.DictReader(io.StringIO(whole)):
        row: dict[str, Any] = {k: float(v) for k, v in raw.items() if k != "terms" and v}
        pairs = (t.partition("=") for t in (raw.get("terms") or "").split())
        row["terms"] = {k: float(v) for k, _, v in pairs}
        if "step" in row:
            row["step"] = int(row["step"])
            rows.append(row)
    return rows
