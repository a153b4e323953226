"""What papm can do with packages that its core does not need, and the sentence where one is missing."""

from __future__ import annotations

import importlib.util

from papm.errors import ConfigError

# Extras of pyproject.toml: the modules that are imported, and the packages that bring them.
EXTRAS: dict[str, dict[str, str]] = {
    "train": {"lightning": "lightning", "torchmetrics": "torchmetrics", "tensorboard": "tensorboard"},
    "report": {"jinja2": "jinja2"},
    "serve": {"starlette": "starlette", "uvicorn": "uvicorn", "python_multipart": "python-multipart"},
    "video": {"cv2": "opencv-python-headless"},
    "export": {"onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"},
    "ray": {"ray": "ray", "pyarrow": "pyarrow", "fsspec": "fsspec"},
    "openvino": {"openvino": "openvino", "onnx": "onnx", "onnxscript": "onnxscript"},
    "bench": {"ot": "pot", "geomloss": "geomloss"},
}


class MissingExtraError(ConfigError):
    """A package of an extra that is not installed."""


def has(module: str) -> bool:
    """Whether a module can be imported; it is not.

    >>> has("json"), has("no_such_module")
    (True, False)
    """
    return importlib.util.find_spec(module) is not None


def missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed."""
    return [package for module, package in EXTRAS[extra].items() if not has(module)]


def require(extra: str, what: str, *modules: str) -> None:
    """Refuse with what to install where one of these modules is missing; without names, any of the extra's."""
    for module in modules or EXTRAS[extra]:
        if not has(module):
            raise MissingExtraError(sentence(what, extra, module))


def sentence(what: str, extra: str, module: str) -> str:
    """What needs the package of a module, and the command that installs it.

    >>> sentence("papm serve needs", "serve", "python_multipart")
    "papm serve needs the package 'python-multipart': pip install 'papm[serve]'"
    """
    return f"{what} the package '{EXTRAS[extra][module]}': pip install 'papm[{extra}]'"
