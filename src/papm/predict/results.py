"""Result files of predictions: counts.csv, points.csv, results.json, and the density maps as .npy.

Every file is written beside its place and renamed, so a reader never meets half a file. Counts and scores are rounded to
four decimals, coordinates to two. Text is UTF-8; names with commas, quotes or line breaks are quoted as CSV readers expect, and
those that a spreadsheet would take for a formula begin with an apostrophe.
"""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from papm.errors import DataError
from papm.files import guarded, replacing
from papm.predict.prediction import Prediction

COUNTS, POINTS, RESULTS, DENSITY = "counts.csv", "points.csv", "results.json", "density"


def write_results(
    predictions: Sequence[Prediction],
    folder: str | Path,
    *,
    classes: Sequence[str] | None = None,
    density: bool = False,
) -> list[Path]:
    """Write counts.csv, points.csv, results.json and, when asked, density/*.npy into `folder`; return the files.

    The three tables belong together: where one of them cannot be written, none is replaced. `classes` names the classes where
    there are several; otherwise the predictions do, or they are numbered.
    """
    folder = Path(folder)
    classes = classes or next((p.classes for p in predictions if p.classes), None)
    with _together(folder) as drafts:
        write_counts(predictions, drafts / COUNTS, classes=classes)
        write_points(predictions, drafts / POINTS)
        write_json(predictions, drafts / RESULTS, classes=classes)
    files = [folder / name for name in (COUNTS, POINTS, RESULTS)]
    return files + (write_densities(predictions, folder / DENSITY) if density else [])


def summary(prediction: Prediction) -> dict[str, Any]:
    """The count as plain values: of classes and models too, where there are several, and what makes it doubtful."""
    apart, names = prediction.class_counts, prediction.classes
    found: dict[str, Any] = {"count": round(prediction.count, 3)}
    if apart:
        found["classes"] = {k: round(v, 3) for k, v in zip(names or map(str, range(len(apart))), apart)}
    if prediction.models:
        each = zip(prediction.models, prediction.by_model, strict=True)
        found["models"] = {k: round(v, 3) for k, v in each}
    if prediction.scale != 1:
        found["scale"] = round(prediction.scale, 4)
    return found | ({"warning": prediction.warning} if prediction.warning else {})


def write_counts(predictions: Sequence[Prediction], path: str | Path, *, classes: Sequence[str] | None = None) -> Path:
    """One line per image: image, count, a column per class where there are several (`classes` names them), and one per model,
    `by_NAME`, where several counted.
    """
    names, rows = _columns(predictions, classes)
    return _write_csv(path, ["image", *names], [[p.name, *row] for p, row in zip(predictions, rows)])


def write_frames(frames: Sequence[tuple[int, float]], predictions: Sequence[Prediction], path: str | Path) -> Path:
    """One line a frame of a video: its number, its seconds, and what `write_counts` says of an image."""
    names, rows = _columns(predictions, next((p.classes for p in predictions if p.classes), None))
    lines = [[str(n), round(seconds, 3), *row] for (n, seconds), row in zip(frames, rows, strict=True)]
    return _write_csv(path, ["frame", "seconds", *names], lines)


def _columns(predictions: Sequence[Prediction], classes: Sequence[str] | None) -> tuple[list[str], list[list[float]]]:
    """Names and cells of what was counted: in all, of each class, by each model."""
    apart = [p.class_counts for p in predictions]
    number = max(map(len, apart), default=0)
    if classes is not None and len(classes) < number:
        raise DataError(f"{len(classes)} class names for {number} classes: name every class")
    names = ["count", *(f"count_{classes[k] if classes is not None else k}" for k in range(number))]
    names += [f"by_{model}" for model in next((p.models for p in predictions if p.models), ())]
    cells = [[p.count, *each, *[0.0] * (number - len(each)), *p.by_model] for p, each in zip(predictions, apart)]
    return names, [[_decimals(value) for value in row] for row in cells]


def write_points(predictions: Sequence[Prediction], path: str | Path) -> Path:
    """One line per point: image, x, y, score, label; score and label are empty where the prediction has none."""
    rows = [
        [p.name, x, y, "" if score is None else score, "" if label is None else label]
        for p in predictions
        for x, y, score, label in _points(p)
    ]
    return _write_csv(path, ["image", "x", "y", "score", "label"], rows)


