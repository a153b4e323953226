"""Classes of points: how many a dataset has, what they are called, and whether its labels fit a network."""

from __future__ import annotations

from collections.abc import Iterable

from papm.errors import ConfigError, DataError
from papm.structures import Sample


def class_names(samples: Iterable[Sample]) -> tuple[str, ...]:
    """Names of the classes in the order of their labels; numbers where the files have no names, none without labels."""
    last = -1
    for sample in samples:
        names = sample.meta.get("classes")
        if names and sample.labels is not None:
            return tuple(str(n) for n in names)
        if sample.labels is not None and len(sample.labels):
            last = max(last, int(sample.labels.max()))
    return tuple(str(k) for k in range(last + 1))


def require_labels(samples: Iterable[Sample], classes: int) -> None:
    """Refuse points without a class, and classes that a network of so many maps does not have."""
    for sample in samples:
        if not len(sample.points):
            continue
        where = sample.path or sample.name
        if sample.labels is None:
            raise DataError(
                f"{where}: its points have no label, which network.num_classes={classes} needs; use network.num_classes=1"
            )
        wrong = sample.labels[(sample.labels < 0) | (sample.labels >= classes)]
        if len(wrong):
            raise DataError(
                f"{where}: a point has label {int(wrong[0])}, but network.num_classes={classes} means labels 0 to {classes - 1}"
            )


def number_of_classes(wanted: object, samples: Iterable[Sample]) -> int:
    """The number that `network.num_classes=wanted` means for these samples: itself, or with "auto" what the labels say."""
    if wanted == "auto":
        found = len(class_names(samples))
        if not found:
            raise ConfigError("network.num_classes=auto needs labelled points, and the data has none; leave it out")
        return found
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise ConfigError(f"network.num_classes must be a whole number of at least 1, or auto, not {wanted!r}")
    return wanted
