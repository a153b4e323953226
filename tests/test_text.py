"""Structures with tensors: compared by identity, shown in one line; nouns agree with their numbers."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import papm
from papm.losses.base import LossContext
from papm.predict.prediction import Prediction
from papm.structures import (
    Batch,
    DensityOutput,
    LossOutput,
    PointBatch,
    PointProposals,
    Sample,
)
from papm.text import LONGEST, Brief, n_of

POINTS = torch.rand(5000, 2)
BATCH = PointBatch.from_list([POINTS, POINTS[:10]])
LONG = "a" * 5000
EACH = [
    Sample(
        LONG, Path(f"/photos/{LONG[:200]}.jpg"), POINTS, (768, 1024), meta={LONG: LONG, "b": POINTS, "c": [1] * 500}
    ),
    BATCH,
    DensityOutput(torch.rand(8, 1, 96, 128), 8, {f"map {k}": torch.rand(8, 96, 128) for k in range(50)}),
    PointProposals(torch.rand(8, 1024, 2), torch.rand(8, 1024, 2), torch.rand(1024, 2)),
    LossOutput(torch.tensor(2.5), {f"term {k}": torch.tensor(k / 3) for k in range(50)}),
    Batch(images=torch.rand(2, 3, 64, 64), points=BATCH, mask=torch.ones(2, 64, 64) > 0, sizes=torch.zeros(2, 2)),
    LossContext(halo=BATCH, images=torch.rand(2, 3, 64, 64)),
    Prediction(12.34567, (768, 1024), torch.rand(1, 96, 128), 8, POINTS, name="a.jpg", classes=("car",) * 900),
]


@pytest.mark.parametrize("made", EACH, ids=lambda m: type(m).__name__)
def test_a_structure_is_itself_and_says_so_in_a_line(made: Brief) -> None:
    other = dataclasses.replace(made)  # type: ignore[type-var]
    assert made == made and made != other and len({made, other, made}) == 2
    said = repr(made)
    assert said.startswith(f"{type(made).__name__}(") and said.endswith(")")
    assert len(said) <= LONGEST and "\n" not in said and "tensor(" not in said


def test_what_a_repr_says() -> None:
    found = Prediction(12.34567, (768, 1024), torch.zeros(1, 96, 128), 8, torch.zeros(12, 2), name="a.jpg")
    assert repr(found) == (
        "Prediction(count=12.3457, size=(768, 1024), density=float32[1, 96, 128], stride=8, points=float32[12, 2], "
        "name='a.jpg')"
    )
    seen = dataclasses.replace(found, density=None, points=None, models=("a", "b"), by_model=(12.0, 12.69134))
    assert "models=('a', 'b'), by_model=(12, 12.6913))" in repr(seen)
    assert repr(LossOutput(torch.tensor(2.5), {"ot": torch.tensor(2.0)})) == (
        "LossOutput(total=2.5, terms={ot: 2}, weights={ot: 1})"
    )
    far = LossOutput(torch.zeros((), device="meta"), {})  # has no value to show
    assert repr(far) == "LossOutput(total=float32[] on meta)"


def test_a_repr_waits_for_no_value_of_a_traced_tensor() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        assert "total=float32[]" in repr(LossOutput(torch.zeros(()), {}))


def dataclasses_with_arrays() -> Iterator[type]:
    """Every dataclass of the package with a field that is a tensor or an array, by its annotation."""
    for found in pkgutil.walk_packages(papm.__path__, "papm."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        scope = {**vars(module), "Tensor": torch.Tensor}
        for kind in vars(module).values():
            if not isinstance(kind, type) or not dataclasses.is_dataclass(kind) or kind.__module__ != found.name:
                continue
            words = {
                w for f in dataclasses.fields(kind) for w in re.split(r"\W+", re.sub(r"Callable.*", "", str(f.type)))
            }
            if any(
                scope.get(w) is torch.Tensor or getattr(scope.get(w), "__origin__", None) is np.ndarray for w in words
            ):
                yield kind


def test_every_structure_with_tensors_is_compared_by_identity() -> None:
    found = {kind.__name__: kind for kind in dataclasses_with_arrays()}
    assert {"Sample", "Prediction", "TransportResult", "Annotation", "Plan", "ImageStore", "PointBatch"} <= set(found)
    wrong = [k for k, kind in found.items() if kind.__eq__ is not object.__eq__ or kind.__repr__ is not Brief.__repr__]
    assert not wrong, f"declare these @dataclass(eq=False, repr=False) on papm.text.Brief: {wrong}"


def test_nouns_agree_with_their_numbers() -> None:
    assert [n_of(n, "image") for n in (0, 1, 2, 12345)] == ["0 images", "1 image", "2 images", "12,345 images"]
    assert n_of(2, "process", "processes") == "2 processes" and n_of(1, "process", "processes") == "1 process"


def test_plurals_have_one_home() -> None:
    root = Path(papm.__file__).parent
    by_hand = re.compile(r"""(''|"") if [^{}]* == 1 else ('e?s'|"e?s")""")
    files = [
        p.relative_to(root).as_posix() for p in root.rglob("*.py") if by_hand.search(p.read_text(encoding="utf-8"))
    ]
    assert not files, f"use papm.text.n_of in {files}"
