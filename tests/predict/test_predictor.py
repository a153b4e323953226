"""Counting in an image: the count is the sum of the map, from a file or from pixels, whatever the size."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import papm
from papm import checkpoint, imagenet, models
from papm.checkpoint import ModelSpec
from papm.data.resize import Resize
from papm.engine import train as engine
from papm.engine.build import resolve
from papm.errors import CheckpointError, ConfigError, DataError
from papm.inference import Inference
from papm.predict.ensemble import Ensemble
from papm.predict.outputs import class_counts, counts, objects
from papm.predict.predictor import Counter, infer, pick_device
from papm.structures import DensityOutput, PointProposals, Sample


def counter(stride: int = 4) -> Counter:
    torch.manual_seed(0)
    return Counter(models.create("tiny", stride=stride), ModelSpec("tiny", {"stride": stride}), "cpu")


def picture(h: int = 45, w: int = 70) -> Tensor:
    return torch.randint(0, 256, (3, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", [(45, 70), (64, 64), (1, 1), (3, 200)])
@pytest.mark.parametrize("stride", [2, 8])
def test_the_count_is_the_sum_of_the_map(size: tuple[int, int], stride: int) -> None:
    found = counter(stride).predict(picture(*size))
    assert found.density is not None and found.density.dtype == torch.float32 and not found.density.requires_grad
    assert found.density.shape == (1, -(-size[0] // stride), -(-size[1] // stride))
    assert (found.size, found.stride) == (size, stride)
    assert found.count == pytest.approx(float(found.density.double().sum()), rel=1e-5)


def test_it_is_the_network_on_the_normalised_image() -> None:
    made = counter()
    image = picture()
    expected = made.network(imagenet.normalize(image)[None]).density[0]
    found = made.predict(image).density
    assert found is not None and torch.equal(found, expected)
    assert not made.network.training


def test_normalisation_is_imagenets() -> None:
    image = picture(4, 5)
    expected = (image.numpy().astype(np.float64) / 255 - np.array([0.485, 0.456, 0.406])[:, None, None]) / np.array(
        [0.229, 0.224, 0.225]
    )[:, None, None]
    found = imagenet.normalize(image)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)
    assert torch.equal(imagenet.normalize(image[None].repeat(2, 1, 1, 1))[1], found)


def test_a_file_is_its_pixels(tmp_path: Path) -> None:
    image = picture()
    path = tmp_path / "crowd.png"
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    made = counter()
    for given in (path, str(path)):
        found = made.predict(given)
        assert found.name == "crowd.png" and found.count == made.predict(image).count
    assert made.predict(path, name="mine").name == "mine" and made.predict(image).name == ""


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "I;16", "turned"])
def test_a_pillow_image_is_read_as_its_file_would_be(tmp_path: Path, mode: str) -> None:
    """Grey, transparent, of few colours or of 16 bits; and a photograph of a camera that was held upright."""
    path, rgb = tmp_path / "a.png", Image.fromarray(picture().permute(1, 2, 0).numpy())
    if mode == "I;16":
        Image.fromarray(np.asarray(rgb.convert("L"), dtype=np.uint16) * 257).save(path)
    elif mode == "turned":
        exif = Image.Exif()
        exif[274] = 6
        rgb.save(path, exif=exif)
    else:
        rgb.convert(mode).save(path)
    with Image.open(path) as image:
        made = counter().predict(image)
    wanted = counter().predict(path)
    assert made.size == wanted.size and made.count == wanted.count


def test_a_damaged_pillow_image_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(picture(200, 300).permute(1, 2, 0).numpy()).save(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with Image.open(path) as image, pytest.raises(DataError, match="cannot be decoded"):
        counter().predict(image)


def test_points_lie_in_the_image_and_may_be_left_out() -> None:
    made = counter()
    found = made.predict(picture())
    assert found.points is not None and found.scores is not None
    assert len(found.points) == len(found.scores) <= max(1, round(found.count))
    assert (found.points >= 0).all() and (found.points[:, 0] < 70).all() and (found.points[:, 1] < 45).all()
    without = made.predict(picture(), points=False)
    assert without.points is None and without.count == found.count


@pytest.mark.parametrize(
    "image",
    [
        torch.zeros(3, 4, 5),
        torch.zeros(1, 4, 5, dtype=torch.uint8),
        torch.zeros(4, 5, dtype=torch.uint8),
        torch.zeros(1, 3, 4, 5, dtype=torch.uint8),
        torch.zeros(3, 0, 5, dtype=torch.uint8),
    ],
)
def test_what_is_no_image_is_refused(image: Tensor) -> None:
    with pytest.raises(DataError, match=r"an image is uint8 \[3, H, W\], not"):
        counter().predict(image)


def test_files_that_are_no_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such image file"):
        counter().predict(tmp_path / "none.jpg")
    (tmp_path / "a.jpg").write_text("x")
    with pytest.raises(DataError, match=r"a\.jpg"):
        counter().predict(tmp_path / "a.jpg")


def test_load_takes_a_file_a_folder_and_text(tmp_path: Path) -> None:
    made = counter()
    checkpoint.save(tmp_path / "best.ckpt", made.spec, made.network.state_dict())
    image = picture()
    for path in (tmp_path / "best.ckpt", tmp_path, str(tmp_path)):
        loaded = papm.Counter.load(path, device="cpu")
        assert loaded.predict(image).count == made.predict(image).count and loaded.spec == made.spec
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        Counter.load(tmp_path / "other.ckpt")


def test_devices() -> None:
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ConfigError, match="'gpu5' is no device"):
        pick_device("gpu5")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            pick_device("cuda")


# --- point networks ---------------------------------------------------------------------------------------------------


THRESHOLD, EXPECTED = Inference(decode="threshold"), Inference(decode="expected")


class Dots(nn.Module):
    """A point network that always sees the same: two sure objects and an unsure one."""

    def __init__(self) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1))
        self.inference = THRESHOLD

    def forward(self, images: Tensor) -> PointProposals:
        points = torch.tensor([[[3.0, 4.0], [20.0, 10.0], [9.0, 9.0]]])
        score = torch.tensor([[3.0, 2.0, -2.0]])
        logits = torch.stack([torch.zeros(1, 3), score], -1)
        return PointProposals(points, logits, points[0])


def test_a_point_network_counts_its_points() -> None:
    found = Counter(Dots(), ModelSpec("dots"), "cpu").predict(picture())  # type: ignore[arg-type]
    assert found.count == 2 and found.points is not None and found.scores is not None and found.labels is not None
    assert found.points.tolist() == [[3.0, 4.0], [20.0, 10.0]] and found.labels.tolist() == [0, 0]
    assert found.scores.tolist() == pytest.approx(torch.tensor([3.0, 2.0]).sigmoid().tolist())


def test_counts_of_a_batch() -> None:
    density = torch.rand(3, 2, 4, 5)
    assert torch.allclose(counts(DensityOutput(density, 8), Inference()), density.sum((1, 2, 3)))
    logits = torch.tensor([[[0.0, 4.0], [0.0, -4.0]], [[0.0, 4.0], [0.0, 4.0]]])
    proposals = PointProposals(torch.zeros(2, 2, 2), logits, torch.zeros(2, 2))
    assert counts(proposals, THRESHOLD).tolist() == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0])
def test_the_sum_of_chances_is_the_count_that_was_learned(weight: float) -> None:
    """Scores that make the weighted cross-entropy least, found by descent, give back how often a proposal was an object."""
    often = torch.tensor([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05]])  # background and two classes, of two kinds of proposals
    logits = torch.zeros(2, 3, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-9)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -(often * torch.tensor([weight, 1.0, 1.0]) * logits.log_softmax(-1)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    made = PointProposals(torch.zeros(1, 2, 2), logits.detach()[None], torch.zeros(2, 2))
    contract = Inference(decode="expected", background=weight)
    torch.testing.assert_close(made.probabilities(weight)[0], often[:, 1:], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(counts(made, contract), often[:, 1:].sum()[None], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(class_counts(made, contract)[0], often[:, 1:].sum(0), rtol=1e-3, atol=1e-4)


def test_chances_are_counted_and_scores_are_not() -> None:
    logits = torch.zeros(2, 5, 2)
    logits[0, :, 1] = torch.tensor([-1.0, 0.5, -0.2, 3.0, -9.0])  # chances 0.16, 0.45, 0.29, 0.91, 0.00: 1.8 in all
    logits[1, :, 1] = -30.0
    made = PointProposals(torch.rand(2, 5, 2), logits, torch.rand(5, 2))
    assert counts(made, EXPECTED).tolist() == pytest.approx([1.807, 0.0], abs=1e-3)
    assert objects(made).tolist() == [[False, True, False, True, False], [False] * 5]
    assert counts(made, THRESHOLD).tolist() == [2, 0]
    left = torch.ones(1, 1, dtype=torch.bool)
    assert float(counts(made, EXPECTED, ~left)[0]) == 0
    assert counts(made, EXPECTED, left).tolist() == counts(made, EXPECTED).tolist()
    sure = dataclasses.replace(made, logits=torch.full((2, 5, 2), 50.0).cumsum(-1))
    assert torch.isfinite(sure.probabilities(0.0)).all()


def test_a_counter_counts_as_its_network_was_trained_or_as_asked() -> None:
    dots = Dots()
    plain = Counter(dots, ModelSpec("dots"), "cpu").predict(picture())  # type: ignore[arg-type]
    chances = Counter(dots, ModelSpec("dots"), "cpu", count="expected").predict(picture())  # type: ignore[arg-type]
    assert plain.count == 2 and chances.count == pytest.approx(0.909 + 0.787 + 0.063, abs=1e-3)
    assert chances.points is not None and len(chances.points) == 2
    with pytest.raises(ConfigError, match="way to count points"):
        Counter(dots, ModelSpec("dots"), "cpu", count="guess")  # type: ignore[arg-type]


@pytest.mark.parametrize("count", ["points", "expected"])
@pytest.mark.parametrize("classes", [(), ("cells", "debris")])
def test_points_that_nobody_asked_for_are_not_looked_for(
    monkeypatch: pytest.MonkeyPatch, count: str, classes: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    network = models.create("p2pnet", trunk="tiny", num_classes=max(1, len(classes)))
    torch.nn.init.normal_(network.classes.output.weight)  # scores that differ
    made = Counter(
        network, ModelSpec("p2pnet", inference=Inference(decode="threshold", classes=classes)), "cpu", count=count
    )
    found = made.predict(picture())
    assert found.points is not None and found.count > 0
    for name in ("papm.localize.expected_points", "papm.localize.from_proposals"):
        monkeypatch.setattr(name, lambda *_: pytest.fail("points were looked for"))
    without = made.predict(picture(), points=False)
    assert without.points is without.scores is without.labels is None
    assert without.count == found.count and without.class_counts == found.class_counts
    assert len(found.class_counts) == len(classes)


def test_a_map_has_no_points_to_count_otherwise(caplog: pytest.LogCaptureFixture) -> None:
    made = Counter(models.create("tiny"), ModelSpec("tiny"), "cpu", count="points").predict(picture())
    assert made.density is not None and made.count == pytest.approx(float(made.density.sum()), rel=1e-4)
    assert "counts by the sum of its map" in caplog.text


@pytest.mark.parametrize(
    ("name", "count", "options"),
    [("tiny", None, {}), ("p2pnet", "expected", {"trunk": "tiny"}), ("p2pnet", "points", {"trunk": "tiny"})],
)
@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e38])
def test_counts_that_are_no_numbers_are_refused(
    name: str, count: str | None, options: dict[str, str], factor: float
) -> None:
    """Scores that are not numbers exceed no threshold: points would be counted as none."""
    made = Counter(models.create(name, **options), ModelSpec(name), "cpu", count=count)
    with torch.no_grad():
        for weights in made.network.parameters():
            weights.mul_(factor)
    for predict in (made.predict, Ensemble([made, made]).predict):
        for points in (True, False):
            with pytest.raises(CheckpointError, match=r"^hall\.jpg: the model's count is not a number"):
                predict(picture(), points=points, name="hall.jpg")


def test_how_points_are_counted_is_kept_with_the_model(tmp_path: Path) -> None:
    spec = "synthetic:train=4,test=3,size=64,count=3-9"
    given = {"data": spec, "network": {"trunk": "tiny"}, "steps": 2, "crop": 64, "batch": 2, "select": "last"}
    config = resolve("p2pnet", "p2pnet", {**given, "count": "expected", "loss": {"background_weight": 0.25}})
    made = engine.train(config, tmp_path / "run")
    network = Counter.load(tmp_path / "run").network
    assert network.inference.decode == "expected" and network.inference.background == 0.25
    assert Counter.load(tmp_path / "run", count="points").network.inference.decode == "threshold"
    assert made.result is not None
    by_count = made.result["mae_by_count"]
    assert by_count["expected"] == pytest.approx(made.result["mae"]) and set(by_count) == {"points", "expected"}
    image = torch.zeros(3, 90, 150, dtype=torch.uint8)
    whole, tiled = (
        Counter.load(tmp_path / "run", tile=t).predict(image).count for t in ("none", 64 + 2 * network.receptive_field)
    )
    assert tiled == pytest.approx(whole, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("tiny", {}), ("mcnn", {}), ("p2pnet", {"trunk": "tiny"})])
@pytest.mark.parametrize("tile", ["none", 400])
def test_half_precision_counts_nearly_the_same(name: str, options: dict[str, str], tile: int | str) -> None:
    torch.manual_seed(0)
    network, image = models.create(name, **options), picture(330, 410)
    exact, half = (
        Counter(network, ModelSpec(name), "cpu", tile, precision=p, count="expected" if name == "p2pnet" else None)
        for p in ("32", "bf16")
    )
    one, other = exact.predict(image), half.predict(image)
    assert other.count == pytest.approx(one.count, rel=0.02) and other.count != one.count
    if other.density is not None:
        assert other.density.dtype == torch.float32 and float(other.density.double().sum()) == pytest.approx(
            other.count
        )


def test_other_precisions_are_refused() -> None:
    with pytest.raises(ConfigError, match="precision"):
        Counter(models.create("tiny"), ModelSpec("tiny"), "cpu", precision="8")


def test_infer_keeps_no_gradient() -> None:
    output = infer(counter().network, picture())
    assert isinstance(output, DensityOutput) and not output.density.requires_grad


def test_counting_inside_a_region() -> None:
    """Cells that touch the region count, as in training; without one, or with all of the image, nothing changes."""
    density = torch.rand(1, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    output = DensityOutput(density, 8)
    whole = torch.ones(20, 30, dtype=torch.bool)  # 3 × 4 cells, the last ones partly beyond the image
    assert float(counts(output, Inference(), whole)) == pytest.approx(float(density.sum()))
    left = whole.clone()
    left[:, 12:] = False  # one and a half cells
    expected = density[..., :2].sum()
    assert float(counts(output, Inference(), left)) == pytest.approx(float(expected))
    assert float(counts(output, Inference(), ~whole)) == 0
    points = torch.tensor([[[3.0, 3.0], [20.0, 3.0], [11.9, 19.9]]])
    logits = torch.tensor([[[0.0, 9.0], [0.0, 9.0], [0.0, 9.0]]])
    proposals = PointProposals(points, logits, points[0])
    assert float(counts(proposals, THRESHOLD)) == 3 and float(counts(proposals, THRESHOLD, left)) == 2
    # Where a proposal lies, not where it began.
    moved = dataclasses.replace(proposals, reference=torch.tensor([[13.0, 3.0], [20.0, 3.0], [13.0, 19.0]]))
    assert float(counts(moved, THRESHOLD, left)) == 2


@pytest.mark.parametrize("resize", [None, {"max_side": 35}])
def test_predicting_inside_a_region(resize: dict[str, int] | None) -> None:
    """Count, map and points are of the region alone; parts that do not overlap by a cell add up to the whole."""
    made = counter(stride=2)
    if resize:
        made.resize = Resize(**resize)
    image = picture(48, 72)
    left = torch.zeros(48, 72, dtype=torch.bool)
    left[:, :36] = True
    whole, one, other = (made.predict(image, roi=roi) for roi in (None, left, ~left))
    assert one.count > 0 < other.count
    assert one.count + other.count == pytest.approx(whole.count, rel=1e-4 if resize is None else 0.1)
    assert one.density is not None and float(one.density.sum()) == pytest.approx(one.count, rel=1e-4)
    assert one.points is not None and bool((one.points[:, 0] < 37).all())
    assert made.predict(image, roi=torch.ones(48, 72, dtype=torch.bool)).count == pytest.approx(whole.count)
    with pytest.raises(DataError, match=r"a region of interest is bool \[48, 72\] for this image, not \[72, 48\]"):
        made.predict(image, roi=left.T)


def test_points_of_a_point_network_inside_a_region() -> None:
    roi = torch.zeros(45, 70, dtype=torch.bool)
    roi[:, :10] = True
    found = Counter(Dots(), ModelSpec("dots"), "cpu").predict(picture(), roi=roi)  # type: ignore[arg-type]
    assert found.points is not None
    assert found.count == 1 and found.points.tolist() == [[3.0, 4.0]]


def test_points_count_inside_their_region() -> None:
    region = torch.zeros(10, 10, dtype=torch.bool)
    region[:, :5] = True
    points = torch.tensor([[1.0, 1.0], [4.9, 9.9], [5.0, 1.0], [-3.0, 2.0]])
    sample = Sample("a", lambda: torch.zeros(3, 10, 10, dtype=torch.uint8), points, (10, 10), roi_source=lambda: region)
    assert sample.counted.tolist() == [True, True, False, False]
    assert Sample("b", sample.source, points, (10, 10)).counted.all()


def test_images_as_people_have_them() -> None:
    counter = Counter(models.create("tiny"), ModelSpec("tiny"), "cpu")
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    tensor = counter.predict(torch.from_numpy(pixels).permute(2, 0, 1))
    for image in (pixels, Image.fromarray(pixels)):
        found = counter.predict(image)
        assert found.count == pytest.approx(tensor.count) and found.size == (20, 30)
    for wrong in (pixels[..., 0], pixels.astype(np.float32), None, [1, 2]):
        with pytest.raises(DataError, match="an image is a file, or uint8"):
            counter.predict(wrong)


def test_classes_without_names_are_all_counted_also_where_there_are_none_of_them() -> None:
    network = models.create("p2pnet", trunk="tiny", num_classes=3)
    with torch.no_grad():
        network.classes.output.bias[0] = 1e3  # background
    found = Counter(network, ModelSpec("p2pnet"), "cpu").predict(picture())
    assert len(found) == 0 and found.class_counts == [0.0, 0.0, 0.0]
