from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from papm.draw import coloured, number, overlay, panel, save_png
from papm.errors import DataError
from papm.marks import PREDICTED, TRUTH


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
    assert torch.equal(overlay(photo(), density, 8, alpha=0.0)[:, 40:], photo()[:, 40:])


def test_a_map_without_mass_or_with_broken_values_draws_nothing() -> None:
    for density in (torch.zeros(15, 25), torch.full((15, 25), torch.nan), torch.full((15, 25), -1.0)):
        assert torch.equal(overlay(photo(), density, 8)[:, 40:], photo()[:, 40:])


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


def test_the_count_is_written_in_the_corner() -> None:
    def corner(picture: Tensor) -> Tensor:
        return picture[:, :40, :110]

    few, many = overlay(photo(), count=3.0), overlay(photo(), count=98765.0)
    assert not torch.equal(corner(few), corner(photo()))
    assert not torch.equal(corner(few), corner(many))
    assert torch.equal(few[:, 60:], photo()[:, 60:])
    density = torch.full((15, 25), 3.0 / 375)
    assert torch.equal(
        overlay(photo(), density, 8, alpha=0.0), overlay(photo(), density, 8, alpha=0.0, count=density.sum())
    )


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


@pytest.mark.parametrize("free", ["top left", "top right", "bottom left", "bottom right"])
def test_the_count_stands_where_it_hides_the_fewest_points(free: str) -> None:
    image = torch.full((3, 200, 300), 128, dtype=torch.uint8)
    corners = {"top left": (0, 0), "top right": (0, 1), "bottom left": (1, 0), "bottom right": (1, 1)}
    taken = [xy for name, xy in corners.items() if name != free]
    points = torch.tensor([[20.0 + 260 * x, 15.0 + 170 * y] for y, x in taken])
    plain, drawn = (overlay(image, points=points, count=3, label=label) for label in (False, True))
    rows, columns = (plain != drawn).any(0).nonzero().unbind(1)
    assert bool((rows > 100).all()) == (corners[free][0] == 1) and bool((columns > 150).all()) == (
        corners[free][1] == 1
    )
    fixed = overlay(image, points=points, count=3, corner="bottom right")
    rows, columns = (plain != fixed).any(0).nonzero().unbind(1)
    assert int(rows.min()) > 100 and int(columns.min()) > 150
