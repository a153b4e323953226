"""`papm serve` without a model: a page to set the first dots on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from papm.errors import ConfigError
from papm.predict.prediction import Prediction
from papm.serve.counting import Limits


class Blank:
    """What counts where there is no model yet: nothing is seen, and people set the dots."""

    def __init__(self, classes: Sequence[str] = ()) -> None:
        if len(set(classes)) < len(classes) or any(not c.strip() for c in classes):
            raise ConfigError("classes are different names divided by commas, such as car,bus")
        self.classes = tuple(classes) if len(classes) > 1 else ()

    def predict(self, image: Any, *, name: str = "", **_: object) -> Prediction:
        """An image without points."""
        size = (int(image.shape[1]), int(image.shape[2]))
        none = torch.zeros(0, dtype=torch.int64)
        return Prediction(
            0.0, size, points=torch.zeros(0, 2), labels=none if self.classes else None, name=name, classes=self.classes
        )

    def describe(self, limits: Limits) -> dict[str, Any]:
        """The same words as of a model."""
        return {
            "name": "dots by hand",
            "models": [],
            "counts": "none",
            "classes": list(self.classes),
            **limits.describe(),
        }
