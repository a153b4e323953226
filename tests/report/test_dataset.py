"""The page of a dataset: self-contained, true figures, odd images drawn and named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from papm import data
from papm.data.base import Dataset
from papm.data.near_duplicates import near_duplicates
from papm.report.dataset import write_dataset_page
from papm.report.suspects import beyond, doubled, plain, repeated, suspects, tightness, unique
from papm.structures import Sample


@pytest.fixture
def splits(tmp_path: Path) -> dict[str, Dataset]:
    rng = np.random.default_rng(0)
    made = []
    names = ["plain", "outside", "double", "empty", "tight", "<b>evil</b>"]
    for k, name in enumerate(names):
        path = tmp_path / f"{k}.png"
        Image.fromarray(rng.integers(0, 256, (80, 120, 3), dtype=np.uint8)).save(path)
        points = torch.from_numpy(rng.random((12, 2))).float() * torch.tensor([120.0, 80.0])
        if name == "outside":
            points[0] = torch.tensor([4000.0, -3.0])
        if name == "double":
            points[5] = points[6] = points[7]
        if name == "empty":
            points = points[:0]
        if name == "tight":
            points = points * 0.02 + 40
        made.append(Sample(name, path, points, (80, 120)))
    return {"train": Dataset(made[:4], "folder", "train"), "test": Dataset(made[3:], "folder", "test")}


def test_the_page(splits: dict[str, Dataset], tmp_path: Path, read_page: Callable[[Path], Any]) -> None:
    page = read_page(write_dataset_page(tmp_path / "page.html", "my <data>", splits, near_duplicates(splits)))
    for words in (
        "my <data>",
        "The splits overlap",
        "outside (train): 1 of 12 points outside",
        "double (train): 2 points repeated",
        "empty (train): no points",
        "tight (test): median neighbour at",
        "objects, <b>evil</b> (test): 12",
        "Hardly apart",
    ):
        assert words in page.text, words
    assert ("b", {}) in page.tags and page.text.count("60 1 outside") == 1, (
        "points once, though 'empty' is in two splits"
    )
    pictures = [a for tag, a in page.tags if tag == "img"]
    assert len(pictures) == 4 + 1 + 1 + 1 + 1 and "Near-duplicates across splits" not in page.text


def test_drawn_data_with_sizes_and_several_people(tmp_path: Path, read_page: Callable[[Path], Any]) -> None:
    opened = data.open("synthetic", train=3, test=2, size=64, max_side=48)
    people = [replace(s, annotations={"a": s.points, "b": s.points + 1.0}) for s in opened["train"]]
    page = read_page(
        write_dataset_page(tmp_path / "page.html", "drawn", {"train": Dataset(people), "test": opened["test"]})
    )
    for words in ("Object sizes", "Between annotators", "a, b", "another size than that of their files"):
        assert words in page.text, words


def drawn(count: int, *sizes: tuple[int, int]) -> dict[str, Dataset]:
    made = []
    for k in range(count):
        h, w = sizes[k % len(sizes)]
        points = torch.rand(k + 2, 2, generator=torch.Generator().manual_seed(k)) * torch.tensor([w, h])
        made.append(Sample(f"i{k}", partial(torch.zeros, 3, h, w, dtype=torch.uint8), points, (h, w)))
    return {"all": Dataset(made, "folder", "all")}


def test_images_of_one_size_get_a_sentence(tmp_path: Path, read_page: Callable[[Path], Any]) -> None:
    page = read_page(write_dataset_page(tmp_path / "p.html", "one", drawn(3, (30, 40))))
    assert "Every image is 40×30 px" in page.text
    assert "width, px" not in page.text and "Objects and image size" not in page.text
    page = read_page(write_dataset_page(tmp_path / "p.html", "two", drawn(3, (30, 40), (30, 41))))
    assert "Every image is" not in page.text
    assert "width, px" in page.text and "Objects and image size" in page.text


@pytest.mark.parametrize("images", [1, 12, 13])
def test_few_images_get_a_bar_each(tmp_path: Path, read_page: Callable[[Path], Any], images: int) -> None:
    page = read_page(write_dataset_page(tmp_path / "p.html", "few", drawn(images, (30, 40))))
    bars = [k for k in range(images) if f"objects, i{k} (all): {k + 2}" in page.text]
    assert bars == (list(range(images)) if images <= 12 else [])
    assert ("one bar per image" in page.text) == (images <= 12)


def test_a_dataset_of_nothing_odd(tmp_path: Path, read_page: Callable[[Path], Any]) -> None:
    empty = Dataset([], "none", "all")
    assert "Nothing stands out." in read_page(write_dataset_page(tmp_path / "p.html", "none", {"all": empty})).text


def test_pieces(splits: dict[str, Dataset]) -> None:
    by_name = {s.name: s for _, s in unique(splits)}
    assert len(by_name) == 6
    assert repeated(by_name["double"].points).sum() == 2 and repeated(torch.zeros(0, 2)).shape == (0,)
    assert 0 < tightness(by_name["tight"]) < 1 and tightness(by_name["empty"]) == 0
    for draw in (plain, doubled, beyond):
        for s in by_name.values():
            assert draw(s, s.image).dtype == torch.uint8
    wide = beyond(by_name["outside"], by_name["outside"].image)
    assert wide.shape[2] > 120 and wide.shape[1] > 80
    Path(str(by_name["tight"].source)).unlink()
    assert "Hardly apart" not in [p.title for p in suspects(splits)], "a damaged image is left out, not fatal"
