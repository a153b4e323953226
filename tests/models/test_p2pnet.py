"""The point detector: where its references are, what its channels mean, any image size, weights, and that it learns."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from papm import checkpoint, losses, methods, models
from papm.checkpoint import ModelSpec
from papm.engine import train as engine
from papm.engine.build import resolve
from papm.errors import CheckpointError, ConfigError
from papm.losses.points import PointMatchingLoss
from papm.models.p2pnet import P2PNet, reference_points
from papm.models.vgg import VGGTrunk
from papm.predict.predictor import Counter, counts
from papm.structures import PointProposals

GRIDS = {"2x2": (2, 2), "4x2": (4, 2)}


def build(trunk: str = "tiny", **options: Any) -> P2PNet:
    torch.manual_seed(0)
    network = models.create("p2pnet", trunk=trunk, **options)
    assert isinstance(network, P2PNet)
    return network.eval()


def lively(trunk: str = "tiny", **options: Any) -> P2PNet:
    """A network whose last layers have ordinary weights, so that its outputs depend on what it sees."""
    network = build(trunk, **options)
    for head in (network.offsets, network.classes):
        assert head is not None
        nn.init.normal_(head.output.weight, std=0.02)
    return network


def images(height: int, width: int, batch: int = 1, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))


# --- reference points -------------------------------------------------------------------------------------------------


def test_references_of_the_first_cell() -> None:
    assert reference_points(1, 1, (2, 2)).tolist() == [[2, 2], [6, 2], [2, 6], [6, 6]]
    tall = [[x, y] for y in (1, 3, 5, 7) for x in (2, 6)]
    assert reference_points(1, 1, (4, 2)).tolist() == tall


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_references_go_cell_by_cell(grid: tuple[int, int]) -> None:
    expected = [
        [8 * j + (b + 0.5) * 8 / grid[1], 8 * i + (a + 0.5) * 8 / grid[0]]
        for i in range(3)
        for j in range(4)
        for a in range(grid[0])
        for b in range(grid[1])
    ]
    assert reference_points(3, 4, grid).tolist() == expected


@pytest.mark.parametrize("references", GRIDS)
@pytest.mark.parametrize("size", [(1, 1), (2, 40), (3, 3), (17, 31), (16, 24), (8, 13), (33, 64)])
@torch.no_grad()
def test_any_size_has_the_references_inside_the_image(size: tuple[int, int], references: str) -> None:
    network = build(references=references)
    found = network(images(*size, batch=2))
    every = reference_points(-(-size[0] // 8), -(-size[1] // 8), GRIDS[references])
    inside = [p for p in every.tolist() if p[0] < size[1] and p[1] < size[0]]
    assert isinstance(found, PointProposals)
    assert found.reference.tolist() == inside
    assert found.points.shape == (2, len(inside), 2) and found.logits.shape == (2, len(inside), 2)
    assert found.points.dtype == found.logits.dtype == torch.float32
    assert counts(found, network.inference).shape == (2,)


@torch.no_grad()
def test_a_crop_of_128_has_1024_proposals() -> None:
    assert build()(images(128, 128)).points.shape == (1, 1024, 2)
    assert build(references="4x2")(images(128, 128)).points.shape == (1, 2048, 2)


@torch.no_grad()
def test_padding_changes_nothing_and_proposes_nothing() -> None:
    network = lively()
    image = images(21, 27)
    padded = nn.functional.pad(image, (0, 5, 0, 11), mode="reflect")
    small, whole = network(image), network(padded)
    kept = (whole.reference < torch.tensor([27.0, 21.0])).all(-1)
    assert torch.equal(small.reference, whole.reference[kept])
    torch.testing.assert_close(small.points, whole.points[:, kept], rtol=0, atol=1e-5)
    torch.testing.assert_close(small.logits, whole.logits[:, kept], rtol=0, atol=1e-6)


# --- what the channels mean -------------------------------------------------------------------------------------------


def silent(network: P2PNet) -> P2PNet:
    for head in (network.offsets, network.classes):
        assert head is not None
        nn.init.zeros_(head.output.weight)
        nn.init.zeros_(head.output.bias)  # type: ignore[arg-type]
    return network


@torch.no_grad()
def test_without_offsets_points_are_the_references() -> None:
    found = silent(build())(images(24, 16, batch=2))
    assert torch.equal(found.points, found.reference.expand(2, -1, -1))
    assert not found.logits.any()


def test_proposals_that_may_not_move() -> None:
    """They lie at their references, only scores are learned, and no weight is idle."""
    torch.manual_seed(0)
    network = models.create("p2pnet", trunk="tiny", offsets=False)
    assert isinstance(network, P2PNet)
    found = network(images(24, 20, batch=2))
    assert torch.equal(found.points, found.reference.expand(2, -1, -1))
    points = [torch.tensor([[3.0, 4.0], [15.0, 20.0]]), torch.zeros(0, 2)]
    losses.create("p2p-papm")(found, points).total.backward()
    assert all(p.grad is not None and p.grad.any() for p in network.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@torch.no_grad()
def test_a_whole_image_is_read_without_waiting() -> None:
    network = build().cuda().eval()
    image = images(45, 38).cuda()
    network(image)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        network(image)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("references", GRIDS)
@torch.no_grad()
def test_an_offset_is_a_hundredth_of_its_pixels(references: str) -> None:
    network = silent(build(references=references))
    k = GRIDS[references][0] * GRIDS[references][1]
    bias = torch.arange(2 * k) / 100.0  # reference r moves by (2r, 2r + 1) pixels
    network.offsets.output.bias.copy_(bias)  # type: ignore[union-attr]
    found = network(images(24, 16))
    moved = (found.points - found.reference).view(-1, k, 2)
    torch.testing.assert_close(moved, torch.arange(2.0 * k).view(k, 2).expand_as(moved), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_column_0_is_background_and_classes_follow() -> None:
    network = silent(build(num_classes=3))
    network.classes.output.bias.copy_(torch.arange(16.0))  # type: ignore[union-attr]
    found = network(images(16, 16))
    assert found.logits.shape == (1, 16, 4)
    assert found.logits.view(-1, 4, 4)[0].tolist() == torch.arange(16.0).view(4, 4).tolist()


@torch.no_grad()
def test_images_of_a_batch_do_not_mix() -> None:
    network = lively()
    batch = images(40, 24, batch=3)
    together, alone = network(batch), network(batch[1:2])
    torch.testing.assert_close(together.points[1:2], alone.points, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together.logits[1:2], alone.logits, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_receptive_field_bounds_what_a_proposal_sees() -> None:
    network = lively()
    assert network.receptive_field is not None and network.multiple == 16
    width = 2 * network.receptive_field + 96
    cell = width // 8 // 2
    near = slice(cell * 8 - network.receptive_field, (cell + 1) * 8 + network.receptive_field)
    image, other, close = (images(16, width, seed=s) for s in (0, 1, 2))
    other[..., near] = image[..., near]
    half = slice(near.start + network.receptive_field // 2, near.stop - network.receptive_field // 2)
    close[..., half] = image[..., half]

    def at(x: Tensor) -> Tensor:
        found = network(x)
        mine = (found.reference[:, 0] // 8).long() == cell
        return torch.cat([(found.points - found.reference)[:, mine], found.logits[:, mine]], -1)

    torch.testing.assert_close(at(other), at(image), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(at(close), at(image), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_moving_the_image_moves_the_points() -> None:
    network = lively()
    assert network.receptive_field is not None
    margin = -(-network.receptive_field // 16) * 16
    strip = images(32, 2 * margin + 48)
    first, second = network(strip[..., :-16]), network(strip[..., 16:])
    a = (first.reference[:, 0] >= margin + 16) & (first.reference[:, 0] < margin + 32)
    b = (second.reference[:, 0] >= margin) & (second.reference[:, 0] < margin + 16)
    torch.testing.assert_close(
        first.points[:, a] - torch.tensor([16.0, 0.0]), second.points[:, b], rtol=1e-4, atol=1e-3
    )
    torch.testing.assert_close(first.logits[:, a], second.logits[:, b], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_half_precision_ends_in_float32() -> None:
    network = lively()
    image = images(32, 40)
    exact = copy.deepcopy(network).double()(image.double())
    assert exact.points.dtype == exact.logits.dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = network(image)
    assert mixed.points.dtype == mixed.logits.dtype == torch.float32
    scale = (exact.points - exact.reference).abs().max()
    assert (mixed.points - exact.points).abs().max() < 0.05 * scale
    assert (mixed.logits - exact.logits).abs().max() < 0.05 * exact.logits.abs().max()


# --- parameters and weights -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("trunk", ["tiny", "vgg16", "vgg19", "vgg16-bn"])
def test_no_layer_is_idle_and_groups_are_right(trunk: str) -> None:
    network = lively(trunk).train()
    found = network(images(32, 32, batch=2))
    ((found.points - found.reference).square().mean() + found.logits.square().mean()).backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.any()), key
    groups = network.parameter_groups()
    together = [id(p) for group in groups.values() for p in group]
    assert len(together) == len(set(together)) and set(together) == {id(p) for p in network.parameters()}
    trunk_names = {k for k, p in network.named_parameters() if any(p is q for q in groups["trunk"])}
    assert trunk_names == {k for k, _ in network.named_parameters() if k.startswith("features.") and trunk != "tiny"}


def test_sizes_of_the_networks() -> None:
    def size(network: nn.Module) -> int:
        return sum(p.numel() for p in network.parameters())

    assert 100_000 < size(build()) < 200_000
    # 1×1 of both taps, smoothing, and three 3×3 convolutions in each head, nothing else.
    heads = 4 * (256 * 2304 + 256) + 2 * (8 * 2304 + 8)
    with torch.device("meta"):
        network = models.create("p2pnet")
        assert size(network) == size(VGGTrunk("vgg16")) + 2 * (256 * 512 + 256) + 256 * 2304 + 256 + heads


@pytest.mark.parametrize("trunk", ["vgg16", "vgg16-bn", "vgg19"])
def test_keys_of_the_trunk_are_torchvisions(trunk: str) -> None:
    with torch.device("meta"):
        own = models.create("p2pnet", trunk=trunk).state_dict()
        assert {k for k in own if k.startswith("features.")} == {f"features.{k}" for k in VGGTrunk(trunk).state_dict()}


@pytest.mark.slow
def test_weights_are_those_of_the_chosen_trunk(tmp_path: Path) -> None:
    torch.manual_seed(1)
    published = VGGTrunk("vgg19", (32,)).state_dict()
    file = tmp_path / "vgg19.pth"
    torch.save({f"features.{k}": v.half() for k, v in published.items()} | {"classifier.0.bias": torch.zeros(1)}, file)
    network = models.create("p2pnet", weights=file, trunk="vgg19")
    assert torch.equal(network.state_dict()["features.34.weight"], published["34.weight"].half().float())
    assert network.weights_sha256 == models.sha256_of(file)
    with pytest.raises(CheckpointError, match="not a vgg16 trunk"):
        models.create("p2pnet", weights=file)


def test_a_tiny_trunk_has_no_published_weights() -> None:
    with pytest.raises(ConfigError, match="'p2pnet' with trunk=tiny has no ImageNet weights"):
        models.create("p2pnet", weights="imagenet", trunk="tiny")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("trunk", "resnet50"),
        ("references", "3x3"),
        ("references", 4),
        ("num_classes", 0),
        ("width", -1),
        ("width", 1.5),
        ("offsets", 0),
        ("offsets", "none"),
    ],
)
def test_wrong_options_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option} of network 'p2pnet'|unknown {option} "):
        models.create("p2pnet", **{"trunk": "tiny", option: value})


@torch.no_grad()
def test_a_checkpoint_holds_the_choice_of_trunk(tmp_path: Path) -> None:
    network = lively(references="4x2", num_classes=2)
    options = {"trunk": "tiny", "references": "4x2", "num_classes": 2}
    checkpoint.save(tmp_path / "a.ckpt", ModelSpec("p2pnet", options), network.state_dict())
    again = Counter.load(tmp_path / "a.ckpt", "cpu").network
    image = images(24, 40)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as a counter has it
    assert torch.equal(again(image).points, network(image).points)
    assert torch.equal(again(image).logits, network(image).logits)


@pytest.mark.slow
@torch.no_grad()
def test_compiles_and_exports_for_every_size() -> None:
    class Plain(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
            found = self.network(image)
            return found.points, found.logits

    network = lively()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images(64, 64)).points, network(images(64, 64)).points)
    sides = {k: torch.export.Dim(name, min=17, max=4096) for k, name in ((2, "height"), (3, "width"))}
    program = torch.export.export(Plain(network), (images(64, 96),), dynamic_shapes={"image": sides}).module()
    for size in [(64, 96), (17, 31), (96, 50)]:
        for found, expected in zip(program(images(*size)), Plain(network)(images(*size))):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


# --- methods, training, counting --------------------------------------------------------------------------------------


def test_recipes_know_the_trunk() -> None:
    for method in ("p2pnet", "p2p-papm", "p2p-papm-literal"):
        real = resolve(method, "p2pnet", {})
        assert (real.batch, real.crop, real.steps, real.scale_min, real.scale_max) == (32, 128, 26_000, 0.7, 1.3)
        assert real.trunk_lr is not None and real.trunk_lr < real.lr
        small = resolve(method, "p2pnet", {"network": {"trunk": "tiny"}})
        assert small.steps < 5000 and small.trunk_lr is None and small.network == {"trunk": "tiny"}
        assert resolve(method, "p2pnet", {"network": {"trunk": "tiny"}, "steps": 7}).steps == 7
    assert methods.recipe("p2pnet", "p2pnet", {"trunk": "vgg19"}) == methods.recipe("p2pnet", "p2pnet")


def test_methods_and_networks_must_fit() -> None:
    with pytest.raises(ConfigError, match="'p2p-papm' trains networks that give points, 'tiny' gives density maps"):
        resolve("p2p-papm", "tiny", {})
    with pytest.raises(ConfigError, match=r"'hd-papm' trains networks that give density maps.*--backbone .*tiny"):
        resolve("hd-papm", "p2pnet", {})


def test_the_loss_is_told_how_far_training_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    compute = PointMatchingLoss.compute

    def watch(self: PointMatchingLoss, *arguments: Any) -> Any:
        told.append(self.progress)
        return compute(self, *arguments)

    monkeypatch.setattr(PointMatchingLoss, "compute", watch)
    given = {
        "data": "synthetic:train=2,test=1,size=64,count=3-9",
        "network": {"trunk": "tiny"},
        "steps": 4,
        "batch": 1,
        "crop": 64,
        "select": "last",
        "device": "cpu",
    }
    engine.train(resolve("p2p-papm", "p2pnet", given), tmp_path / "run")
    assert told == [0, 0.25, 0.5, 0.75]


@torch.no_grad()
def test_a_prediction_has_as_many_points_as_it_counts() -> None:
    network = silent(build(num_classes=2))
    network.classes.output.bias.copy_(torch.tensor([0.0, 3, 1] * 2 + [3.0, 0, 0] * 2))  # type: ignore[union-attr]
    network.offsets.output.bias.copy_(torch.tensor([0.1, 0.0] + [-0.1, 0] + [0.0] * 4))  # type: ignore[union-attr]
    image = torch.zeros(3, 15, 16, dtype=torch.uint8)
    found = Counter(network, ModelSpec("p2pnet"), "cpu").predict(image)
    assert found.count == 8 and found.points is not None and len(found.points) == 8
    assert bool((found.points >= 0).all()) and bool((found.points < torch.tensor([16.0, 15.0])).all())
    assert found.points[:, 0].max() > 15.9  # the second cell's first reference, 10 + 10, is held at the border
    assert found.labels is not None and found.labels.tolist() == [0] * 8


@pytest.mark.slow
def test_training_from_nothing_learns_to_count(tmp_path: Path) -> None:
    seen: list[float] = []
    given = {
        "data": "synthetic:look=cells,train=24,test=8,size=128,count=4-20,clutter=0,occlusion=0",
        "network": {"trunk": "tiny"},
        "steps": 160,
        "batch": 4,
        "crop": 96,
        "eval_every": 5,
        "select": "test",
        "device": "cpu",
    }

    class Watch:
        def on_step(self, step: int, total: int, values: dict[str, float]) -> None:
            assert {"classification", "points", "distance", "surplus", "count_error"} <= set(values)

        def on_start(self, sizes: dict[str, int]) -> None: ...

        def on_evaluation(self, step: int, values: dict[str, float]) -> None:
            seen.append(values["mae"])

    run = engine.train(resolve("p2p-papm", "p2pnet", given), tmp_path / "run", watcher=Watch())
    assert run.result is not None and run.result["method"] == "p2p-papm"
    # About eleven cells a scene: saying nothing, or the mean, is off by more than four.
    assert seen[-1] < 2.5 < 4 < seen[0]
    found = Counter.load(tmp_path / "run", "cpu").predict(torch.zeros(3, 50, 70, dtype=torch.uint8))
    assert found.points is not None and round(found.count) == len(found.points)
