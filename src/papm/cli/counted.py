"""What `papm predict` says of a prediction, of an image or of a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from papm.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from papm.predict.prediction import Prediction


class Unreadable(DataError):
    """A file that cannot be counted in."""


def dimmed(image: Tensor, region: Tensor | None) -> Tensor:
    """The image, darker where nothing is counted."""
    return image if region is None else image.where(region, image // 3)


def by_class(prediction: Prediction) -> dict[str, Any]:
    """Counts of the classes by name, where there are several."""
    apart = prediction.class_counts
    names = prediction.classes or tuple(map(str, range(len(apart))))
    return {"classes": {k: round(v, 3) for k, v in zip(names, apart)}} if apart else {}


def resized(prediction: Prediction) -> dict[str, Any]:
    """How much the image was resized before counting, where it was, and what makes the count doubtful."""
    found: dict[str, Any] = {} if prediction.scale == 1 else {"scale": round(prediction.scale, 4)}
    return found | ({"warning": prediction.warning} if prediction.warning else {})


def by_model(prediction: Prediction) -> dict[str, Any]:
    """Counts of the models by name, where several counted."""
    each = zip(prediction.models, prediction.by_model, strict=True)
    return {"models": {k: round(v, 3) for k, v in each}} if prediction.models else {}
