"""Several trained models that count together: `papm.Ensemble.load(["runs/a", "runs/b"]).predict("crowd.jpg").count`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from papm import checkpoint
from papm.errors import ConfigError
from papm.predict.assemble import Agreed, Seen, calibrated, predicted
from papm.predict.columns import Columns
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter
from papm.predict.results import image_names
from papm.predict.source import Asked, Predictor
from papm.predict.unlike import compared


class Ensemble(Predictor):
    """The mean of the counts of several models. Networks of different build err on different images.

    Where the objects are is what the first model says: its map is scaled to the mean, and its points are as many.
    """

    def __init__(self, members: Sequence[Counter], names: Sequence[str] | None = None) -> None:
        if not members:
            raise ConfigError("an ensemble is one model or more; give their run folders")
        self.members = tuple(members)
        self.names = tuple(names or (f"model {k + 1}" for k in range(len(members))))
        if len(self.names) != len(self.members):
            raise ConfigError(f"{len(self.names)} names for {len(self.members)} models: name every one")
        for member, name in zip(self.members, names or ()):
            member.name = name
        kinds = [_counts(m) for m in self.members]
        for name, kind in zip(self.names, kinds):
            if kind != kinds[0]:
                raise ConfigError(
                    f"{self.names[0]} counts {kinds[0]}, {name} {kind}: models that count together count the same, in one order"
                )

    @classmethod
    def load(cls, paths: Sequence[str | Path], *how: Any, **more: Any) -> Ensemble:
        """From checkpoint files or run folders; the options are those of `Counter.load`, for every model."""
        files = [checkpoint.resolve(p) for p in paths]
        if len({f.resolve() for f in files}) < len(files):
            raise ConfigError("the same model is named twice; it would count twice")
        return cls([Counter.load(f, *how, **more) for f in files], model_names(files))

    @property
    def spec(self) -> checkpoint.ModelSpec:
        """What the first model is."""
        return self.members[0].spec

    @property
    def columns(self) -> Columns:
        """What tables say of every image: `Counter.columns`, and the count of each model; the mean has no interval."""
        first, *rest = each = [member.columns for member in self.members]
        return Columns(any(c.raw for c in each), False, first.classes, self.names) if rest else first

    def _predict(self, image: Tensor, asked: Asked) -> Prediction:
        """The mean of all counts, where the first model sees the objects; `by_model` says what each of them counted."""
        first, *rest = self.members
        with compared():
            seen, points = first.see(image, asked), asked.points
            found = [_figures(seen), *(_figures(member.see(image, asked)) for member in rest)]
        counts, apart, doubts = zip(*found)
        doubt = next((d for d in doubts if d["warning"]), doubts[0])
        if not rest:
            return first.calibrated(predicted(seen, points))
        agreed = Agreed(fmean(counts), tuple(fmean(each) for each in zip(*apart)))
        made = predicted(seen, points, agreed)
        factors = [member.inference.factor for member in self.members]
        if any(member.inference.calibration is not None for member in self.members):
            made = calibrated(made, [_together(each, factors) for each in (list(zip(*apart)) or [counts])])
        by_model = tuple(f * count for f, count in zip(factors, counts))
        return replace(made, models=self.names, by_model=by_model, **doubt)


def _figures(seen: Seen) -> tuple[float, tuple[float, ...], dict[str, Any]]:
    """What is kept of one model's view of an image: the count, the counts of the classes, what makes them doubtful."""
    return seen.count, seen.by_class, {"unlike": seen.reasons, "warning": seen.warning}


def _together(counts: Sequence[float], factors: Sequence[float]) -> float:
    """The factor that makes the mean of raw counts that of calibrated ones; 1 where nothing is counted.

    >>> _together([10.0, 30.0], [2.0, 1.0])
    1.25
    """
    return sum(f * c for f, c in zip(factors, counts)) / sum(counts) if sum(counts) else 1.0


def model_names(paths: Sequence[Path]) -> list[str]:
    """A name for each checkpoint: that of its run folder, and of the file where it is not the run's best; of a ready model its
    own.

    >>> model_names([Path("runs/a/best.ckpt"), Path("runs/b/best.ckpt"), Path("runs/b/last.ckpt")])
    ['a', 'b', 'last.ckpt']
    """
    places = [p.resolve().with_suffix("") if p.suffix == checkpoint.COMPACT else p.resolve() for p in paths]
    return image_names([p.parent if p.name == "best.ckpt" else p for p in places])


def _counts(counter: Counter) -> str:
    """What a model counts, in words."""
    number = int(getattr(counter.network, "num_classes", 1))
    return ", ".join(counter.spec.classes) or ("one kind of object" if number == 1 else f"{number} classes")
