"""An image that is unlike the training images is flagged, with the reason; one that is like them hardly ever."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from papm import checkpoint, data, models
from papm.checkpoint import ModelSpec
from papm.config import TrainConfig
from papm.data.base import Dataset
from papm.data.resize import Resize
from papm.engine.profile import _blurred, _noisy, _scaled, _steady, profile_of
from papm.errors import CheckpointError, ConfigError
from papm.inference import MOST_CHECKED, CountInterval, Inference
from papm.likeness import KINDS, MOST_AXES, MOST_CHANNELS, Change, Features, Profile, Usual, appearance
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter
from papm.predict.results import summary
from papm.predict.tiling import infer
from papm.predict.unlike import FEW, compared, packing, steadiness, unlike
from papm.structures import DensityOutput

CELLS = "synthetic:look=cells,train=40,test=40,size=208x256,count=20-40"


def network() -> models.Network:
    torch.manual_seed(0)
    return models.create("tiny", activation="abs")


@pytest.fixture(scope="module")
def cells() -> dict[str, Dataset]:
    return dict(data.open_spec(CELLS))


@pytest.fixture(scope="module")
def profile(cells: dict[str, Dataset]) -> Profile:
    found = profile_of(network(), cells["train"], TrainConfig(), "32")
    assert found is not None and found.images == 40 and found.features is not None
    return found


def counter(profile: Profile | None, **contract: Any) -> Counter:
    own = network()
    inference = replace(own.inference, profile=profile, **contract)
    return Counter(own, ModelSpec("tiny", {"activation": "abs"}, inference=inference), "cpu")


def grey(image: Tensor) -> Tensor:
    return image.float().mean(0, keepdim=True).expand(3, -1, -1).byte()


@pytest.mark.slow
def test_unseen_images_of_the_same_kind_are_hardly_ever_flagged(cells: dict[str, Dataset], profile: Profile) -> None:
    model = counter(profile)
    flagged = [bool(model.predict(s.image, points=False).unlike) for s in cells["test"]]
    assert sum(flagged) <= 2, "a twentieth"
    again = [bool(model.predict(s.image, points=False).unlike) for s in cells["train"]]
    assert sum(again) <= 2


CHANGES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "three times as large": (lambda x: _scaled(x, 3.0), "scale"),
    "three times smaller": (lambda x: _scaled(x, 1 / 3), "scale"),
    "blurred": (lambda x: _blurred(x, 3.0), "blur"),
    "noisy": (lambda x: _noisy(x, 40.0), "noise"),
    "grey": (grey, "colour"),
    "dark": (lambda x: x // 4, "light"),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", CHANGES)
def test_changed_images_are_flagged_with_the_reason(cells: dict[str, Dataset], profile: Profile, how: str) -> None:
    change, reason = CHANGES[how]
    model = counter(profile)
    found = [model.predict(change(s.image), points=False) for s in cells["test"][:12]]
    assert sum(bool(p.unlike) for p in found) >= 11
    assert sum(reason in p.unlike for p in found) >= 6, [p.unlike for p in found]
    if reason == "scale":
        low, high = {"three times as large": (0.25, 0.5), "three times smaller": (2.0, 4.0)}[how]
        advised = [float(p.warning.rpartition("--scale ")[2]) for p in found if "scale" in p.unlike]
        assert all(low <= a <= high for a in advised) and (1 / 3 if low < 1 else 3) == pytest.approx(
            median(advised), abs=0.01
        )
    assert all(p.warning.count(". ") == 0 and bool(p.warning) == bool(p.unlike) for p in found)


@pytest.mark.slow
def test_other_data_and_empty_scenes_are_flagged(cells: dict[str, Dataset], profile: Profile) -> None:
    model = counter(profile)
    vehicles = data.open_spec("synthetic:look=vehicles,train=1,test=10,size=208x256")["test"]
    empty = [s.source.render(False) for s in cells["test"][:10]]  # type: ignore[union-attr]
    for images in ([s.image for s in vehicles], empty):
        assert sum(bool(model.predict(x, points=False).unlike) for x in images) >= 9


def test_a_flag_voids_the_interval_and_changes_no_count(cells: dict[str, Dataset], profile: Profile) -> None:
    known = CountInterval(1.0, 20)
    plain, model = counter(None, interval=known), counter(profile, interval=known)
    usual, strange = cells["test"][0].image, grey(cells["test"][0].image)
    assert model.predict(usual).unlike == () and model.predict(usual).interval is not None
    before, after = plain.predict(strange), model.predict(strange)
    assert before.count == after.count and before.interval is not None and not before.unlike
    assert after.interval is None and after.unlike == ("colour",)
    assert after.warning == (
        "unlike the training images: it has no colour; look at its points, or train on images like it"
    )
    assert summary(after)["unlike"] == ["colour"] and "unlike" not in summary(before)
    both = model.predict([strange, usual, strange], batch=2)
    assert [p.unlike for p in both] == [("colour",), (), ("colour",)]
    two = Ensemble([plain, model]).predict(strange)
    assert two.unlike == ("colour",) and two.warning == after.warning


def test_images_in_one_batch_and_in_tiles_are_judged_as_alone(cells: dict[str, Dataset], profile: Profile) -> None:
    model = counter(profile)
    images = [_noisy(s.image, 40.0) if k % 2 else s.image for k, s in enumerate(cells["test"][:4])]
    alone = [model.predict(x).unlike for x in images]
    assert [p.unlike for p in model.predict(images, batch=4)] == alone
    model.tile = 160
    assert [bool(model.predict(x).unlike) for x in images] == [bool(a) for a in alone]


def test_the_advice_is_a_factor_of_the_image_given(cells: dict[str, Dataset], profile: Profile) -> None:
    """A model that enlarges images three times, and should not: a third of what it does is the file."""
    model = counter(profile, resize=Resize(min_side=624))
    found = [model.predict(s.image, points=False) for s in cells["test"][:6]]
    assert all(p.scale == pytest.approx(3.0, rel=0.01) for p in found)
    assert sum(p.warning.endswith("about 3 times as large as in training: try --scale 1") for p in found) >= 2


def test_profiles_are_stored_and_older_models_load(tmp_path: Path, profile: Profile) -> None:
    model = counter(profile)
    checkpoint.save(tmp_path / "new.ckpt", model.spec, model.network.state_dict())
    checkpoint.save(tmp_path / "old.ckpt", counter(None).spec, model.network.state_dict())
    new, old = Counter.load(tmp_path / "new.ckpt", "cpu"), Counter.load(tmp_path / "old.ckpt", "cpu")
    stored = new.inference.profile
    assert stored is not None and Profile.from_mapping(stored.to_mapping()) == stored and old.inference.profile is None
    assert "profile" not in old.inference.to_mapping(), "an earlier papm reads it"
    image = torch.randint(0, 256, (3, 70, 90), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert new.predict(image).count == old.predict(image).count and new.predict(image).unlike
    checkpoint.change_inference(tmp_path / "new.ckpt", interval=CountInterval(1.0, 9))
    assert Counter.load(tmp_path / "new.ckpt", "cpu").inference.profile == stored


def damaged(profile: Profile) -> list[Any]:
    """Profiles that no training stored."""

    def but(**entries: Any) -> dict[str, Any]:
        return {**json.loads(json.dumps(profile.to_mapping())), **entries}

    light, features = but()["usual"]["light"], but()["features"]
    return [
        [],
        {},
        {"usual": 3},
        but(more=1),
        but(usual={"taste": light}),
        but(usual={"colour": light}),
        but(usual={"light": {**light, "mean": ["a", "b"]}}),
        but(usual={"light": {**light, "precision": light["precision"][:3]}}),
        but(usual={"light": {**light, "limit": 0.0}}),
        but(usual={"light": {**light, "mean": [float("nan"), 0.0]}}),
        but(usual={"light": {**light, "mean": 4}}),
        but(usual={}),
        but(changes=[["scale", 3.0]]),
        but(changes=[{"kind": "magic", "amount": 1.0, "offset": [0.0] * 5, "limit": 1.0}]),
        but(changes=[{"kind": "blur", "amount": 1.0, "offset": [0.0] * 4, "limit": 1.0}]),
        but(changes=but()["changes"] * 9),
        but(features={**features, "axes": features["axes"][1:]}),
        but(features={**features, "spread": [0.0] * len(features["mean"])}),
        but(features={**features, "usual": 1}),
        but(features=1),
        but(packing=-1.0),
        but(packing="many"),
    ]


def test_a_damaged_profile_is_refused_in_a_sentence(tmp_path: Path, profile: Profile) -> None:
    model = counter(profile)
    for k, bad in enumerate(damaged(profile)):
        with pytest.raises(ConfigError):
            Inference.from_mapping({**model.inference.to_mapping(), "profile": bad})
        mapping = model.spec.to_mapping()
        state = {checkpoint.PREFIX + key: v for key, v in model.network.state_dict().items()}
        values = {"papm": {**mapping, "inference": {**mapping["inference"], "profile": bad}}, "state_dict": state}
        with (tmp_path / f"{k}.ckpt").open("wb") as stream:
            checkpoint.write(values, stream)
        with pytest.raises(CheckpointError, match=r"not a whole papm checkpoint"):
            Counter.load(tmp_path / f"{k}.ckpt", "cpu")


def test_few_images_have_no_profile(cells: dict[str, Dataset]) -> None:
    assert profile_of(network(), cells["train"][:7], TrainConfig(), "32") is None


def test_a_network_without_a_deepest_map_is_judged_by_its_images(cells: dict[str, Dataset]) -> None:
    found = profile_of(models.create("mcnn"), cells["train"][:10], TrainConfig(), "32")
    assert found is not None and found.features is None and set(found.usual) == {"sharpness", "light", "colour"}


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (63, 64), (64, 65), (65, 200), (400, 66)])
def test_appearance_of_any_size_is_finite(size: tuple[int, int]) -> None:
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = appearance(image)
    assert found.shape == (10,) and bool((abs(found) < 50).all())


def test_appearance_knows_contrast_from_detail() -> None:
    image = torch.randint(60, 180, (3, 200, 200), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    flat = (image.float() / 2 + 30).byte()
    before, after = appearance(image), appearance(flat)
    assert abs(before[:5] - after[:5]).max() < 0.1, "detail is free of contrast"
    assert before[5] - after[5] == pytest.approx(2 * 0.693, abs=0.1), "half the contrast is a quarter of the energy"


@pytest.mark.parametrize("kind", ["noise", "blur", "scale"])
def test_a_stored_profile_may_know_some_changes_only(kind: str) -> None:
    image = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    offset = tuple((appearance(image)[:5] - 9).tolist())
    usual = Usual((9.0,) * 5, tuple(torch.eye(5).flatten().tolist()), 0.1)
    other = "noise" if kind == "scale" else "scale"
    for kinds in ((kind,), KINDS, tuple(k for k in KINDS if k != other)):
        changes = tuple(Change(k, 2.0, offset if k == kind else (50.0,) * 5, 1.0) for k in kinds)
        found = counter(Profile({"sharpness": usual}, changes)).predict(image)
        assert found.unlike == (kind,) and found.warning


@pytest.mark.slow
def test_the_largest_profile_can_be_read_again(tmp_path: Path) -> None:
    n, axes = MOST_CHANNELS, MOST_AXES
    square = Usual((0.0,) * (axes + 1), (0.5,) * (axes + 1) ** 2, 1.0)
    profile = Profile({}, (), Features((0.5,) * n, (0.5,) * n, (0.5,) * (axes * n), square))
    model = counter(profile, calibrated_on=tuple(f"{k:016x}" for k in range(MOST_CHECKED)))
    checkpoint.save(tmp_path / "best.ckpt", model.spec, model.network.state_dict())
    assert checkpoint.load(tmp_path / "best.ckpt")[0].inference == model.inference


class Bright(models.DensityNetwork):
    """Counts what is bright: `each` for a pixel of the brightest, whatever its surroundings."""

    stride = multiple = 8
    num_classes = 1

    def __init__(self, each: float) -> None:
        super().__init__()
        self.each = torch.nn.Parameter(torch.tensor(each))

    def density(self, images: Tensor) -> Tensor:
        light = (images[:, :1] > 1).float()
        return self.each * torch.nn.functional.avg_pool2d(light, 8) * 64


@pytest.mark.parametrize(("size", "seen"), [((96, 160), 96 * 160), ((1000, 1400), 640 * 640)])
def test_steadiness_is_the_change_of_the_count_at_half_the_size(size: tuple[int, int], seen: int) -> None:
    """Bright pixels are a quarter as many at half the size; of a large image the middle is looked at."""
    each = 0.01
    image, network = torch.full((3, *size), 255, dtype=torch.uint8), Bright(each)
    output = infer(network, image)
    wanted = math.log((each * seen / 4 + FEW) / (each * seen + FEW))
    assert steadiness(network, image, output) == pytest.approx(wanted, abs=1e-3)
    assert steadiness(Bright(0.0), image, infer(Bright(0.0), image)) == 0


def test_a_count_that_is_not_finite_and_a_network_of_one_size_have_no_steadiness() -> None:
    image, endless = (
        torch.full((3, 64, 64), 255, dtype=torch.uint8),
        DensityOutput(torch.full((1, 1, 8, 8), math.inf), 8),
    )
    network = Bright(1.0)
    assert steadiness(network, image, endless) is None and steadiness(network, image, infer(network, image)) is not None
    network.fixed = (64, 64)
    assert steadiness(network, image, infer(network, image)) is None


def test_what_is_steady_is_within_a_factor_and_the_margin_of_most_training_images() -> None:
    assert _steady([]) is None
    assert _steady([0.1] * 50) == pytest.approx((0.1 - math.log(1.5), 0.1 + math.log(1.5)))
    low, high = _steady([*np.linspace(-2, 0.1, 99), -50.0]) or (0, 0)
    assert -4 < low < -2 and high == pytest.approx(float(np.median(np.linspace(-2, 0.1, 99))) + 1.29 * 1.04, abs=0.1)


def test_a_count_that_is_gone_at_half_the_size_is_flagged_where_it_was_steady_in_training(profile: Profile) -> None:
    plain = replace(profile, usual={}, changes=(), features=None, packing=0.0, steady=None)
    image, output = torch.zeros(3, 64, 64, dtype=torch.uint8), DensityOutput(torch.ones(1, 1, 8, 8), 8)
    usual = replace(plain, steady=(-0.4, 0.4))
    assert unlike(usual, image, None, output, steady=0.1) == {} == unlike(plain, image, None, output, steady=-3.0)
    found = unlike(usual, image, None, output, steady=math.log(0.1))
    assert found == {"steadiness": "at half its size 0.1 times as many objects are counted"}
    assert list(unlike(usual, image, None, output, steady=0.5)) == ["steadiness"]


def test_packing_is_what_an_object_sees_around_it() -> None:
    density = torch.zeros(1, 1, 32, 32)
    density[0, 0, :8, :8] = 3 / 64  # one square of 64 px with three objects, at stride 8
    density[0, 0, 8:16, :8] = 1 / 64
    assert packing(DensityOutput(density, 8)) == pytest.approx((9 + 1) / 4)
    assert packing(DensityOutput(torch.zeros(1, 1, 4, 4), 8)) == 0.0


def test_the_first_flag_is_logged_once(
    cells: dict[str, Dataset], profile: Profile, caplog: Any, tmp_path: Path
) -> None:
    model = counter(profile)
    Image.fromarray(grey(cells["test"][0].image).permute(1, 2, 0).numpy()).save(tmp_path / "grey.png")
    model.predict([tmp_path / "grey.png"] * 2)
    (said,) = caplog.messages
    assert said.startswith("grey.png: unlike the training images: it has no colour")


def test_networks_that_say_the_same_of_an_image_are_named_together(
    cells: dict[str, Dataset], profile: Profile, caplog: Any, tmp_path: Path
) -> None:
    place, strange = tmp_path / "a" / "best.ckpt", grey(cells["test"][0].image)
    checkpoint.save(place, counter(profile).spec, network().state_dict())

    def pair() -> list[Counter]:
        return [Counter.load(path, "cpu") for path in (place, shutil.copy(place, tmp_path / "b.ckpt"))]

    Ensemble(pair(), ("x/a", "y/a")).predict(strange, name="grey")
    assert caplog.messages[0].endswith("(x/a, y/a)"), "runs in folders of one name are told apart"
    caplog.clear()
    Ensemble([*pair(), counter(None)]).predict(strange, name="grey")
    with compared():
        for model in pair():
            model.predict(strange, name="grey")
    said = "grey: unlike the training images: it has no colour; look at its points, or train on images like it (a, b)"
    assert caplog.messages == [said, said]
    with compared():
        for k in range(6):
            other = counter(profile)
            other.name = str(k)
            other.predict(strange, name="grey")
    assert caplog.messages[2].endswith("like it (0, 1, 2, 3 and 2 more)")
