"""papm: count dense objects from imperfect point annotations.

`import papm` is light: neither Lightning nor torchmetrics is loaded until something needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from papm.extensions import load_extensions
from papm.version import __version__

if TYPE_CHECKING:  # what `__getattr__` finds when it is first named, for type checkers and editors
    from papm import (
        data,
        errors,
        export,
        ggd,
        localize,
        losses,
        matching,
        methods,
        metrics,
        models,
        points,
        structures,
        targets,
        transport,
    )
    from papm.api import Calibration, Evaluation, Localization, Run, add_interval, calibrate, evaluate, train
    from papm.predict.ensemble import Ensemble
    from papm.predict.prediction import Prediction
    from papm.predict.predictor import Counter
    from papm.predict.scaleout.run import predict_many

__all__ = [
    "Calibration",
    "Counter",
    "Ensemble",
    "Evaluation",
    "Localization",
    "Prediction",
    "Run",
    "__version__",
    "add_interval",
    "calibrate",
    "data",
    "errors",
    "evaluate",
    "export",
    "ggd",
    "load_extensions",
    "localize",
    "losses",
    "matching",
    "methods",
    "metrics",
    "models",
    "points",
    "predict_many",
    "structures",
    "targets",
    "train",
    "transport",
]

_FROM = {
    "Counter": "papm.predict.predictor",
    "Ensemble": "papm.predict.ensemble",
    "Prediction": "papm.predict.prediction",
    "predict_many": "papm.predict.scaleout.run",
    **dict.fromkeys(("Calibration", "Evaluation", "Localization", "Run"), "papm.api"),
    **dict.fromkeys(("add_interval", "calibrate", "evaluate", "train"), "papm.api"),
}

if not TYPE_CHECKING:  # a type checker that saw this would take every name, also a misspelt one, for Any

    def __getattr__(name: str) -> object:
        if name in _FROM:
            return getattr(importlib.import_module(_FROM[name]), name)
        if name in __all__:
            return importlib.import_module(f"papm.{name}")
        raise AttributeError(f"module 'papm' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
