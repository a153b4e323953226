"""Points that are fractions of the image are noticed, and nothing else is."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from PIL import Image

from papm.data.base import Dataset, open
from papm.data.fractions import complaint, require_pixels
from papm.data.several import join
from papm.data.spec import open_split
from papm.errors import DataError
from papm.structures import Sample


def made(*points: list[list[float]], size: tuple[int, int] = (30, 40), name: str = "folder") -> Dataset:
    samples = [Sample(f"{k}", Path("none.png"), torch.tensor(p).reshape(-1, 2), size) for k, p in enumerate(points)]
    return Dataset(samples, name, "train")


FRACTIONS = [[0.25, 0.5], [0.1, 1.0]]


def test_fractions_are_refused() -> None:
    with pytest.raises(DataError, match=r"^folder: all 4 points lie between 0 and 1, fractions of the image"):
        require_pixels(made(FRACTIONS, [], FRACTIONS))


@pytest.mark.parametrize("beyond", [[1.0004, 0.5], [0.3, -0.002], [-0.5, 0.5], [1.9, 0.1]])
def test_one_fraction_beyond_the_border_does_not_make_pixels_of_the_others(beyond: list[float]) -> None:
    dataset = made(FRACTIONS, FRACTIONS, [beyond])
    low, high = min(0.0, *beyond), max(1.0, *beyond)
    assert f"all 5 points lie between {low:g} and {high:g}, fractions of the image" in complaint(dataset)


@pytest.mark.parametrize(
    "dataset",
    [
        made(),
        made([], []),
        made([[0.5, 0.5]]),
        made([[0.5, 0.5]], [[0.2, 0.2]], []),
        made(FRACTIONS, FRACTIONS, [[20.0, 1.0]]),
        made(FRACTIONS, FRACTIONS, [[-1.0, 0.5]]),
        made(FRACTIONS, FRACTIONS, [[2.0, 0.5]]),
        made(FRACTIONS, FRACTIONS, size=(8, 8)),
    ],
)
def test_few_points_and_pixels_are_not(dataset: Dataset) -> None:
    require_pixels(dataset)


def test_one_of_several_datasets_is_named() -> None:
    good = made([[10.0, 20.0]], name="made")
    joined = join([("folder", {"train": made(FRACTIONS, FRACTIONS)}), ("made", {"train": good})])["train"]
    assert complaint(joined).startswith("folder: all 4 points")


def fractions_in(folder: Path) -> Path:
    for k in range(6):
        Image.new("RGB", (64, 48), (k, 0, 0)).save(folder / f"{k}.png")
        (folder / f"{k}.txt").write_text("0.25 0.5\n0.1 0.9\n")
    return folder


def test_points_of_images_that_are_shown_larger_are_those_of_the_files(tmp_path: Path) -> None:
    assert complaint(open("folder", fractions_in(tmp_path), min_side=480)["all"])


def test_evaluation_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        open_split(str(fractions_in(tmp_path)))
    assert "all 12 points lie between 0 and 1" in caplog.text
