from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from papm.draw import coloured, factor, figure, full_scale, number, panel, save_png, stamped
from papm.draw import overlay as enlarged
from papm.errors import DataError
from papm.legend import INK, PAPER, bar, ticks
from papm.marks import PREDICTED, TRUTH, class_colour


def overlay(image: Tensor, *drawn: Any, **more: Any) -> Tensor:
    """Drawn at the size of the image."""
    return enlarged(image, *drawn, min_side=None, **more)


def photo(h: int = 120, w: int = 200, grey: int = 128) -> Tensor:
    return torch.full((3, h, w), grey, dtype=torch.uint8)


def close(pixel: Tensor, colour: tuple[int, int, int], tolerance: int = 3) -> bool:
    return bool((pixel.int() - torch.tensor(colour).int()).abs().max() <= tolerance)


def test_nothing_to_draw_leaves_the_photo() -> None:
    image = torch.randint(0, 256, (3, 50, 70), dtype=torch.uint8)
    assert torch.equal(overlay(image), image)


def test_the_input_is_not_touched() -> None:
    image = photo()
    overlay(image, torch.ones(15, 25), 8, torch.tensor([[50.0, 50.0]]))
    assert torch.equal(image, photo())


@pytest.mark.parametrize(("size", "limit", "expected"), [((120, 200), 100, (60, 100)), ((120, 200), None, (120, 200))])
def test_size(size: tuple[int, int], limit: int | None, expected: tuple[int, int]) -> None:
    picture = overlay(photo(*size), torch.rand(15, 25), 8, max_side=limit)
    assert picture.shape == (3, *expected) and picture.dtype == torch.uint8


def test_density_colours_where_it_is_and_leaves_the_rest() -> None:
    density = torch.zeros(15, 25)
    density[10, 20] = 1.0
    picture = overlay(photo(), density, 8).int()
    change = (picture - 128).abs().amax(0)
    assert change[84, 164] > 60  # the centre of the cell
    assert change[60:, :100].max() == 0


def test_opacity_follows_alpha_and_the_photo_shines_through() -> None:
    density = torch.full((15, 25), 0.2)
    light, dark = (overlay(photo(grey=g), density, 8, alpha=0.5)[:, 80, 100].float() for g in (200, 50))
    assert torch.allclose(light - dark, torch.full((3,), 75.0), atol=2)
    assert torch.equal(overlay(photo(), density, 8, alpha=0.0), photo())


def test_a_map_without_mass_or_with_broken_values_draws_nothing() -> None:
    for density in (torch.zeros(15, 25), torch.full((15, 25), torch.nan), torch.full((15, 25), -1.0)):
        assert torch.equal(overlay(photo(), density, 8), photo())
        assert figure(photo(), density, 8, headed=False).shape == (3, 480, 800)  # and no bar


def test_marks_are_where_the_points_are() -> None:
    points = torch.tensor([[60.5, 80.5], [150.5, 100.5]])
    picture = overlay(photo(), points=points)
    for x, y in points.tolist():
        assert close(picture[:, int(y), int(x)], PREDICTED)
    assert (picture[:, 40:].int() - 128).abs().amax(0).gt(0).sum() < 200  # two small dots, no more


def test_rings_are_hollow_and_dots_fit_inside() -> None:
    place = torch.tensor([[100.5, 80.5]])
    ring = overlay(photo(), truth=place)
    assert close(ring[:, 80, 100], (128, 128, 128))
    both = overlay(photo(), points=place, truth=place)
    assert close(both[:, 80, 100], PREDICTED)
    assert any(close(both[:, 80, 100 + k], TRUTH, 40) for k in range(3, 9))


def test_edges_of_marks_are_smooth_and_follow_subpixels() -> None:
    def mass(x: float) -> float:
        blue = overlay(photo(), points=torch.tensor([[x, 80.5]]))[2, 60:100].double()
        return float(((128 - blue).clamp(min=0).sum(0) * torch.arange(200)).sum() / (128 - blue).clamp(min=0).sum())

    assert mass(100.75) - mass(100.25) == pytest.approx(0.5, abs=0.1)


