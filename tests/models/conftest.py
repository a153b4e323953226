"""Published weights themselves, where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def real() -> Callable[[str], Path]:
    """The file whose name begins so, of the folder PAPM_WEIGHTS; tests that ask for it skip when it is absent."""

    def find(arch: str) -> Path:
        folder = os.environ.get("PAPM_WEIGHTS")
        files = sorted(Path(folder).glob(f"{arch}[_.-]*.safetensors")) if folder else []
        if not files:
            pytest.skip(f"set PAPM_WEIGHTS to a folder with {arch} weights")
        return files[0]

    return find
