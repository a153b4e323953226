"""What `auto` chooses from the data, and that what is given always wins."""

from __future__ import annotations

import pytest

from papm import data, methods
from papm.config import TrainConfig
from papm.engine.auto import CHOSEN, Seen, choose, look
from papm.engine.build import resolve

CROWD = Seen(pixels=164_000_000, short=640, long=900, spacing=12.0)


def test_the_recipe_stands_where_the_data_allow() -> None:
    config, why = choose(resolve("al-papm", "vgg19", {}), (), CROWD)
    assert (config.crop, config.batch) == (256, 8)
    assert 25_000 < config.steps <= 30_000 and len(why) == 1 and why[0].startswith("steps=")


def test_what_is_given_wins() -> None:
    small = Seen(pixels=10_000, short=40, long=50, spacing=300.0)
    config, why = choose(resolve("al-papm", "vgg19", {"crop": 512, "batch": 3, "steps": 7}), CHOSEN, small)
    assert (config.crop, config.batch, config.steps, why) == (512, 3, 7, [])


@pytest.mark.parametrize("backbone", ["vgg19", "tiny", "msfanet"])
@pytest.mark.parametrize("long", [20, 100, 250, 5000])
@pytest.mark.parametrize("apart", [None, 5.0, 60.0, 900.0])
def test_every_choice_is_one_that_can_be_trained(backbone: str, long: int, apart: float | None) -> None:
    seen = Seen(pixels=30 * long * long, short=long, long=long, spacing=apart)
    usual = resolve("hd-papm", backbone, {})
    config, why = choose(usual, (), seen)  # TrainConfig refuses what cannot be
    inner = config.crop - 2 * config.margin
    assert 64 <= inner <= 2 * (usual.crop - 2 * usual.margin) and inner < max(64, long) + 16
    assert config.batch >= 2 and config.batch * config.crop**2 <= 1.5 * max(
        usual.batch * usual.crop**2, 2 * config.crop**2
    )
    _, least, most = methods.length(backbone)
    assert least <= config.steps <= most
    changed = {k for k in ("crop", "batch") if getattr(config, k) != getattr(usual, k)}
    assert {line.partition("=")[0] for line in why} == {*changed, "steps"}


def test_large_objects_want_large_crops() -> None:
    config, why = choose(TrainConfig(), (), Seen(pixels=10**9, short=2000, long=3000, spacing=100.0))
    assert (config.crop, config.batch, config.steps) == (400, 3, 30_000)
    assert why[0] == "crop=400: objects are 100 px apart" and why[1].startswith("batch=3")


def test_look_at_a_dataset() -> None:
    opened = data.open("synthetic", train=5, test=1, size="96x128", count="6-9", seed=3)
    seen = look(opened["train"])
    assert (seen.pixels, seen.short, seen.long) == (5 * 96 * 128, 96, 128)
    assert seen.spacing is not None and 2 < seen.spacing < 96


@pytest.mark.parametrize("start", [{"weights": "imagenet"}, {"init": "crowd"}])
def test_what_starts_from_trained_weights_takes_minutes_on_a_cpu(start: dict[str, str]) -> None:
    config, why = choose(resolve("hd-papm", "lite", {**start, "device": "cpu"}), (), CROWD)
    assert config.steps == methods.ON_CPU["lite"][-1] and "minutes on a CPU" in why[-1]
    config, _ = choose(resolve("hd-papm", "lite", {"device": "cpu"}), (), CROWD)
    assert config.steps > 10_000, "from nothing"
