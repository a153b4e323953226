"""What a few checked images say about the counts of a model: a factor for them, `papm.calibrate("runs/first", "checked")`, and
how far they may be off, `papm.add_interval("runs/first", "more-checked")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from papm import checkpoint
from papm.data.base import Dataset
from papm.data.resize import OPTIONS
from papm.data.spec import open_spec
from papm.engine.count_split import count_split
from papm.engine.evaluate import Evaluation
from papm.engine.image_key import key
from papm.engine.unseen import Fingerprint, require_new, require_unseen
from papm.errors import ConfigError, DataError, unknown
from papm.inference import MOST_CHECKED, CountInterval
from papm.inference import Calibration as Calibration
from papm.metrics import conformal
from papm.metrics.calibration import calibrate as fit
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter
from papm.predict.tiling import OnTile

Model = Counter | Ensemble | str | Path


class How(TypedDict, total=False):
    """Which images, and where a model that is named by its path is stored."""

    split: str | None
    options: Mapping[str, Any] | None
    out: str | Path | None  # in its place where None
    on_item: Callable[[], None] | None
    on_tile: OnTile | None


def calibrate(counter: Model, dataset: Dataset | str | Path, **how: Unpack[How]) -> Calibration:
    """Fit a factor for the counts of a model on checked images, which it neither learned from nor was tested on.

    A `Counter` counts with it from then on; a model that is named by its path is stored with it, in its place or at `out`. An
    interval that it had was of other counts, and goes. Refused, with the figures, where there are fewer than five images or
    the error does not fall by more than chance.
    """
    model, images = _opened(counter, dataset, how)
    if len(images) > MOST_CHECKED:
        raise DataError(f"{len(images)} images: at most {MOST_CHECKED} calibrate a model; a few dozen are enough")
    counted = _counted(counter, model, images, how)
    found = fit(counted.raw or counted.predicted, counted.truth)
    keys = tuple(key(s) for s in images)
    _store(counter, model, how, calibration=found, calibrated_on=keys, interval=None)
    return found


def from_counts(
    model: Counter, images: Sequence[Fingerprint], counted: Sequence[float], folder: Path | None = None
) -> tuple[dict[str, Any], str]:
    """The contract with a factor fitted on images that were counted already: their raw counts, and in `images` the true ones.

    Nothing is changed. What the user must see to is said beside it, where the training images are not known.
    """
    if len(images) > MOST_CHECKED:
        raise DataError(f"{len(images)} images: at most {MOST_CHECKED} calibrate a model; a few dozen are enough")
    doubt = require_new(images, model.spec.config, folder)
    found = fit(counted, [image.truth for image in images])
    return {"calibration": found, "calibrated_on": tuple(i.key for i in images), "interval": None}, doubt


def add_interval(counter: Model, dataset: Dataset | str | Path, **how: Unpack[How]) -> CountInterval:
    """Learn from checked images how far the counts of a model may be off: an interval of 90 % with every count.

    The images are nine or more which the model neither learned from, nor was tested on, nor is calibrated on.
    """
    model, images = _opened(counter, dataset, how)
    counted = _counted(counter, model, images, how, model.inference.calibrated_on)
    found = conformal.interval(counted.predicted, counted.truth)
    _store(counter, model, how, interval=found)
    return found


def take_away(file: str | Path, out: str | Path | None = None) -> None:
    """Store a model without its calibration and its interval."""
    checkpoint.change_inference(*_files(file, {"out": out}), calibration=None, calibrated_on=(), interval=None)


def _opened(counter: Model, dataset: Dataset | str | Path, how: How) -> tuple[Counter, Dataset]:
    if isinstance(counter, Ensemble):
        raise ConfigError("a calibration is of one model: calibrate each by itself, and count with them together")
    if isinstance(counter, Counter) and how.get("out") is not None:
        raise ConfigError("out is for a model that is named by its path; give the path in place of the counter")
    if not isinstance(counter, Counter):
        checkpoint.require_changeable(*_files(counter, how))
    model = counter if isinstance(counter, Counter) else Counter.load(counter)
    if isinstance(dataset, Dataset):
        return model, dataset
    return model, _checked(str(dataset), how.get("split"), how.get("options") or {})


def _counted(counter: Model, model: Counter, images: Dataset, how: How, keys: tuple[str, ...] = ()) -> Evaluation:
    """Counts of images that the model has not seen."""
    folder = _files(counter, how)[0].parent if isinstance(counter, str | Path) else None
    require_unseen(images, model.spec.config, folder, keys)
    rule = not set(how.get("options") or {}) & set(OPTIONS)
    return count_split(model, images, False, rule, how.get("on_item"), how.get("on_tile"))


def _store(counter: Model, model: Counter, how: How, **contract: Any) -> None:
    """Let the model count so, and store it where it came from or at `out`."""
    model.change(**contract)
    if isinstance(counter, str | Path):
        checkpoint.change_inference(*_files(counter, how), **contract)


def _files(model: str | Path, how: How) -> tuple[Path, Path | None]:
    """Where a model is, and where it is to be stored instead."""
    out = how.get("out")
    return checkpoint.resolve(model), None if out is None else Path(out).expanduser()


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
