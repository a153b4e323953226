"""Pictures of moved dots: the square lies in the image, and marks are where the dots are."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papm.marks import PREDICTED, TRUTH
from papm.report.displaced import SIDE, draw_moved, window


@settings(max_examples=40, deadline=None)
@given(
    h=st.integers(1, 300), w=st.integers(1, 300), n=st.integers(0, 5), wanted=st.floats(0, 1000), seed=st.integers(0, 9)
)
def test_the_square_lies_in_the_image(h: int, w: int, n: int, wanted: float, seed: int) -> None:
    points = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed)) * torch.tensor([w, h])
    left, top, side = window(points, (h, w), wanted)
    assert left >= 0 and top >= 0 and side >= 1 and left + side <= w and top + side <= h


def near(picture: torch.Tensor, x: float, y: float, colour: tuple[int, int, int]) -> float:
    pixel = picture[:, round(y), round(x)].float()
    return float((pixel - torch.tensor(colour).float()).abs().max())


def test_marks_are_where_the_dots_are() -> None:
    image = torch.full((3, 100, 100), 90, dtype=torch.uint8)
    before, after = torch.tensor([[30.0, 30.0]]), torch.tensor([[50.0, 30.0]])
    picture = draw_moved(image, before, after, (10, 10, 80))
    zoom = SIDE / 80
    assert picture.shape == (3, SIDE, SIDE)
    assert near(picture, 40 * zoom, 20 * zoom, PREDICTED) < 10
    assert near(picture, 20 * zoom, 20 * zoom - 8.2, TRUTH) < 60  # on the ring
    assert near(picture, 30 * zoom, 20 * zoom, (255, 255, 255)) < 10  # the line between them
    assert near(picture, 30 * zoom, 40 * zoom, (90, 90, 90)) < 3
    # Where dots are missing nobody knows which is which.
    apart = draw_moved(image, torch.cat([before, before]), after, (10, 10, 80))
    assert near(apart, 30 * zoom, 20 * zoom, (90, 90, 90)) < 3


def test_grey_images_are_drawn_too() -> None:
    image = torch.zeros(1, 20, 30, dtype=torch.uint8)
    assert draw_moved(image, torch.zeros(0, 2), torch.zeros(0, 2), (0, 0, 20)).shape == (3, SIDE, SIDE)
