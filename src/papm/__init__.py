"""papm: count dense objects from imperfect point annotations.

`import papm` is light: neither Lightning nor torchmetrics is loaded until something needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from papm.version import __version__

if TYPE_CHECKING:
    from papm.predict.ensemble import Ensemble
    from papm.predict.predictor import Counter

__all__ = ["Counter", "Ensemble", "__version__"]

_SUBMODULES = (
    "data",
    "errors",
    "export",
    "ggd",
    "localize",
    "losses",
    "matching",
    "methods",
    "metrics",
    "models",
    "points",
    "structures",
    "targets",
    "transport",
)


def __getattr__(name: str) -> Any:
    import importlib

    if name == "Counter":
        return importlib.import_module("papm.predict.predictor").Counter
    if name == "Ensemble":
        return importlib.import_module("papm.predict.ensemble").Ensemble
    if name in _SUBMODULES:
        try:
            return importlib.import_module(f"papm.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"papm.{name}":
                raise
    raise AttributeError(f"module 'papm' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), "Counter", "Ensemble", *_SUBMODULES])