def test_marks_shrink_in_a_crowd_so_that_they_do_not_melt() -> None:
    grid = torch.cartesian_prod(torch.arange(300.0, 400, 9), torch.arange(300.0, 400, 9)) + 0.5
    lone = torch.tensor([[700.5, 600.5]])
    picture = overlay(photo(800, 1000), points=torch.cat([grid, lone]))
    assert close(picture[:, 300, 300], PREDICTED)
    assert not close(picture[:, 304, 304], PREDICTED, 60)  # between four neighbours
    assert close(picture[:, 600, 705], PREDICTED)  # the lone dot is larger than the crowd's spacing allows


def test_points_at_and_beyond_the_border_do_no_harm() -> None:
    points = torch.tensor([[0.0, 60.0], [199.9, 119.9], [-50.0, 10.0], [1e6, 5.0], [torch.nan, 3.0]])
    picture = overlay(photo(), points=points)
    assert close(picture[:, 60, 0], PREDICTED)
    assert overlay(photo(), points=torch.zeros(0, 2)).shape == (3, 120, 200)


def test_the_count_stands_above_the_picture() -> None:
    density = torch.full((15, 25), 3.0 / 375)
    points = torch.tensor([[60.0, 80.0]])
    plain = enlarged(photo(), points=points)
    few, many = figure(photo(), points=points), figure(photo(), points=points, count=98765.0, name="a.jpg")
    for whole in (few, many):
        strip = whole.shape[1] - plain.shape[1]
        assert strip > 20 and torch.equal(whole[:, strip:], plain)  # nothing over the image
        assert close(whole[:, 0, -1], PAPER) and whole[:, :strip].amin() < 60
    assert not torch.equal(few, many)
    assert torch.equal(figure(photo(), density, 8), figure(photo(), density, 8, count=float(density.sum())))
    assert torch.equal(figure(photo(), points=points, headed=False), plain)


def test_a_narrow_picture_gets_a_strip_that_is_wide_enough() -> None:
    drawn = figure(photo(800, 20), points=torch.zeros(0, 2), name="line\nbreak\udcff" + "n" * 300)
    assert 200 < drawn.shape[2] < 600 and close(drawn[:, -1, -1], PAPER)
    assert torch.equal(drawn[:, -800:, :20], photo(800, 20))


@pytest.mark.parametrize(
    ("size", "limits", "expected"),
    [
        ((256, 256), (1600, 768), 3),
        ((768, 500), (1600, 768), 1),
        ((500, 767), (1600, 768), 2),
        ((10, 20), (1600, 768), 8),  # not into mere squares
        ((400, 400), (700, 768), 1),
        ((400, 400), (None, None), 1),
        ((3200, 400), (1600, 768), 0.5),
    ],
)
def test_small_images_are_drawn_larger(
    size: tuple[int, int], limits: tuple[int | None, int | None], expected: float
) -> None:
    assert factor(size, *limits) == expected


def test_a_larger_picture_has_its_marks_in_the_same_places() -> None:
    density = torch.zeros(15, 25)
    density[10, 20] = 1.0
    picture = enlarged(photo(), density, 8, torch.tensor([[60.5, 80.5]]))
    assert picture.shape == (3, 480, 800)
    assert close(picture[:, 322, 242], PREDICTED)
    assert (picture[:, 84 * 4, 164 * 4].int() - 128).abs().max() > 60


def test_the_bar_tells_objects_per_square_of_the_image() -> None:
    """One object in each cell of 8 × 8 px are 156.25 in 100 × 100 px, however large the picture is."""
    told: list[float] = []

    def spy(height: int, column: Any, full: float, above: bool, text: int) -> Any:
        told.append(full)
        return bar(height, column, full, above, text)

    density = torch.ones(15, 25)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("papm.draw.bar", spy)
        small = figure(photo(), density, 8, headed=False)
        figure(photo(), torch.ones(2, 15, 25) / 2, 8, max_side=100)
    assert told == [pytest.approx(156.25)] * 2 and full_scale(density) == pytest.approx(1)
    assert small.shape[1] == 480 and 850 < small.shape[2] < 950
    colour = enlarged(photo(), density, 8)[:, 240, 400].tolist()
    shown = small[:, 18 : 480 - 18, 800 + 15]
    assert close(shown[:, 1], tuple(colour), 8) and close(
        shown[:, -1], (128, 128, 128), 8
    )  # full at the top, none below


