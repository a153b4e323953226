"""The transport benchmark: its rows, and that what it compares is the same problem."""

from __future__ import annotations

import pytest
import torch

from papm.bench import transport as bench
from papm.errors import ConfigError


def small(cost: str = "ggd-l2", images: int = 2) -> bench.Scene:
    return bench.Scene.make(images, 12, 64, cost, 20)


@pytest.mark.slow
def test_rows_start_with_ours_and_agree() -> None:
    rows = bench.run(images=2, points=12, crop=64, iterations=20, repeat=1, warmup=0)
    assert rows[0].timing.name == "papm" and rows[0].timing.ratio == 1
    assert bench.agree(rows[:2])
    assert not bench.agree([*rows, bench.Row(rows[0].timing, 0.1)])


@pytest.mark.parametrize("seed", range(4))
def test_the_smallest_map_has_mass(seed: int) -> None:
    scene = bench.Scene.make(8, 1, 8, "l2", 10, seed=seed)
    assert (scene.density.sum((1, 2)) > 0).all()


def test_scenes_repeat() -> None:
    assert torch.equal(small().density, small().density) and torch.equal(small().points.xy, small().points.xy)
    with pytest.raises(ConfigError, match="at least one"):
        bench.Scene.make(1, 0, 64, "l2", 10)


@pytest.mark.parametrize("cost", ["l2", "ggd-l2"])
def test_pot_has_our_potentials(cost: str) -> None:
    pytest.importorskip("ot")
    assert bench.pot_difference(small(cost)) < 1e-9
    assert torch.isfinite(bench.pot_beta(small(cost))[small(cost).density.flatten(1) > 0]).all()


def test_geomloss_has_our_potentials() -> None:
    pytest.importorskip("geomloss")
    assert bench.geomloss_difference(small("l2")) < 1e-3


def test_sweep_covers_every_size() -> None:
    rows = bench.sweep(points=(5, 10), crops=(64, 128), images=1, iterations=5, repeat=1)
    assert [(r.points, r.crop, r.cells) for r in rows] == [(5, 64, 64), (10, 64, 64), (5, 128, 256), (10, 128, 256)]
    assert all(r.milliseconds > 0 for r in rows)
