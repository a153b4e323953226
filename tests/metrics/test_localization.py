from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from papm.errors import ConfigError, DataError
from papm.metrics import PointScore, box_sigmas, nap, nwpu, qnrf, within
from papm.metrics.normalized_ap import DELTAS
from papm.metrics.pairing import Array
from papm.metrics.precision_recall import average_precision
from papm.metrics.qnrf_protocol import QNRF_THRESHOLDS

NONE = np.zeros((0, 2))


def points(most: int, least: int = 0) -> st.SearchStrategy[Array]:
    return hnp.arrays(
        np.float64, st.tuples(st.integers(least, most), st.just(2)), elements=st.integers(0, 12).map(float)
    )


def random_set(seed: int, images: int = 4) -> tuple[list[Array], list[Array], list[Array], list[Array]]:
    """Predictions, truth, radii and levels."""
    rng = np.random.default_rng(seed)
    truth = [np.round(rng.random((rng.integers(0, 40), 2)) * 60) for _ in range(images)]
    predicted = [
        np.concatenate([t[: len(t) * 3 // 4] + rng.normal(0, 3, (len(t) * 3 // 4, 2)), rng.random((5, 2)) * 60])
        for t in truth
    ]
    return predicted, truth, [rng.uniform(0, 8, len(t)) for t in truth], [rng.integers(0, 6, len(t)) for t in truth]


class TestScores:
    def test_by_hand(self) -> None:
        score = PointScore(tp=3, fp=1, fn=2)
        assert score.to_dict() == {
            "precision": 0.75,
            "recall": 0.6,
            "f1": pytest.approx(2 / 3),
            "tp": 3,
            "fp": 1,
            "fn": 2,
        }

    @given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
    def test_f1_is_the_harmonic_mean(self, tp: int, fp: int, fn: int) -> None:
        s = PointScore(tp, fp, fn)
        if s.precision + s.recall > 0:
            assert s.f1 == pytest.approx(2 * s.precision * s.recall / (s.precision + s.recall))
        else:
            assert s.f1 == 0

    def test_without_denominators(self) -> None:
        assert PointScore(0, 0, 0).f1 == PointScore(0, 0, 0).precision == 1.0  # nothing there, nothing said
        assert PointScore(0, 0, 4).precision == PointScore(0, 4, 0).recall == 0.0


class TestNwpu:
    def test_greedy_and_maximum_differ_on_three_points(self) -> None:
        """Objects at 0 and 6, a prediction at 5 that is near both: taking the nearest pair leaves 0 without its only one."""
        predicted, truth = [[[5.0, 0.0], [11.0, 0.0]]], [[[0.0, 0.0], [6.0, 0.0]]]
        assert within(predicted, truth, 5.0).total == PointScore(2, 0, 0)
        assert qnrf(predicted, truth, (5,)).at(5) == PointScore(1, 1, 1)
        assert qnrf(predicted, truth, (5,), "maximum").at(5) == PointScore(2, 0, 0)

    def test_each_object_has_its_own_distance(self) -> None:
        truth, predicted = [[[0.0, 0.0], [100.0, 0.0]]], [[[3.0, 4.0], [103.0, 4.0]]]
        assert within(predicted, truth, [[5.0, 4.99]]).total == PointScore(1, 1, 1)  # d ≤ σ, not d < σ

    def test_levels_and_images(self) -> None:
        truth = [[[0.0, 0.0], [50.0, 0.0], [90.0, 0.0]], NONE, [[5.0, 5.0]]]
        predicted = [[[1.0, 0.0], [50.0, 3.0]], [[7.0, 7.0]], NONE]
        found = nwpu(predicted, truth, [[1.0, 2.0, 2.0], [], [4.0]], [[2.0, 4.0, 4.0], [], [6.0]], [[0, 1, 1], [], [3]])
        large, small = found["sigma_l"], found["sigma_s"]
        assert large.total == PointScore(2, 1, 2) and small.total == PointScore(1, 2, 3)
        assert large.images == (PointScore(2, 0, 1), PointScore(0, 1, 0), PointScore(0, 0, 1))
        assert large.recall_by_level == {0: 1.0, 1: 0.5, 3: 0.0} and large.levels[2] == (0, 0)
        assert small.recall_by_level == {0: 1.0, 1: 0.0, 3: 0.0}
        assert large.to_dict()["recall_by_level"] == {"0": 1.0, "1": 0.5, "3": 0.0}

    @given(st.integers(0, 10**6))
    def test_order_of_points_and_images_does_not_matter(self, seed: int) -> None:
        predicted, truth, radius, levels = random_set(seed)
        before = within(predicted, truth, radius, levels)
        rng = np.random.default_rng(seed + 1)
        turn = [rng.permutation(len(t)) for t in truth]
        after = within(
            [rng.permutation(p) for p in predicted][::-1],
            [t[o] for t, o in zip(truth, turn)][::-1],
            [r[o] for r, o in zip(radius, turn)][::-1],
            [v[o] for v, o in zip(levels, turn)][::-1],
        )
        assert (after.total, after.levels, after.images[::-1]) == (before.total, before.levels, before.images)

    @given(st.integers(0, 10**6))
    def test_sums_agree(self, seed: int) -> None:
        predicted, truth, radius, levels = random_set(seed)
        found = within(predicted, truth, radius, levels)
        total = found.total
        assert total.tp + total.fp == sum(map(len, predicted)) and total.tp + total.fn == sum(map(len, truth))
        assert sum(f for f, _ in found.levels.values()) == total.tp
        assert sum(n for _, n in found.levels.values()) == sum(map(len, truth))
        single = [within([p], [t], [r]).total for p, t, r in zip(predicted, truth, radius)]
        assert found.images == tuple(single)

    def test_tensors(self) -> None:
        xy = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        assert within([xy], [xy], [torch.zeros(2)], [torch.tensor([0, 5])]).total == PointScore(2, 0, 0)

    def test_a_radius_may_be_any_kind_of_number(self) -> None:
        for radius in (3, np.int64(3), np.float32(3)):
            assert within([[[0.0, 3.0]]], [[[0.0, 0.0]]], radius).total == PointScore(1, 0, 0)

    def test_bad_input(self) -> None:
        with pytest.raises(DataError, match="1 lists of predictions for 2 images"):
            within([NONE], [NONE, NONE], 1.0)
        with pytest.raises(DataError, match="1 radii and 2 levels for 2 annotated points"):
            within([NONE], [np.zeros((2, 2))], [[1.0]], [[0, 0]])
        for radius in (-1.0, float("nan"), float("inf")):
            with pytest.raises(DataError, match="a radius is a finite number of pixels"):
                within([NONE], [np.zeros((2, 2))], radius)
        for level in (6, -1, 0.5):
            with pytest.raises(DataError, match="levels are whole numbers from 0 to 5"):
                within([NONE], [np.zeros((1, 2))], 1.0, [[level]])

    def test_sizes_from_boxes(self) -> None:
        small, large, level = box_sigmas([[0, 0, 3, 4], [0, 0, 10, 10], [5, 5, 5, 5], [0, 0, 9999, 9999], [4, 3, 0, 0]])
        assert small.tolist() == [1.5, 5, 0, 4999.5, 1.5]
        assert large[0] == 2.5 and large[1] == pytest.approx(50**0.5) and large[2] == 0
        assert level.tolist() == [1, 2, 0, 5, 1]
        assert box_sigmas(torch.tensor([[0.1, 0.1, 10.1, 10.1]]))[2].tolist() == [2]


class TestQnrf:
    def test_by_hand(self) -> None:
        predicted, truth = [[[0.0, 2.0], [50.0, 50.0]], NONE], [[[0.0, 0.0]], [[9.0, 9.0], [40.0, 9.0]]]
        found = qnrf(predicted, truth, (1, 2, 3))
        assert found.curves["precision"].tolist() == [0, 0.5, 0.5] and found.curves["recall"].tolist() == [
            0,
            1 / 3,
            1 / 3,
        ]
        assert found.pairs.tolist() == [[0, 1, 1], [0, 0, 0]] and found.at(2) == PointScore(1, 1, 2)
        assert found.auc is None  # no scores, no curve
        assert found.auc_threshold == pytest.approx(2 / 3 * 0.4)
        made = found.to_dict()
        assert made["precision"] == pytest.approx(1 / 3) and made["f1"] == made["auc_threshold"]
        assert made["curves"]["recall"] == found.curves["recall"].tolist()  # type: ignore[index]

    @given(points(12), points(12), st.sampled_from(["greedy", "maximum"]))
    def test_each_threshold_stands_for_itself(self, predicted: Array, truth: Array, matching: str) -> None:
        found = qnrf([predicted], [truth], range(1, 20), matching)  # type: ignore[arg-type]
        for t in (1, 2, 5, 9, 19):
            assert found.at(t) == qnrf([predicted], [truth], (t,), matching).at(t)  # type: ignore[arg-type]
            if matching == "maximum":
                assert found.at(t) == within([predicted], [truth], float(t)).total

    @given(points(12), points(12))
    def test_laws(self, predicted: Array, truth: Array) -> None:
        few = qnrf([predicted], [truth], range(1, 20))
        most = qnrf([predicted], [truth], range(1, 20), "maximum")
        for found in (few, most):
            assert all(b >= a for a, b in pairwise(found.pairs[0].tolist()))
            assert 0 <= found.auc_threshold <= 1
        assert (few.pairs <= most.pairs).all() and (
            2 * few.pairs >= most.pairs
        ).all()  # greedy is maximal: half at least
        swapped = qnrf([truth], [predicted], range(1, 20), "maximum")
        assert (swapped.curves["precision"] == most.curves["recall"]).all() and (swapped.pairs == most.pairs).all()

    @given(st.integers(0, 10**6), st.sampled_from(["greedy", "maximum"]))
    def test_order_does_not_matter(self, seed: int, matching: str) -> None:
        predicted, truth, _, _ = random_set(seed, 2)
        rng = np.random.default_rng(seed)
        before = qnrf(predicted, truth, matching=matching)  # type: ignore[arg-type]
        mixed = [[rng.permutation(p) for p in part] for part in (predicted, truth)]
        assert (qnrf(*mixed, matching=matching).pairs == before.pairs).all()  # type: ignore[arg-type]

    def test_thresholds_of_the_benchmark(self) -> None:
        assert QNRF_THRESHOLDS[0] == 1 and QNRF_THRESHOLDS[-1] == 100 and len(QNRF_THRESHOLDS) == 100
        line = [[[float(100 + k), 0.0]] for k in range(1, 101)]  # one pair at each whole distance
        found = qnrf(line, [[[100.0, 0.0]]] * 100)
        assert found.curves["recall"] == pytest.approx(np.arange(1, 101) / 100)
        assert found.auc_threshold == pytest.approx(0.505)

    def test_bad_input(self) -> None:
        for thresholds in ((), (2, 1), (1, 1), (-1, 2)):
            with pytest.raises(DataError, match="thresholds must increase"):
                qnrf([NONE], [NONE], thresholds)
        with pytest.raises(ConfigError, match="did you mean 'greedy'"):
            qnrf([NONE], [NONE], matching="gredy")  # type: ignore[arg-type]
        with pytest.raises(DataError, match="not among the thresholds"):
            qnrf([NONE], [NONE], (1, 2)).at(3)


class TestQnrfArea:
    """The area under precision over recall as the score falls, at each distance, then the mean."""

    objects = np.stack([np.arange(10) * 500.0, np.zeros(10)], 1)
    stray = np.stack([np.arange(6) * 500.0, np.full(6, 5000.0)], 1)  # near no object

    def area(self, predicted: Array, scores: Array, thresholds: tuple[int, ...] = QNRF_THRESHOLDS) -> float:
        """In two images, predictions in turn: the scores of both make one ranking."""
        truth = [self.objects, self.objects]
        made = qnrf([predicted, predicted[::-1]], truth, thresholds, scores=[scores, scores[::-1]]).auc
        assert made is not None
        return made

    def test_without_scores_there_is_none(self) -> None:
        found = qnrf([self.objects], [self.objects])
        assert found.auc is None and found.to_dict()["auc"] is None

    def test_perfect_predictions(self) -> None:
        assert self.area(self.objects, np.linspace(0.1, 0.9, 10)) == 1
        assert self.area(self.objects, np.full(10, 0.5)) == 1

    @pytest.mark.parametrize("matching", ["greedy", "maximum"])
    def test_false_alarms_cost_what_their_rank_says(self, matching: str) -> None:
        """10 objects found, k of the 6 false alarms above all of them: the j-th hit has precision j/(j + k), and the upper
        envelope is that of the last, 10/(10 + k). Below all of them they cost nothing."""
        predicted = np.concatenate([self.objects, self.stray])
        for k in range(7):
            scores = np.concatenate([np.full(10, 0.5) + np.arange(10) / 100, np.full(k, 0.9), np.full(6 - k, 0.1)])
            found = qnrf([predicted], [self.objects], matching=matching, scores=[scores])  # type: ignore[arg-type]
            assert found.auc == pytest.approx(10 / (10 + k))
            assert (found.at(1).precision, found.at(1).recall) == (
                10 / 16,
                1,
            )  # where the curve ends, whatever the ranking

    def test_between_the_hits(self) -> None:
        """5 hits, 5 false alarms, 5 hits: precision 1 up to half the recall, then at most 10/15."""
        predicted = np.concatenate([self.objects, self.stray[:5]])
        scores = np.concatenate([np.full(5, 0.9), np.full(5, 0.3), np.full(5, 0.6)])
        assert self.area(predicted, scores) == pytest.approx(0.5 * 1 + 0.5 * 10 / 15)
        together = np.full(15, 0.5)  # one score for all is one point of the curve
        assert self.area(predicted, together) == pytest.approx(10 / 15)

    def test_what_is_not_predicted_is_missing_from_the_area(self) -> None:
        assert self.area(self.objects[:7], np.linspace(0.2, 0.8, 7)) == pytest.approx(0.7)

    def test_mean_over_the_distances(self) -> None:
        """A prediction d px away is a hit from d on: 101 - d of 100 distances. Displaced points do not all cost ½."""
        for d in (3, 8, 15, 60):
            assert self.area(self.objects + np.array([0.0, d]), np.linspace(0.1, 0.9, 10)) == pytest.approx(
                (101 - d) / 100
            )

    @given(points(12), points(12), st.integers(0, 10**6))
    def test_laws(self, predicted: Array, truth: Array, seed: int) -> None:
        """At most the recall; only the order of scores counts; predictions may come in any order."""
        rng = np.random.default_rng(seed)
        scores, order = rng.integers(0, 4, len(predicted)) / 4, rng.permutation(len(predicted))
        found = qnrf([predicted], [truth], (5, 20), scores=[scores])
        assert found.auc is not None and 0 <= found.auc <= found.curves["recall"].mean() + 1e-12
        stretched = qnrf([predicted[order]], [truth], (5, 20), scores=[np.exp(3 * scores[order]) - 5])
        if len(np.unique(predicted, axis=0)) == len(predicted):
            assert stretched.auc == pytest.approx(found.auc)

    def test_bad_scores(self) -> None:
        with pytest.raises(DataError, match="image 0: 1 scores for 10 predicted points"):
            qnrf([self.objects], [self.objects], scores=[[0.5]])
        with pytest.raises(DataError, match="0 lists of scores for 1 images"):
            qnrf([self.objects], [self.objects], scores=[])


class TestOwnPrediction:
    @given(st.lists(points(15), min_size=1, max_size=3))
    def test_the_truth_is_its_own_perfect_prediction(self, truth: list[Array]) -> None:
        zeros = [np.zeros(len(t)) for t in truth]
        for score in nwpu(truth, truth, zeros, zeros).values():
            assert score.total.precision == score.total.recall == score.total.f1 == 1
        assert within(truth, truth, 4.0).total.f1 == 1
        for matching in ("greedy", "maximum"):
            found = qnrf(truth, truth, matching=matching, scores=zeros)  # type: ignore[arg-type]
            assert found.auc == found.auc_threshold == 1 and (found.curves["f1"] == 1).all()
        if sum(map(len, truth)):
            rng = np.random.default_rng(0)
            assert nap(truth, [rng.random(len(t)) for t in truth], truth).ap == (1.0,) * len(DELTAS)

    def test_no_predictions(self) -> None:
        truth = [np.array([[1.0, 1.0], [2.0, 2.0]])]
        assert within([NONE], truth, 4.0).total == PointScore(0, 0, 2)
        found = qnrf([NONE], truth, scores=[[]])
        assert found.auc == found.auc_threshold == 0 and found.at(100) == PointScore(0, 0, 2)
        assert nap([NONE], [[]], truth).mean == 0

    def test_no_objects(self) -> None:
        """All predictions are false, as in NWPU's code."""
        predicted = [np.array([[1.0, 1.0], [2.0, 2.0]])]
        assert within(predicted, [NONE], 4.0).total == PointScore(0, 2, 0)
        assert qnrf(predicted, [NONE]).at(100) == PointScore(0, 2, 0)
        assert nap(predicted, [[0.5, 0.6]], [NONE]).mean == 0

    def test_no_images(self) -> None:
        assert within([], [], 4.0).total == PointScore(0, 0, 0) and qnrf([], []).at(1) == PointScore(0, 0, 0)


class TestNap:
    truth = (np.array([[0.0, 0.0], [10.0, 0.0], [20.0, 0.0], [30.0, 0.0]]),)  # spacings 20, 40/3, 40/3, 20

    def test_the_tolerance_follows_the_spacing(self) -> None:
        predicted = [np.array([[2.0, 0.0], [12.0, 0.0]])]  # 0.1 and 0.15 of the spacing
        found = nap(predicted, [[0.9, 0.8]], self.truth, (0.05, 0.11, 0.16))
        assert found.ap == (0.0, 0.25, 0.5) and found.mean == 0.25
        assert found.to_dict() == {"nap": 0.25, "ap": {"0.05": 0.0, "0.11": 0.25, "0.16": 0.5}}

    def test_the_better_score_takes_the_object(self) -> None:
        """The nearer prediction has the worse score and comes second: a false alarm, after the hit."""
        predicted = [np.array([[0.0, 1.0], [0.0, 2.0]])]
        assert nap(predicted, [[0.1, 0.9]], self.truth, (0.5,)).ap == (0.25,)
        # a wrong one with the best score halves what follows
        predicted = [np.array([[500.0, 0.0], [0.0, 2.0]])]
        assert nap(predicted, [[0.9, 0.1]], self.truth, (0.5,)).ap == (0.125,)

    def test_scores_rank_over_all_images(self) -> None:
        predicted, truth = [np.array([[500.0, 0.0]]), *self.truth], [NONE, *self.truth]
        last = nap(predicted, [[0.1], [0.9] * 4], truth).mean
        first = nap(predicted, [[1.0], [0.9] * 4], truth).mean
        assert last == 1.0 and first == pytest.approx(0.8)

    def test_alone(self) -> None:
        one = [np.array([[0.0, 0.0]])]
        assert nap([[[0.0, 7.0]]], [[1.0]], one, (0.05, 0.1)).ap == (0.0, 1.0)  # 100 px stand for the spacing
        assert nap([[[0.0, 7.0]]], [[1.0]], one, (0.05, 0.1), alone=10.0).ap == (0.0, 0.0)

    @given(st.integers(0, 10**6))
    def test_laws(self, seed: int) -> None:
        predicted, truth, _, _ = random_set(seed)
        rng = np.random.default_rng(seed)
        scores = [rng.integers(0, 5, len(p)) / 4 for p in predicted]  # ties
        found = nap(predicted, scores, truth)
        assert all(0 <= a <= 1 for a in found.ap) and len(found.ap) == 10
        turn = [rng.permutation(len(p)) for p in predicted]
        mixed = nap([p[o] for p, o in zip(predicted, turn)], [s[o] for s, o in zip(scores, turn)], truth)
        assert mixed.ap == pytest.approx(found.ap)
        bent = nap(predicted, [np.exp(3 * s) for s in scores], truth)  # only the order of scores counts
        assert bent.ap == pytest.approx(found.ap)

    @given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12), st.integers(0, 3))
    def test_average_precision_by_its_definition(self, given: list[tuple[int, bool]], missed: int) -> None:
        """AP = ∫ over recall of the best precision at that recall or above, one cut at each score."""
        scores, hits = np.array([s for s, _ in given], dtype=float), np.array([h for _, h in given])
        objects = int(hits.sum()) + missed
        cuts = [hits[scores >= s] for s in np.unique(scores)]
        curve = [(c.sum(), c.mean()) for c in cuts]
        area = sum(max([p for tp, p in curve if tp >= k], default=0.0) for k in range(1, objects + 1))
        assert average_precision(scores, hits, objects) == pytest.approx(area / objects if objects else 0.0)

    def test_bad_input(self) -> None:
        with pytest.raises(DataError, match="1 scores for 2 predicted points"):
            nap([np.zeros((2, 2))], [[0.5]], [NONE])
        with pytest.raises(DataError, match="2 lists of scores for 1 images"):
            nap([NONE], [[], []], [NONE])