@given(st.floats(1e-6, 1e6))
def test_ticks_are_round_and_a_few(full: float) -> None:
    at = ticks(full)
    assert 2 <= len(at) <= 6 and at[0] == 0 and at[-1] <= full * (1 + 1e-6)
    assert all(float(f"{v:.2g}") == v for v in at)


def test_classes_have_colours_of_their_own() -> None:
    points, labels = torch.tensor([[60.5, 80.5], [150.5, 100.5], [torch.nan, 1.0]]), torch.tensor([0, 1, 1])
    picture = overlay(photo(), points=points, labels=labels)
    assert close(picture[:, 80, 60], PREDICTED) and close(picture[:, 100, 150], class_colour(1))
    told = figure(photo(), points=points, labels=labels, classes=[("a", 1.0), ("b", 2.0)])
    strip = told[:, :-480].flatten(1).T
    for k in (0, 1):
        assert any(close(pixel, class_colour(k)) for pixel in strip)
    assert class_colour(0) != class_colour(1) != INK


def test_a_frame_keeps_its_size_and_says_its_count() -> None:
    frame = stamped(photo(), 3.0)
    assert frame.shape == photo().shape and torch.equal(frame[:, 60:], photo()[:, 60:])
    assert not torch.equal(frame, stamped(photo(), 4.0))


def test_numbers_for_people() -> None:
    assert [number(c) for c in (0.0, 7, 7.25, 99.96, 100.4, 12345.6)] == ["0", "7", "7.2", "100.0", "100", "12,346"]
    assert number(float("inf")) == "inf"


def test_a_grey_image_is_drawn_on() -> None:
    assert overlay(photo()[:1], torch.rand(15, 25), 8).shape == (3, 120, 200)


def test_panel_lines_pictures_up() -> None:
    strip = panel([photo(100, 200, 10), photo(50, 50, 200)], ["left", "right " * 40])
    assert strip.shape[0] == 3 and strip.dtype == torch.uint8
    height, width = strip.shape[1:]
    assert width > 100 + 50 and height > 50
    assert close(strip[:, -1, 0], (10, 10, 10)) and close(strip[:, -1, -1], (200, 200, 200))
    assert strip[:, : height - 50].float().mean() > 200  # the bar is white with a little text
    assert strip[:, : height - 50, :100].min() < 100
    assert panel([photo(100, 200)], ["x"], height=30).shape[2] == 60


def test_png_round_trip(tmp_path: Path) -> None:
    image = torch.randint(0, 256, (3, 20, 30), dtype=torch.uint8)
    path = save_png(image, tmp_path / "made" / "x.png")
    with Image.open(path) as back:
        assert back.format == "PNG"
        assert np.array_equal(np.asarray(back).transpose(2, 0, 1), image.numpy())
    assert [p.name for p in path.parent.iterdir()] == ["x.png"]


def test_faults_are_named() -> None:
    with pytest.raises(DataError, match="uint8"):
        overlay(photo().float())
    with pytest.raises(DataError, match=r"\[3, H, W\]"):
        overlay(photo()[0])
    with pytest.raises(DataError, match="one title"):
        panel([photo()], [])


def test_the_colours_are_those_of_turbo() -> None:
    """Those that matplotlib 3.11 has at these places of 256."""
    turbo = {0: (48, 18, 59), 64: (40, 188, 235), 128: (164, 252, 60), 191: (251, 129, 34), 255: (122, 4, 3)}
    places = torch.tensor([[(k + 0.5) / 255 for k in turbo]])
    colours, _ = coloured(places ** (4 / 3))
    assert np.abs(colours[0] - np.array(list(turbo.values()))).max() < 1
