"""Tiles: every cell once, the result of the whole image for what is local, large images without their floats."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from papm import localize, models
from papm.checkpoint import ModelSpec
from papm.errors import ConfigError
from papm.imagenet import normalize
from papm.inference import Inference
from papm.models import Network
from papm.predict import tiling
from papm.predict.predictor import Counter
from papm.predict.tiling import Limits, check, infer, side_of, windows, zones
from papm.structures import DensityOutput, PointProposals

SMALL = ("tiny", "mcnn")
LOCAL = ["tiny", "mcnn", "csrnet", "vgg19"]


def picture(h: int, w: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (3, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def network(name: str, **options: Any) -> Network:
    torch.manual_seed(0)
    made = models.create(name, **options).eval()
    for layer in made.modules():  # fresh heads are so small that every cell would look alike
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    return made


# --- geometry ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.integers(1, 700), st.integers(1, 700), st.integers(0, 70), st.sampled_from([4, 8, 16, 32]), st.integers(0, 300)
)
def test_zones_keep_every_pixel_once_with_enough_around(h: int, w: int, reach: int, multiple: int, more: int) -> None:
    margin = -(-reach // multiple) * multiple
    side = 2 * margin + multiple + more
    cover = torch.zeros(h, w, dtype=torch.int32)
    for zone in zones((h, w), side, reach, multiple):
        (top, bottom, left, right), (first, last, begin, end) = zone.seen, zone.kept
        cover[first:last, begin:end] += 1
        assert max(bottom - top, right - left) <= side
        assert top % multiple == left % multiple == first % multiple == begin % multiple == 0
        assert top == 0 or first - top >= reach
        assert left == 0 or begin - left >= reach
        assert bottom == h or bottom - last >= reach
        assert right == w or right - end >= reach
    assert (cover == 1).all()


@settings(max_examples=60)
@given(st.integers(1, 700), st.integers(1, 700), st.sampled_from([16, 48, 256]), st.sampled_from([8, 16]))
def test_windows_keep_every_pixel_once_and_lie_inside(h: int, w: int, side: int, multiple: int) -> None:
    cover = torch.zeros(h, w, dtype=torch.int32)
    for zone in windows((h, w), side, multiple):
        (top, bottom, left, right), (first, last, begin, end) = zone.seen, zone.kept
        cover[first:last, begin:end] += 1
        assert 0 <= top <= first < last <= bottom <= h and 0 <= left <= begin < end <= right <= w
        assert side - multiple < bottom - top <= side or bottom - top == h
        assert side - multiple < right - left <= side or right - left == w
    assert (cover == 1).all()


@torch.no_grad()
def test_a_network_of_windows_sees_what_it_saw_in_training() -> None:
    made = network("tiny")
    made.inference = Inference(window=64)
    image = picture(64, 96)
    floats = normalize(image[None])
    found = infer(made, image)
    assert isinstance(found, DensityOutput)
    first, last = (made.forward(floats[..., x : x + 64]).density for x in (0, 32))
    half = 32 // found.stride
    torch.testing.assert_close(found.density, torch.cat([first, last[..., half:]], -1))
    # What is smaller than a window is filled up with the mean colour.
    small = infer(made, image[:, :40, :50])
    assert isinstance(small, DensityOutput)
    padded = made.forward(nn.functional.pad(floats[..., :40, :50], (0, 14, 0, 24))).density
    torch.testing.assert_close(small.density, padded[..., : small.density.shape[-2], : small.density.shape[-1]])
    # A tile that is asked for, or none, goes before.
    whole = infer(made, image, tile="none")
    assert isinstance(whole, DensityOutput)
    torch.testing.assert_close(whole.density, made.forward(floats).density)


def test_a_tile_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a tile of 100 px leaves nothing to keep: .* use at least 144"):
        zones((500, 500), 100, 63, 16)
    assert zones((500, 500), 144, 63, 16)


@pytest.mark.parametrize("wrong", ["", "big", "-5", "0", 0, -3, True, "1.5", None])
def test_tile_is_auto_none_or_a_side(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="tile is auto, none or a side in pixels"):
        check(wrong)


def test_what_is_small_is_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network("tiny")
    monkeypatch.setitem(tiling.LIMITS, "cpu", Limits(10_000, 256))
    assert side_of(net, (100, 100)) is None and side_of(net, (100, 101)) == 256
    assert side_of(net, (1, 312)) is None and side_of(net, (1, 313)) == side_of(net, (313, 1)) == 256  # padded
    assert side_of(net, (9999, 9999), "none") is None
    assert side_of(net, (300, 200), 300) is None and side_of(net, (301, 20), "300") == 300
    man = models.create("msfanet")
    assert man.receptive_field is None and side_of(man, (3000, 3000)) is None
    assert side_of(man, (9000, 9000)) == tiling.APPROXIMATE.side


# --- what is found ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n if n in SMALL else pytest.param(n, marks=pytest.mark.slow) for n in LOCAL])
def test_tiles_of_a_local_network_give_the_map_of_the_whole(name: str) -> None:
    net = network(name, activation="abs")
    assert net.receptive_field is not None
    margin = -(-net.receptive_field // net.multiple) * net.multiple
    side = 2 * margin + 4 * net.multiple
    # VGGs are slow and see far: a strip for them, cut along one side
    image = picture(side + 37 if name in SMALL else 37, side + 3 * net.multiple + 5)
    whole, cut = infer(net, image, "none"), infer(net, image, side)
    assert isinstance(whole, DensityOutput) and isinstance(cut, DensityOutput) and cut.stride == whole.stride
    cuts = len(zones((image.shape[1], image.shape[2]), side, net.receptive_field, net.multiple))
    assert cuts >= (4 if name in SMALL else 2)
    largest = float(whole.density.max())
    torch.testing.assert_close(cut.density, whole.density, rtol=1e-4, atol=1e-5 * largest)
    assert float(cut.density.sum()) == pytest.approx(float(whole.density.sum()), rel=1e-5)
    assert float(whole.density.std()) > 0.01 * largest  # the comparison says something


@pytest.mark.parametrize("stride", [2, 4])
def test_fine_maps_in_tiles(stride: int) -> None:
    net = network("tiny", stride=stride)
    image = picture(301, 333)
    whole, cut = infer(net, image, "none"), infer(net, image, 224)
    assert isinstance(whole, DensityOutput) and isinstance(cut, DensityOutput)
    torch.testing.assert_close(cut.density, whole.density, rtol=1e-4, atol=1e-4 * float(whole.density.max()))


def test_less_overlap_than_the_receptive_field_would_be_wrong() -> None:
    """The margin is needed: with half of it the maps differ."""
    net = network("tiny")
    assert net.receptive_field is not None
    image = picture(301, 333)
    whole = infer(net, image, "none")
    net.receptive_field //= 4
    cut = infer(net, image, 224)
    assert isinstance(whole, DensityOutput) and isinstance(cut, DensityOutput)
    assert not torch.allclose(cut.density, whole.density, rtol=1e-4, atol=1e-4 * float(whole.density.max()))


@pytest.mark.parametrize("size", [(401, 333), (64, 900)])
def test_points_in_tiles_are_those_of_the_whole(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    net = models.create("p2pnet", trunk="tiny").eval()
    nn.init.normal_(net.classes.output.weight, std=0.5)  # type: ignore[union-attr, arg-type]
    nn.init.normal_(net.offsets.output.weight, std=0.02)  # type: ignore[union-attr, arg-type]
    image = picture(*size)
    whole, cut = infer(net, image, "none"), infer(net, image, 256)
    assert isinstance(whole, PointProposals) and isinstance(cut, PointProposals)
    order = [r.double() @ torch.tensor([1.0, 1e5], dtype=torch.float64) for r in (whole.reference, cut.reference)]
    first, second = (o.argsort() for o in order)
    assert torch.equal(whole.reference[first], cut.reference[second])
    torch.testing.assert_close(cut.points[0, second], whole.points[0, first], rtol=0, atol=1e-2)
    torch.testing.assert_close(cut.logits[0, second], whole.logits[0, first], rtol=1e-3, atol=1e-3)
    found, wanted = (localize.from_proposals(p, 0)[0] for p in (cut, whole))
    assert 0 < len(wanted) < len(whole.reference) and len(found) == len(wanted)


def test_what_looks_at_the_whole_image_is_cut_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Mean(nn.Module):
        """A map of the distance to the mean colour: every cell needs all pixels."""

        multiple, stride, receptive_field = 8, 8, None

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, images: Tensor) -> DensityOutput:
            cells = nn.functional.avg_pool2d(images.mean(1, keepdim=True), 8, ceil_mode=True)
            return DensityOutput(self.weight * (cells - cells.mean()).abs(), 8)

    tiling._say_approximate.cache_clear()
    with caplog.at_level(logging.WARNING):
        found = infer(Mean(), picture(640, 1400), 700)
        infer(Mean(), picture(640, 1400), 700)
    assert isinstance(found, DensityOutput) and found.density.shape == (1, 1, 80, 175)
    assert caplog.text.count("looks at the whole image") == 1


def test_the_counter_hears_of_tiles_and_gives_whole_image_coordinates() -> None:
    net = network("tiny")
    image = picture(200, 500)
    image[:, :, :250] = 124  # all is on the right
    heard: list[tuple[int, int]] = []
    whole = Counter(net, ModelSpec("tiny"), "cpu", "none").predict(image)
    cut = Counter(net, ModelSpec("tiny"), "cpu", 192).predict(image, on_tile=lambda *at: heard.append(at))
    assert heard == [(k + 1, len(heard)) for k in range(len(heard))] and len(heard) > 4
    assert cut.count == pytest.approx(whole.count, rel=1e-5) and cut.size == whole.size
    assert cut.points is not None and whole.points is not None and len(cut.points) == len(whole.points)
    with pytest.raises(ConfigError, match="tile is auto"):
        Counter(net, ModelSpec("tiny"), "cpu", "huge")


def test_only_a_tile_becomes_floats() -> None:
    seen: list[int] = []

    class Watched(nn.Module):
        receptive_field, multiple, stride = 8, 8, 8

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, images: Tensor) -> DensityOutput:
            seen.append(images.shape[-1] * images.shape[-2])
            return DensityOutput(nn.functional.avg_pool2d(images[:, :1], 8, ceil_mode=True) * 0, 8)

    found = infer(Watched(), torch.zeros(3, 2300, 2300, dtype=torch.uint8))  # over the CPU's limit
    assert isinstance(found, DensityOutput) and found.density.shape[-2:] == (288, 288)
    assert len(seen) > 4 and max(seen) <= 1024**2
