from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papm.errors import DataError
from papm.metrics.counting import (
    FEWEST,
    JHU_LEVELS,
    NWPU_LEVELS,
    bootstrap,
    by_level,
    counting_errors,
    paired_difference,
)

counts = st.lists(st.tuples(st.floats(0, 5000), st.integers(0, 5000)), min_size=1, max_size=30)


def scene(n: int = 200, seed: int = 0, noise: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    truth = generator.integers(1, 1000, n)
    return truth * (1 + noise * generator.standard_normal(n)), truth


def test_hand_computed() -> None:
    score = counting_errors([12.0, 7.0, 4.0], [10, 10, 0])
    assert score.mae == pytest.approx(3.0)
    assert score.rmse == pytest.approx(math.sqrt((4 + 9 + 16) / 3))
    assert score.nae == pytest.approx((0.2 + 0.3) / 2)  # the empty image is left out
    assert score.bias == pytest.approx(3 / 20)
    assert score.n == 3


@settings(max_examples=50, deadline=None)
@given(counts)
def test_against_a_plain_loop(pairs: list[tuple[float, int]]) -> None:
    score = counting_errors([p for p, _ in pairs], [t for _, t in pairs])
    errors = [p - t for p, t in pairs]
    relative = [abs(p - t) / t for p, t in pairs if t > 0]
    assert score.mae == pytest.approx(sum(map(abs, errors)) / len(pairs))
    assert score.rmse == pytest.approx(math.sqrt(sum(e * e for e in errors) / len(pairs)))
    assert score.nae == pytest.approx(sum(relative) / len(relative)) if relative else math.isnan(score.nae)
    assert score.mae <= score.rmse * (1 + 1e-12)


def test_relative_errors_are_over_images_that_hold_something() -> None:
    assert counting_errors([3.0, 9.0, 5.0], [1, 0, 4]).nae == pytest.approx((2 / 1 + 1 / 4) / 2)


def test_perfect_counts_have_no_error() -> None:
    assert counting_errors(torch.tensor([3.0, 4.0]), torch.tensor([3, 4])).to_dict() == {
        "mae": 0.0,
        "rmse": 0.0,
        "nae": 0.0,
        "bias": 0.0,
        "n": 2,
    }


def test_sign_of_the_bias() -> None:
    assert counting_errors([9.0, 19.0], [10, 20]).bias == pytest.approx(-2 / 30)


def test_only_empty_images_give_valid_json() -> None:
    score = counting_errors([1.0, 0.0], [0, 0])
    assert score.mae == 0.5
    assert json.loads(json.dumps(score.to_dict(), allow_nan=False)) == {
        "mae": 0.5,
        "rmse": pytest.approx(math.sqrt(0.5)),
        "nae": None,
        "bias": None,
        "n": 2,
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.filterwarnings("error")
def test_a_diverged_prediction_is_shown_not_hidden(bad: float) -> None:
    score = counting_errors([bad, 1.0], [1, 1])
    assert not math.isfinite(score.mae) and not math.isfinite(score.rmse)
    assert score.to_dict()["mae"] is None


@pytest.mark.parametrize(
    ("predicted", "truth", "words"), [([1.0], [1, 2], "1 predicted.*2 true"), ([], [], "no counts")]
)
def test_bad_input_is_named(predicted: list[float], truth: list[int], words: str) -> None:
    with pytest.raises(DataError, match=words):
        counting_errors(predicted, truth)


def test_bootstrap_matches_the_normal_approximation() -> None:
    predicted, truth = scene(2000)
    size = np.abs(predicted - truth)
    low, high = bootstrap(predicted, truth)["mae"]
    half = 1.96 * size.std() / math.sqrt(len(size))
    assert low == pytest.approx(size.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(size.mean() + half, abs=0.15 * half)


def test_bootstrap_against_a_plain_loop() -> None:
    predicted, truth = scene(12)
    truth[:4] = 0
    order = np.lexsort((predicted, truth))
    index = np.random.default_rng(5).integers(0, 12, (40, 12))
    drawn = [counting_errors(predicted[order][i], truth[order][i]) for i in index]
    got = bootstrap(predicted, truth, samples=40, level=0.8, seed=5)
    for name in ("mae", "rmse", "nae", "bias"):
        assert got[name] == pytest.approx(tuple(np.quantile([getattr(d, name) for d in drawn], [0.1, 0.9])))


def test_bootstrap_is_deterministic_and_ignores_the_order_of_images() -> None:
    predicted, truth = scene(50)
    other = np.random.default_rng(1).permutation(50)
    first = bootstrap(predicted, truth, samples=200)
    assert first == bootstrap(predicted[other], truth[other], samples=200)
    assert first != bootstrap(predicted, truth, samples=200, seed=1)


def test_bootstrap_contains_the_figure_and_widens_with_the_level() -> None:
    predicted, truth = scene(80)
    score = counting_errors(predicted, truth)
    narrow, wide = bootstrap(predicted, truth, level=0.5), bootstrap(predicted, truth, level=0.99)
    for name in narrow:
        assert wide[name][0] < narrow[name][0] < getattr(score, name) < narrow[name][1] < wide[name][1]


def test_bootstrap_in_chunks_covers_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted, truth = scene(30)
    whole = bootstrap(predicted, truth, samples=100)
    monkeypatch.setattr("papm.metrics.counting._CHUNK", 30 * 7)  # 100 samples in rows of 7: an uneven last chunk
    assert bootstrap(predicted, truth, samples=100) == whole


@pytest.mark.filterwarnings("error")
def test_bootstrap_of_empty_images() -> None:
    found = bootstrap([1.0, 2.0] * 3, [0, 0] * 3, samples=10)
    assert all(math.isnan(v) for v in found["nae"]) and all(math.isfinite(v) for v in found["mae"])


def test_too_few_images_have_no_interval() -> None:
    """One image would give an interval of no width: as if its figure were exact."""
    predicted, truth = scene(FEWEST)
    assert all(math.isfinite(v) for pair in bootstrap(predicted, truth).values() for v in pair)
    for n in range(1, FEWEST):
        found = bootstrap(predicted[:n], truth[:n])
        assert set(found) == {"mae", "rmse", "nae", "bias"}
        assert all(math.isnan(v) for pair in found.values() for v in pair)


@pytest.mark.parametrize("options", [{"samples": 0}, {"level": 1.0}])
def test_bootstrap_options_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(DataError):
        bootstrap([1.0], [1], **options)  # type: ignore[arg-type]


def test_pairing_sees_what_separate_intervals_cannot() -> None:
    predicted, truth = scene(100)
    worse = truth + (predicted - truth) * 1.05  # 5% worse on every image
    a, b = bootstrap(predicted, truth)["mae"], bootstrap(worse, truth)["mae"]
    assert a[1] > b[0]  # the separate intervals overlap
    difference = paired_difference(predicted, worse, truth)
    assert difference.significant
    assert difference.difference == pytest.approx(-0.05 * counting_errors(predicted, truth).mae)


def test_pairing_is_antisymmetric_and_null_for_equals() -> None:
    a, truth = scene(60, seed=0)
    b = scene(60, seed=3)[0][np.argsort(np.argsort(truth))]
    forth, back = paired_difference(a, b, truth, samples=4000), paired_difference(b, a, truth, samples=4000)
    assert forth.difference == pytest.approx(-back.difference)
    assert forth.low == pytest.approx(-back.high, rel=0.05)
    same = paired_difference(a, a, truth)
    assert (same.difference, same.low, same.high, same.significant) == (0.0, 0.0, 0.0, False)


def test_levels_partition_the_images() -> None:
    truth = [0, 1, 100, 101, 500, 501, 5000, 5001]
    predicted = [t + k for k, t in enumerate(truth)]
    levels = by_level(predicted, truth, NWPU_LEVELS)
    assert {k: (s.n, s.mae) for k, s in levels.items()} == {
        "0": (1, 0.0),
        "1-100": (2, 1.5),
        "101-500": (2, 3.5),
        "501-5000": (2, 5.5),
        ">5000": (1, 7.0),
    }
    assert list(by_level([60.0], [55], JHU_LEVELS)) == ["51-500"]  # levels without an image are left out
    with pytest.raises(DataError, match="increase"):
        by_level([1.0], [1], (5, 5))


@pytest.mark.slow
def test_importing_metrics_leaves_torchmetrics_out() -> None:
    code = "import sys, papm.metrics; assert not any(m.startswith(('torchmetrics', 'lightning')) for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("n", "verdict"), [(5, "unclear"), (6, "better")])
def test_few_images_give_no_verdict(n: int, verdict: str) -> None:
    """All of n differences have one sign by chance with 2 · 2⁻ⁿ, which is below 5 % from six images on."""
    truth = np.arange(n) + 10.0
    d = paired_difference(truth + 1, truth + 3, truth)
    assert d.significant and d.verdict == d.to_dict()["verdict"] == verdict
    assert json.loads(json.dumps(replace(d, low=math.nan).to_dict(), allow_nan=False))["low"] is None
    assert paired_difference(truth + 3, truth + 1, truth).verdict == verdict.replace("better", "worse")
