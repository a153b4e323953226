"""Images that occur in two splits: found when brightness, size and compression differ, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from papm.data.base import Dataset
from papm.data.convert import pool
from papm.data.near_duplicates import near_duplicates, thumbnail
from papm.images import read_image
from papm.structures import Sample


def photo(path: Path, seed: int, size: tuple[int, int] = (120, 160), **save: int) -> Sample:
    small = np.random.default_rng(seed).integers(40, 200, (15, 20, 3), dtype=np.uint8)
    picture = Image.fromarray(small).resize((size[1], size[0]), Image.Resampling.BICUBIC)
    picture.save(path, **save)
    return Sample(path.stem, path, torch.zeros(0, 2), size)


def test_pairs(tmp_path: Path) -> None:
    train = [photo(tmp_path / f"a{k}.jpg", k) for k in range(6)]
    again = photo(tmp_path / "again.jpg", 2, (90, 120), quality=40)
    bright = tmp_path / "bright.png"
    Image.open(tmp_path / "a4.jpg").point(lambda v: min(255, int(v * 1.2))).save(bright)
    test = [photo(tmp_path / "new.jpg", 99), again, Sample("bright", bright, torch.zeros(0, 2), (120, 160)), train[0]]
    seen: list[int] = []
    found = near_duplicates({"train": Dataset(train), "test": Dataset(test)}, on_item=lambda: seen.append(1))
    assert {(p.first[1].name, p.second[1].name) for p in found} == {("a2", "again"), ("a4", "bright")}
    assert all(p.first[0] == "train" and p.second[0] == "test" and 0.98 < p.likeness <= 1 for p in found)
    assert len(seen) == 10 and found == sorted(found, key=lambda p: -p.likeness)
    assert near_duplicates({"train": Dataset([*train, again])}) == [], "within a split it is no leak"
    assert near_duplicates({}) == []


def _page(path: Path, number: int) -> torch.Tensor:
    return read_image(path) + number


def test_a_file_that_is_decoded_in_a_way_of_its_own_is_one_image(tmp_path: Path) -> None:
    sample = photo(tmp_path / "a.jpg", 0)
    splits = {s: Dataset([replace(sample, source=partial(read_image, tmp_path / "a.jpg"))]) for s in ("all", "fold1")}
    assert near_duplicates(splits) == [] and len(pool(splits)) == 1
    pages = [replace(sample, name=str(k), source=partial(_page, tmp_path / "a.jpg", k)) for k in range(3)]
    assert len(pool({"all": Dataset(pages)})) == 3, "pages of one file are images of their own"


def test_flat_and_damaged_images_are_like_nothing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Image.new("RGB", (50, 40), (9, 9, 9)).save(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.jpg").write_bytes(b"\xff\xd8 no image")
    made = [Sample(n, tmp_path / n, torch.zeros(0, 2), (40, 50)) for n in ("a.png", "b.png", "a.jpg", "b.jpg")]
    assert not any(thumbnail(s).any() for s in made)
    assert near_duplicates({"x": Dataset(made[::2]), "y": Dataset(made[1::2])}) == []


def test_drawn_scenes(tmp_path: Path) -> None:
    from papm import data

    splits = data.open("synthetic", train=2, test=2, size=64)
    assert near_duplicates(splits) == []
    assert thumbnail(splits["train"][0]).any()
