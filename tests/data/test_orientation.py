"""Images with an up and a down are told from those without."""

from __future__ import annotations

import functools

import torch

from papm import data
from papm.data.base import Dataset
from papm.data.orientation import has_up_and_down, orientation
from papm.structures import Sample


def with_sky(dataset: Dataset) -> Dataset:
    """The same images, lighter towards the top."""
    made = []
    for sample in dataset:
        light = torch.linspace(60, 0, sample.size[0])[None, :, None]
        image = (sample.image.float() + light).clamp(0, 255).to(torch.uint8)
        made.append(
            Sample(
                name=sample.name, source=functools.partial(torch.clone, image), points=sample.points, size=sample.size
            )
        )
    return Dataset(made, "sky", "train")


def test_cells_have_no_up_and_down_and_a_sky_makes_one() -> None:
    cells = data.open("synthetic", look="cells", train=24, test=1, size=96, count="8-30")["train"]
    assert not has_up_and_down(cells)
    assert has_up_and_down(with_sky(cells))


def test_a_crowd_that_grows_downwards_has_one() -> None:
    assert has_up_and_down(data.open("synthetic", look="crowd", train=24, test=1)["train"])


def test_few_images_cannot_tell() -> None:
    few = data.open("synthetic", look="cells", train=9, test=1, size=64, count="8-30")["train"]
    assert orientation(few) == float("inf") and has_up_and_down(few)
    assert has_up_and_down(Dataset([], "none", "train"))


def test_images_of_one_colour_or_one_pixel_are_no_trouble() -> None:
    plain = [
        Sample(
            name=str(k),
            source=functools.partial(torch.full, (3, 1, 1), k, dtype=torch.uint8),
            points=torch.zeros(0, 2),
            size=(1, 1),
        )
        for k in range(12)
    ]
    assert orientation(Dataset(plain, "plain", "train")) == 0
