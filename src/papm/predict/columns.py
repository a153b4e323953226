"""The columns of a table of counts, and the row of an image: one rule for every engine and every kind of file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from papm.errors import DataError
from papm.predict.prediction import Prediction

Names = Sequence[str] | None  # of the classes


@dataclass(frozen=True)
class Columns:
    """What is said of every image of a table: the count; before calibration; between which ends; by class; by model."""

    raw: bool = False
    ends: bool = False
    classes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    @classmethod
    def of(cls, predictions: Sequence[Prediction], classes: Names = None) -> Columns:
        """The columns that some of these predictions have something to say in."""
        number = max((len(p.class_counts) for p in predictions), default=0)
        raw, ends = (any(getattr(p, k) is not None for p in predictions) for k in ("raw_count", "interval"))
        models = next((p.models for p in predictions if p.models), ())
        return cls(raw, ends, class_names(number, classes), models)

    @property
    def names(self) -> list[str]:
        """
        >>> Columns(raw=True, ends=True, classes=("car",), models=("a", "b")).names
        ['count', 'raw_count', 'low', 'high', 'count_car', 'by_a', 'by_b']
        """
        own = ["count", *["raw_count"] * self.raw, *["low", "high"] * self.ends]
        return [*own, *(f"count_{c}" for c in self.classes), *(f"by_{m}" for m in self.models)]

    def row(self, p: Prediction) -> list[float | None]:
        """The cells of one image, rounded; None where it has nothing to say.

        >>> Columns(ends=True, classes=("0", "1")).row(Prediction(2.00004, (8, 8), by_class=(2.00004,)))
        [2.0, None, None, 2.0, 0.0]
        """
        apart = p.class_counts
        cells = [p.count, *[p.count if p.raw_count is None else p.raw_count] * self.raw]
        ends = [*(p.interval or (None, None))] * self.ends
        each = [*apart, *[0.0] * (len(self.classes) - len(apart)), *p.by_model]
        return [None if value is None else decimals(value) for value in (*cells, *ends, *each)]


def class_names(number: int, classes: Names = None) -> tuple[str, ...]:
    """So many names of classes; numbers where nobody names them."""
    if classes is not None and len(classes) < number:
        raise DataError(f"{len(classes)} class names for {number} classes: name every class")
    return tuple(map(str, range(number) if classes is None else classes[:number]))


def decimals(value: float) -> float:
    """As many as a count is written with: four."""
    return round(float(value), 4)
