"""A factor for the counts of a model from a few checked images: `papm.calibrate("runs/first", "checked")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from papm import checkpoint
from papm.data.base import Dataset
from papm.data.resize import OPTIONS
from papm.data.spec import open_spec
from papm.engine.count_split import count_split
from papm.engine.unseen import require_unseen
from papm.errors import ConfigError, unknown
from papm.inference import Calibration as Calibration
from papm.metrics.calibration import calibrate as fit
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter
from papm.predict.tiling import OnTile


def calibrate(
    counter: Counter | Ensemble | str | Path,
    dataset: Dataset | str | Path,
    *,
    split: str | None = None,
    options: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    on_item: Callable[[], None] | None = None,
    on_tile: OnTile | None = None,
) -> Calibration:
    """Fit a factor for the counts of a model on checked images, which it neither learned from nor was tested on.

    A `Counter` counts with it from then on; a model that is named by its path is stored with it, in its place or at `out`.
    Refused, with the figures, where there are fewer than five images or the error does not fall by more than chance.
    """
    if isinstance(counter, Ensemble):
        raise ConfigError("a calibration is of one model: calibrate each by itself, and count with them together")
    file = checkpoint.resolve(Path(counter).expanduser()) if isinstance(counter, str | Path) else None
    if file is None and out is not None:
        raise ConfigError("out is for a model that is named by its path; give the path in place of the counter")
    model = counter if isinstance(counter, Counter) else Counter.load(file or "")
    images = dataset if isinstance(dataset, Dataset) else _checked(str(dataset), split, options or {})
    require_unseen(images, model.spec.config, None if file is None else file.parent)
    counted = count_split(model, images, False, not set(options or {}) & set(OPTIONS), on_item, on_tile)
    found = fit(counted.raw or counted.predicted, counted.truth)
    model.use(found)
    if file is not None:
        checkpoint.store_calibration(file, found, None if out is None else Path(out).expanduser())
    return found


def _checked(data: str, split: str | None, options: Mapping[str, Any]) -> Dataset:
    """The split that is named, or the only one that there is."""
    splits = open_spec(data, **options)
    if split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if split is None:
        raise ConfigError(f"{data}: has the splits {', '.join(splits)}; name that of the checked images with --split")
    if split not in splits:
        raise unknown("split", split, splits)
    return splits[split]
