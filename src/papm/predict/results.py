"""Result files of predictions: counts.csv, points.csv, results.json, and the density maps as .npy.

Every file is written beside its place and renamed, so a reader never meets half a file. Counts and scores are rounded to
four decimals, coordinates to two. Text is UTF-8; names with commas, quotes or line breaks are quoted as CSV readers expect, and
those that a spreadsheet would take for a formula begin with an apostrophe.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from papm.errors import DataError, WriteError
from papm.files import guarded, replacing
from papm.predict.columns import Columns, Names, decimals
from papm.predict.prediction import Prediction

COUNTS, POINTS, RESULTS, DENSITY = "counts.csv", "points.csv", "results.json", "density"
Table = tuple[list[str], list[list[Any]]]  # header and rows


def write_results(
    predictions: Sequence[Prediction], folder: str | Path, *, classes: Names = None, density: bool = False
) -> list[Path]:
    """Write counts.csv, points.csv, results.json and, when asked, density/*.npy into `folder`; return the files.

    The three tables belong together: where one of them cannot be written, none is replaced. `classes` names the classes where
    there are several; otherwise the predictions do, or they are numbered.
    """
    folder = Path(folder)
    classes = classes or classes_of(predictions)
    tables = {
        folder / COUNTS: csv_bytes(*count_table(predictions, classes)),
        folder / POINTS: csv_bytes(*point_table(predictions)),
        folder / RESULTS: _objects(predictions, classes),
    }
    return write_all(tables) + (write_densities(predictions, folder / DENSITY) if density else [])


def write_counts(predictions: Sequence[Prediction], path: str | Path, *, classes: Names = None) -> Path:
    """One line per image: image, count, raw_count where the model is calibrated, low and high where it knows an interval, a
    column per class where there are several (`classes` names them), and one per model, `by_NAME`, where several counted.
    """
    return write_all({Path(path): csv_bytes(*count_table(predictions, classes))})[0]


def write_frames(frames: Sequence[tuple[int, float]], predictions: Sequence[Prediction], path: str | Path) -> Path:
    """One line per frame of a video: its number, its seconds, and what `write_counts` says of an image."""
    names, rows = _columns(predictions, classes_of(predictions))
    lines = [[str(n), round(seconds, 3), *row] for (n, seconds), row in zip(frames, rows, strict=True)]
    return write_csv(path, ["frame", "seconds", *names], lines)


def write_points(predictions: Sequence[Prediction], path: str | Path) -> Path:
    """One line per point: image, x, y, score, label; score and label are empty where the prediction has none."""
    return write_all({Path(path): csv_bytes(*point_table(predictions))})[0]


def write_json(predictions: Sequence[Prediction], path: str | Path, *, classes: Names = None) -> Path:
    """A list of objects: image, width, height, what `summary` says, and points as [{x, y, score, label}].

    What a prediction lacks is left out; a count that is not finite is null.
    """
    return write_all({Path(path): _objects(predictions, classes)})[0]


def write_densities(predictions: Sequence[Prediction], folder: str | Path) -> list[Path]:
    """One float32 .npy [C, h, w] for each prediction that has a density map, named after its image."""
    named = zip(predictions, file_names([p.name for p in predictions]))
    return [write_density(p, Path(folder) / f"{name}.npy") for p, name in named if p.density is not None]


def write_density(prediction: Prediction, path: str | Path) -> Path:
    """The map of a prediction as float32 .npy [C, h, w]."""
    if prediction.density is None:
        raise DataError(f"{path}: this prediction has points and no density map; save it as .csv or .json")
    stream = io.BytesIO()
    np.save(stream, prediction.density.detach().cpu().float().numpy(), allow_pickle=False)
    return write_all({Path(path): stream.getvalue()})[0]


def write_csv(path: str | Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """A table of text and numbers."""
    return write_all({Path(path): csv_bytes(header, rows)})[0]


def summary(prediction: Prediction, classes: Names = None) -> dict[str, Any]:
    """The count as plain values: of classes and models too, where there are several, and what makes it doubtful."""
    apart = prediction.class_counts
    found: dict[str, Any] = {"count": _finite(prediction.count)}
    if prediction.raw_count is not None:
        found["raw_count"] = _finite(prediction.raw_count)
    if prediction.interval is not None:
        found["interval"] = [_finite(end) for end in prediction.interval]
    if prediction.scale != 1:
        found["scale"] = decimals(prediction.scale)
    if prediction.unlike:
        found["unlike"] = list(prediction.unlike)
    if prediction.warning:
        found["warning"] = prediction.warning
    if apart:
        found["classes"] = dict(zip(classes or prediction.classes or map(str, range(len(apart))), map(_finite, apart)))
    if prediction.models:
        found["models"] = dict(zip(prediction.models, map(_finite, prediction.by_model), strict=True))
    return found


def classes_of(predictions: Sequence[Prediction]) -> Names:
    """The names of the classes, where the predictions know them."""
    return next((p.classes for p in predictions if p.classes), None)


def _columns(predictions: Sequence[Prediction], classes: Names) -> tuple[list[str], list[list[Any]]]:
    """Names and cells of what was counted; empty where an image has nothing to say."""
    columns = Columns.of(predictions, classes)
    return columns.names, [["" if value is None else value for value in columns.row(p)] for p in predictions]


def count_table(predictions: Sequence[Prediction], classes: Names = None) -> Table:
    """Header and rows of what `write_counts` writes."""
    names, rows = _columns(predictions, classes)
    return ["image", *names], [[p.name, *row] for p, row in zip(predictions, rows)]


def point_table(predictions: Sequence[Prediction]) -> Table:
    """Header and rows of what `write_points` writes."""
    rows = [[p.name, *("" if v is None else v for v in point)] for p in predictions for point in points_of(p)]
    return ["image", "x", "y", "score", "label"], rows


def _objects(predictions: Sequence[Prediction], classes: Names) -> bytes:
    keys, found = ("x", "y", "score", "label"), []
    for p in predictions:
        height, width = p.size
        made = {"image": p.name, "width": int(width), "height": int(height), **summary(p, classes)}
        if p.points is not None:
            made["points"] = [{k: v for k, v in zip(keys, point) if v is not None} for point in points_of(p)]
        found.append(made)
    # backslashreplace writes the surrogates of an undecodable file name as \\udcXX, which JSON reads back
    text = json.dumps(found, ensure_ascii=False, allow_nan=False, indent=1)
    return f"{text}\n".encode(errors="backslashreplace")


def points_of(prediction: Prediction) -> Iterator[tuple[float, float, float | None, int | None]]:
    """x, y, score and label of each point, rounded as files have them."""
    if prediction.points is None:
        return
    points = prediction.points.detach().cpu().double().reshape(-1, 2).tolist()
    n, (height, width) = len(points), prediction.size
    scores = [None] * n if prediction.scores is None else prediction.scores.detach().cpu().double().tolist()
    labels = [None] * n if prediction.labels is None else prediction.labels.detach().cpu().tolist()
    for (x, y), score, label in zip(points, scores, labels, strict=True):
        yield _place(x, width), _place(y, height), None if score is None else decimals(score), label


def _place(value: float, length: float) -> float:
    """A coordinate with two decimals, still inside where it was inside.

    >>> _place(12.3456, 90), _place(89.9999, 90), _place(91.2, 90)
    (12.35, 89.99, 91.2)
    """
    rounded = round(value, 2)
    return round(length - 0.01, 2) if value < length <= rounded else rounded


def _finite(value: float) -> float | None:
    return decimals(value) if math.isfinite(value) else None


def csv_bytes(header: Sequence[Any], rows: Sequence[Sequence[Any]] = ()) -> bytes:
    """Lines of a CSV file, text in it guarded."""
    text = io.StringIO()
    plain = csv.writer(text, lineterminator="\n")
    # before Python 3.13 a lone carriage return goes out bare, and readers take it for the end of a line
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for cells in (header, *rows):
        row = [guarded(c) if isinstance(c, str) else c for c in cells]
        (quoted if any("\r" in str(c) for c in row) else plain).writerow(row)
    return text.getvalue().encode(errors="surrogateescape")  # a file name that is no UTF-8 keeps its bytes


def write_all(files: Mapping[Path, bytes]) -> list[Path]:
    """Write files that take their places when all of them are on the disk, else none does; folders are made."""
    path = next(iter(files))
    try:
        with ExitStack() as stack:
            for path, content in files.items():
                file = stack.enter_context(replacing(path))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise WriteError(f"{path}: cannot be written ({error.strerror or error})") from error
    return list(files)


def image_names(paths: Sequence[PurePath]) -> list[str]:
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