def write_json(predictions: Sequence[Prediction], path: str | Path, *, classes: Sequence[str] | None = None) -> Path:
    """A list of objects: image, count, width, height, points as [{x, y, score, label}], classes and models where
    there are several.

    Also `scale` where the image was resized before counting, and `warning` where that makes the count doubtful. What a
    prediction lacks is left out; a count that is not finite is null.
    """
    with atomic(path, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        # backslashreplace writes the surrogates of an undecodable file name as \udcXX, which JSON reads back
        json.dump([_object(p, classes) for p in predictions], file, ensure_ascii=False, allow_nan=False, indent=1)
        file.write("\n")
    return Path(path)


def write_densities(predictions: Sequence[Prediction], folder: str | Path) -> list[Path]:
    """One float32 .npy [C, h, w] for each prediction that has a density map, named after its image."""
    held = [
        (p, name) for p, name in zip(predictions, file_names([p.name for p in predictions])) if p.density is not None
    ]
    files = []
    for prediction, name in held:
        files.append(write_density(prediction, Path(folder) / f"{name}.npy"))
    return files


def write_density(prediction: Prediction, path: str | Path) -> Path:
    """The map of a prediction as float32 .npy [C, h, w]."""
    if prediction.density is None:
        raise DataError(f"{path}: this prediction has points and no density map; save it as .csv or .json")
    with atomic(path, "wb") as file:
        np.save(file, prediction.density.detach().cpu().float().numpy(), allow_pickle=False)
    return Path(path)


def image_names(paths: Sequence[Path]) -> list[str]:
    """A name for each image file: its own, and before it as many of its folders as tell it from the others of that name.

    >>> image_names([Path("a/x.jpg"), Path("b/x.jpg"), Path("b/y.jpg")])
    ['a/x.jpg', 'b/x.jpg', 'y.jpg']
    """
    parts = [p.parts for p in paths]
    depth = [1] * len(paths)
    while True:
        names = [Path(*part[-d:]).as_posix() for part, d in zip(parts, depth)]
        counts = Counter(names)
        short = [k for k, name in enumerate(names) if counts[name] > 1 and depth[k] < len(parts[k])]
        if not short:
            return names
        for k in short:
            depth[k] += 1


def file_names(names: Sequence[str]) -> list[str]:
    """A file name without suffix for each image name: no folders, nothing a file system refuses, no two alike.

    >>> file_names(["a/b.jpg", "a_b.png", "a/c:d.jpg", "..", ""])
    ['a_b', 'a_b-2', 'a_c_d', 'image', 'image-2']
    """
    taken: set[str] = set()
    result = []
    for name in names:
        head, dot, tail = name.rpartition(".")
        stem = head if dot and head and "/" not in tail and "\\" not in tail else name
        safe = re.sub(r'[\x00-\x1f<>:"/\\|?*\ud800-\udfff]+', "_", stem).strip("._ ")
        # 255 bytes is the longest name of common file systems; this leaves room for a number and a suffix
        safe = safe.encode()[:200].decode(errors="ignore") or "image"
        unique, number = safe, 1
        while unique.casefold() in taken:
            number += 1
            unique = f"{safe}-{number}"
        taken.add(unique.casefold())
        result.append(unique)
    return result


@contextmanager
def atomic(path: str | Path, mode: str, **options: Any) -> Iterator[IO[Any]]:
    """Open a file for writing that takes the place of `path` only when everything was written; folders are made."""
    try:
        with replacing(Path(path), mode, **options) as file:
            yield file
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror or error})") from error


@contextmanager
def _together(folder: Path) -> Iterator[Path]:
    """A folder whose files take their places in `folder` when all of them were written, else none does."""
    drafts = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drafts = Path(tempfile.mkdtemp(dir=folder, prefix=".", suffix=".tmp"))
        yield drafts
        for draft in drafts.iterdir():
            draft.replace(folder / draft.name)
    except DataError as error:
        raise DataError(str(error).replace(str(drafts), str(folder))) from error
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error.strerror or error})") from error
    finally:
        if drafts != folder:
            shutil.rmtree(drafts, ignore_errors=True)


def _write_csv(path: str | Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    # surrogateescape: a file name that is no UTF-8 keeps its bytes
    with atomic(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        plain = csv.writer(file, lineterminator="\n")
        # before Python 3.13 a lone carriage return goes out bare, and readers take it for the end of a line
        quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        for cells in (header, *rows):
            row = [guarded(c) if isinstance(c, str) else c for c in cells]
            (quoted if any("\r" in str(c) for c in row) else plain).writerow(row)
    return Path(path)


def _points(prediction: Prediction) -> Iterator[tuple[float, float, float | None, int | None]]:
    if prediction.points is None:
        return
    points = prediction.points.detach().cpu().double().reshape(-1, 2).tolist()
    n, (height, width) = len(points), prediction.size
    scores = [None] * n if prediction.scores is None else prediction.scores.detach().cpu().double().tolist()
    labels = [None] * n if prediction.labels is None else prediction.labels.detach().cpu().tolist()
    for (x, y), score, label in zip(points, scores, labels, strict=True):
        yield _place(x, width), _place(y, height), None if score is None else _decimals(score), label


def _place(value: float, length: float) -> float:
    """A coordinate with two decimals, still inside where it was inside.

    >>> _place(12.3456, 90), _place(89.9999, 90), _place(91.2, 90)
    (12.35, 89.99, 91.2)
    """
    rounded = round(value, 2)
    return round(length - 0.01, 2) if value < length <= rounded else rounded


def _object(prediction: Prediction, classes: Sequence[str] | None) -> dict[str, Any]:
    height, width = prediction.size
    result: dict[str, Any] = {
        "image": prediction.name,
        "count": _finite(prediction.count),
        "width": int(width),
        "height": int(height),
    }
    if prediction.scale != 1:
        result["scale"] = _decimals(prediction.scale)
    if prediction.warning:
        result["warning"] = prediction.warning
    apart = prediction.class_counts
    if apart:
        result["classes"] = {str(classes[k] if classes is not None else k): _finite(c) for k, c in enumerate(apart)}
    if prediction.models:
        result["models"] = {m: _finite(c) for m, c in zip(prediction.models, prediction.by_model, strict=True)}
    if prediction.points is not None:
        keys = ("x", "y", "score", "label")
        result["points"] = [{k: v for k, v in zip(keys, p) if v is not None} for p in _points(prediction)]
    return result


def _finite(value: float) -> float | None:
    return _decimals(value) if math.isfinite(value) else None


def _decimals(value: float) -> float:
    return round(float(value), 4)
