"""Sizes by rule: bounds hold, geometry goes along, what is published stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from papm import data
from papm.data.resize import OPTIONS, USUAL, Resize, resized, resolved, take
from papm.errors import ConfigError, DataError
from papm.images import resize_image
from papm.structures import Sample

sides = st.integers(1, 6000)
bound = st.sampled_from([0, 64, 500, 1024, 2048])


@st.composite
def rules(draw: st.DrawFn) -> Resize:
    try:
        return Resize(draw(bound), draw(bound), draw(bound), draw(bound))
    except ConfigError:
        return Resize(min_side=100, max_side=1000)


@settings(max_examples=150, deadline=None)
@given(rules(), sides, sides)
def test_bounds_hold_and_a_second_time_changes_nothing(rule: Resize, h: int, w: int) -> None:
    size = rule.size(h, w)
    assert rule.size(*size) == size
    short, long = sorted(size)
    if rule.max_side:
        assert long <= rule.max_side
    if rule.min_side and (not rule.max_side or long < rule.max_side):
        assert short >= rule.min_side
    if rule.min_long_side:
        assert long >= rule.min_long_side
    if not rule:
        assert size == (h, w)
    # proportions to within the rounding of the short side
    scale = long / max(h, w)
    assert abs(min(h, w) * scale - short) <= 0.5 + 0.5 * min(h, w) / max(h, w) or short == 1


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("ucf-qnrf", (400, 600), (512, 768)),
        ("ucf-qnrf", (4096, 8192), (2048, 4096)),
        ("ucf-qnrf", (900, 3000), (900, 3000)),
        ("jhu-crowd", (3000, 3000), (2048, 2048)),
        ("nwpu", (576, 768), (1440, 1920)),
        ("nwpu", (4000, 3000), (1920, 1440)),
        ("dota", (4000, 4000), (1024, 1024)),
        ("shanghaitech-a", (200, 3000), (200, 3000)),
    ],
)
def test_the_usual_sizes(name: str, size: tuple[int, int], expected: tuple[int, int]) -> None:
    assert take(name, {"resize": "usual"})[0].size(*size) == expected


def test_options() -> None:
    assert take("nwpu", {"annotation": "mat"}) == (Resize(), {"annotation": "mat"})
    assert take("nwpu", {"resize": "usual", "max_side": 2048})[0] == Resize(max_side=2048, min_long_side=1920)
    assert take("folder", {"resize": "usual"})[0] == Resize()
    assert resolved("nwpu", {"resize": "usual"}) == {"max_side": 1920, "min_long_side": 1920}
    assert resolved("nwpu", resolved("nwpu", {"resize": "usual"})) == resolved("nwpu", {"resize": "usual"})
    for rule in USUAL.values():
        assert rule
    for wrong in ({"resize": "big"}, {"max_side": "wide"}, {"max_side": 3}, {"max_side": 100.5}, {"min_side": True}):
        with pytest.raises(ConfigError):
            take("folder", wrong)
    with pytest.raises(ConfigError, match=r"min_side=512 is more than max_side=256"):
        take("folder", {"min_side": 512, "max_side": 256})


def region() -> torch.Tensor:
    mask = torch.zeros(60, 100, dtype=torch.bool)
    mask[:, 50:] = True
    return mask


def sample_of(path: Path) -> Sample:
    return Sample(
        "a",
        path,
        torch.tensor([[10.0, 20.0], [99.99999, 59.99999], [200.0, -5.0], [49.9, 1.0]]),
        (60, 100),
        labels=torch.arange(4),
        boxes=torch.tensor([[0.0, 10.0, 20.0, 30.0]]).repeat(4, 1),
        extents=torch.full((4,), 20.0),
        roi_source=region,
        annotations={"b": torch.tensor([[10.0, 20.0]])},
    )


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 100, 3), dtype=np.uint8)).save(path)
    return path


@pytest.mark.parametrize("size", [(30, 50), (120, 200), (33, 50)])
def test_everything_goes_along(photo: Path, size: tuple[int, int]) -> None:
    before = sample_of(photo)
    after = resized(before, size)
    factor = torch.tensor([size[1] / 100, size[0] / 60])
    assert after.size == size and after.image.shape == (3, *size) and after.path is None
    assert torch.allclose(after.points[[0, 2, 3]], before.points[[0, 2, 3]] * factor)
    assert torch.equal(after.inside, before.inside), "no point crosses the border"
    assert after.count == before.count == 4 and torch.equal(after.labels, before.labels)  # type: ignore[arg-type]
    assert torch.allclose(after.boxes, before.boxes * factor.repeat(2))  # type: ignore[arg-type,operator]
    assert torch.allclose(after.extents, before.extents * factor.prod().sqrt())  # type: ignore[arg-type,operator]
    assert after.roi is not None and after.roi.shape == size
    assert not after.roi[:, : size[1] // 2].any() and after.roi[:, -(size[1] // 2) :].all()
    assert torch.allclose(after.annotations["b"], before.annotations["b"] * factor)
    assert after.original is before and after.published is before and before.published is before
    assert after.published.counted.tolist() == before.counted.tolist()
    fewer = after.keep(torch.tensor([True, False, False, True]))
    assert fewer.count == 2 and fewer.published.count == 2
    again = resized(after, (60, 100))
    assert again.original is before and torch.allclose(again.points, before.points, atol=1e-4)


def test_rounding_carries_no_point_across_the_border(photo: Path) -> None:
    """The number before 1000 times 16/1000 is 16 in float32, and so for a quarter of all sizes."""
    edge = torch.nextafter(torch.tensor([1000.0, 1000.0]), torch.zeros(2))
    sample = Sample("a", photo, edge[None], (1000, 1000))
    for side in range(16, 1000, 7):
        after = resized(sample, (side, side))
        assert after.inside.all() and float((after.points - side).abs().max()) < 1e-3


def test_shrinking_is_antialiased_and_growing_keeps_flat_areas() -> None:
    stripes = torch.zeros(3, 64, 64, dtype=torch.uint8)
    stripes[:, :, ::2] = 255
    small = resize_image(stripes, (16, 16))[:, 2:-2, 2:-2]
    assert ((small.float() - 127.5).abs() < 3).all(), "without antialiasing it would be black or white"
    assert (resize_image(torch.full((3, 5, 7), 9, dtype=torch.uint8), (50, 70)) == 9).all()
    assert resize_image(stripes, (64, 64)) is stripes


def test_a_blob_stays_under_its_point() -> None:
    """Pixel centres: the centroid of what is drawn moves as the point does."""
    image = torch.zeros(3, 80, 120, dtype=torch.uint8)
    image[:, 20:28, 40:52] = 255
    point = torch.tensor([46.0, 24.0])
    for size in ((40, 60), (160, 240), (53, 80)):
        weight = resize_image(image, size)[0].double()
        y, x = torch.meshgrid(*(torch.arange(n) + 0.5 for n in size), indexing="ij")
        centroid = torch.stack([(weight * x).sum(), (weight * y).sum()]) / weight.sum()
        expected = point * torch.tensor([size[1] / 120, size[0] / 80])
        assert torch.allclose(centroid.float(), expected, atol=0.05)


def test_opening_with_a_size(photo: Path) -> None:
    photo.with_suffix(".txt").write_text("10 20\n")
    opened = data.open("folder", photo.parent, max_side=50)["all"]
    assert opened[0].size == (30, 50) and opened[0].points.tolist() == [[5.0, 10.0]]
    assert opened[0].published.points.tolist() == [[10.0, 20.0]]
    assert opened.name == "folder" and opened.split == "all" and opened.root == photo.parent
    plain = data.open("folder", photo.parent)["all"][0]
    assert plain.size == (60, 100) and plain.original is None
    drawn = data.open("synthetic", train=1, test=1, size=64, max_side=32)["train"][0]
    assert drawn.size == (32, 32) and drawn.image.shape == (3, 32, 32)
    with pytest.raises(ConfigError, match=r"unknown option.*'max_sid'; did you mean 'max_side'"):
        data.open("folder", photo.parent, max_sid=50)
    assert set(OPTIONS) == {"resize", "min_side", "max_side", "max_short_side", "min_long_side"}


def test_the_limit_of_pixels_holds_after_resizing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Resize(min_side=512)
    assert rule.size(1, 100) == (512, 51_200)
    with pytest.raises(DataError, match=r"strip\.png: 5000×1 pixels would be enlarged to 2560000×512"):
        rule.size(1, 5000, "strip.png")
    monkeypatch.setenv("PAPM_MAX_PIXELS", "1000")
    assert Resize(max_side=4000).size(4000, 5000) == (
        3200,
        4000,
    )  # what was read is never refused for being made smaller
