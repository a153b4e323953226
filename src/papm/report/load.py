"""What a run folder holds, read for a report; a folder that is no run or a file that is damaged is one clear sentence."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papm import config as configuration
from papm.engine.run_folder import read_metrics
from papm.errors import PapmError
from papm.files import read_object, unguarded


@dataclass(frozen=True)
class Counted:
    """One line of predictions.csv."""

    image: str
    predicted: float
    truth: float

    @property
    def error(self) -> float:
        """Predicted less true: positive where too many were counted."""
        return self.predicted - self.truth


@dataclass(frozen=True)
class Run:
    """A run folder in memory. `result` is None when the run has not finished."""

    folder: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    result: dict[str, Any] | None
    counted: list[Counted]
    examples: list[Path]


def read_run(folder: Path) -> Run:
    """Everything a report needs from the folder of a run."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "there is no such folder"
        raise PapmError(f"{folder}: {what}; give the folder of a run, the --out of papm train")
    if not (folder / "config.yaml").is_file():
        raise PapmError(f"{folder}: this is no run, it holds no config.yaml; give the --out of papm train")
    return Run(
        folder=folder,
        config=configuration.load(folder / "config.yaml"),
        environment=_read_json(folder / "environment.json") or {},
        metrics=read_curves(folder),
        result=_read_json(folder / "result.json"),
        counted=read_counted(folder / "predictions.csv"),
        examples=sorted((folder / "examples").glob("*.png")),
    )


def read_curves(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.csv, in order; none when there is no such file."""
    path = folder / "metrics.csv"
    try:
        return sorted(read_metrics(path), key=lambda row: int(row["step"]))
    except (ValueError, TypeError, csv.Error) as error:  # a torn or edited line; also text that is no UTF-8
        raise PapmError(f"{path}: a line cannot be read ({error}); remove it, or remove the file") from None
    except OSError as error:
        raise PapmError(f"{path}: cannot be read ({error.strerror})") from None


def read_counted(path: Path) -> list[Counted]:
    """The images of predictions.csv, the worst first; none when there is no such file."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as stream:
            reader = csv.DictReader(stream)
            counted = [
                Counted(unguarded(str(row["image"])), float(row["predicted"]), float(row["truth"])) for row in reader
            ]
    except (KeyError, TypeError, ValueError):
        expected = "expected image,predicted,truth with two numbers; mend or remove it"
        raise PapmError(f"{path}, line {reader.line_num}: {expected}") from None
    except csv.Error as error:
        raise PapmError(f"{path}: is no CSV file ({error}); remove it") from None
    except OSError as error:
        raise PapmError(f"{path}: cannot be read ({error.strerror})") from None
    # A prediction that is not a number is worse than any error.
    return sorted(counted, key=lambda c: -abs(c.error) if math.isfinite(c.error) else -math.inf)


def number(values: Mapping[str, Any] | None, key: str) -> float | None:
    """A figure of a result, or None where it is missing or not a finite number."""
    value = (values or {}).get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def interval(result: Mapping[str, Any] | None, key: str) -> tuple[float, float] | None:
    """The 95 % interval of a figure, or None."""
    every = (result or {}).get("intervals")
    pair = every.get(key) if isinstance(every, Mapping) else None
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        return None
    low, high = (number({"v": v}, "v") for v in pair)
    return None if low is None or high is None else (low, high)


def curve(rows: list[dict[str, Any]], key: str, over: str = "step") -> tuple[list[float], list[float]]:
    """(x, y) of one column of metrics.csv where it has a value; names that are no column are looked up in the terms."""
    pairs = [(r[over], r.get(key, r["terms"].get(key))) for r in rows if over in r]
    kept = [(float(x), float(y)) for x, y in pairs if y is not None]
    return [x for x, _ in kept], [y for _, y in kept]


def _read_json(path: Path) -> dict[str, Any] | None:
    return read_object(path, "restore or remove it") if path.exists() else None
