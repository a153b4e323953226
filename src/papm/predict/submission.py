"""The two files that the server of NWPU-Crowd takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from papm.data.base import Dataset
from papm.data.nwpu_files import image_id, write_counts, write_predictions
from papm.data.upright import as_stored
from papm.errors import ConfigError
from papm.predict.predictor import Source

COUNTS, POINTS = "counting.txt", "localization.txt"


def write_submission(
    counter: Source, dataset: Dataset, folder: Path, on_item: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Count every image and write `id count` and `id n x y …` lines, in pixels of the original images, as stored."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; --submission is a folder")
    samples = {image_id(s.name): s.published for s in dataset}
    counts: dict[int, float] = {}
    points: dict[int, Any] = {}
    for number, sample in samples.items():
        found = counter.predict(sample.image)
        counts[number] = found.count
        points[number] = [] if found.points is None else found.points
        if found.points is not None and sample.path is not None:
            points[number] = as_stored(found.points, sample.path, sample.size)
        if on_item is not None:
            on_item()
    write_counts(folder / COUNTS, counts)
    write_predictions(folder / POINTS, points)
    return {
        "images": len(samples),
        "count": round(sum(counts.values()), 2),
        "submission": {"counting": str(folder / COUNTS), "localization": str(folder / POINTS)},
    }
