"""Example pictures: spread over the counts, named safely, of bounded size, replaced by the next call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from papm.data.base import Dataset
from papm.images import read_image
from papm.predict.prediction import Prediction
from papm.report import examples
from papm.report.examples import save_examples, spread
from papm.structures import Sample


def sample(name: str, count: int, size: tuple[int, int] = (40, 60)) -> Sample:
    points = torch.rand(count, 2) * torch.tensor([size[1], size[0]])
    return Sample(name, lambda: torch.full((3, *size), 90, dtype=torch.uint8), points, size)


def test_a_sum_of_chances_is_shown_and_not_the_number_of_points(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(examples, "panel", lambda pictures, titles: shown.append(titles))
    image, where = torch.zeros(3, 40, 60, dtype=torch.uint8), torch.tensor([[3.0, 4.0]])
    examples.example(image, sample("a", 1), Prediction(0.6, (40, 60), points=where))
    examples.example(image, sample("a", 1), Prediction(0.6, (40, 60), torch.full((1, 5, 8), 0.015), 8, where))
    assert shown == [["annotated: 1", "points: 0.6"], ["annotated: 1", "density: 0.6", "points: 1"]]


class FakeCounter:
    """Predicts a flat map, or points alone as a point network does."""

    def __init__(self, density: bool = True) -> None:
        self.density, self.seen = density, []

    def predict(self, image: Tensor, *, points: bool = True, name: str = "") -> Prediction:
        self.seen.append(name)
        h, w = image.shape[-2:]
        where = torch.tensor([[w / 2, h / 2]])
        if not self.density:
            return Prediction(1.0, (h, w), points=where, name=name)
        return Prediction(2.0, (h, w), torch.full((1, -(-h // 8), -(-w // 8)), 0.1), 8, where, torch.ones(1), name=name)


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(0, 8))
def test_spread_takes_both_ends_and_no_image_twice(counts: list[int], want: int) -> None:
    chosen = spread(counts, want)
    assert len(chosen) == len(set(chosen)) == min(want, len(counts))
    picked = [counts[i] for i in chosen]
    assert picked == sorted(picked)
    if len(chosen) > 1:
        assert picked[0] == min(counts) and picked[-1] == max(counts)


def test_files_are_numbered_by_count_and_named_safely(tmp_path: Path) -> None:
    dataset = Dataset([sample("many.jpg", 9), sample("../none", 0), sample("a/b.jpg", 4)])
    counter: Any = FakeCounter()
    files = save_examples(counter, dataset, tmp_path, count=6)
    assert counter.seen == ["../none", "a/b.jpg", "many.jpg"]
    assert all(f.parent == tmp_path / "examples" and f.exists() for f in files)
    assert [f.name[:3] for f in files] == ["00_", "01_", "02_"]
    assert files[2].name == "02_many.png"


def test_panels_have_three_pictures_and_two_without_a_density(tmp_path: Path) -> None:
    dataset = Dataset([sample("x.jpg", 3, (100, 100))])
    three: Any = FakeCounter()
    two: Any = FakeCounter(density=False)
    wide = read_image(save_examples(three, dataset, tmp_path / "a")[0]).shape[-1]
    less = read_image(save_examples(two, dataset, tmp_path / "b")[0]).shape[-1]
    assert 3 * 800 + 100 <= wide < 3 * 800 + 260 and 2 * 800 <= less < 2 * 800 + 30  # a colour bar beside the density


@pytest.mark.parametrize("size", [(1200, 2000), (2000, 1200)])
def test_large_images_are_shrunk(tmp_path: Path, size: tuple[int, int]) -> None:
    counter: Any = FakeCounter(density=False)
    (file,) = save_examples(counter, Dataset([sample("x.jpg", 3, size)]), tmp_path)
    height, width = read_image(file).shape[-2:]
    assert width < 2 * 900 + 40 and height < 900 + 120


def test_examples_of_an_earlier_call_are_replaced_and_other_files_kept(tmp_path: Path) -> None:
    counter: Any = FakeCounter()
    save_examples(counter, Dataset([sample(f"{k}.jpg", k) for k in range(4)]), tmp_path, count=4)
    (tmp_path / "examples" / "mine.png").write_bytes(b"x")
    files = save_examples(counter, Dataset([sample("new.jpg", 1)]), tmp_path)
    assert sorted((tmp_path / "examples").iterdir()) == [files[0], tmp_path / "examples" / "mine.png"]
    assert save_examples(counter, Dataset([]), tmp_path) == []
