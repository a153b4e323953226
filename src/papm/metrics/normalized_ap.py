"""nAP of P2PNet: average precision of scored points, with a tolerance that follows how dense the crowd is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from papm.errors import DataError
from papm.metrics.localization import same_length
from papm.metrics.pairing import Array, Points, array, candidates, canonical, first_come
from papm.metrics.precision_recall import average_precision
from papm.points import spacing

DELTAS = tuple(round(0.05 * k, 2) for k in range(1, 11))  # P2PNet: 0.05 to 0.50
_ALONE = 100.0  # spacing of an annotated point without neighbours; nAP leaves it open


@dataclass(frozen=True)
class NapScore:
    """Average precision at each δ, and their mean."""

    deltas: tuple[float, ...]
    ap: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.ap))

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"nap": self.mean, "ap": {f"{d:.2f}": a for d, a in zip(self.deltas, self.ap)}}


def nap(
    predicted: Sequence[Points],
    scores: Sequence[Points],
    truth: Sequence[Points],
    deltas: Sequence[float] = DELTAS,
    neighbours: int = 3,
    alone: float = _ALONE,
) -> NapScore:
    """nAP of P2PNet: average precision where a hit is a distance ≤ δ · (mean distance of the object to its 3 nearest).

    Predictions of an image, best score [n] first, each take the nearest free object within its reach. Over all images in
    order of score, AP is the area under precision (its best at that recall or above) over recall. An object with fewer
    neighbours uses those it has; without any, `alone` pixels, which is our choice. Without objects AP is 0.

    >>> nap([[[0.0, 0.4], [10.0, 3.0]]], [[0.9, 0.8]], [[[0.0, 0.0], [10.0, 0.0]]], (0.05, 0.3)).ap
    (0.5, 1.0)
    """
    same_length(truth, predictions=predicted, scores=scores)
    kept = [nap_hits(p, s, t, deltas, neighbours, alone) for p, s, t in zip(predicted, scores, truth)]
    ranks = np.concatenate([np.zeros(0), *(s for s, _ in kept)])
    hits = np.concatenate([np.zeros((0, len(deltas)), bool), *(h for _, h in kept)])
    objects = sum(len(array(t, columns=2)) for t in truth)
    return NapScore(tuple(deltas), tuple(average_precision(ranks, h, objects) for h in hits.T))


def nap_hits(
    predicted: Points,
    scores: Points,
    truth: Points,
    deltas: Sequence[float] = DELTAS,
    neighbours: int = 3,
    alone: float = _ALONE,
) -> tuple[Array, NDArray[np.bool_]]:
    """Scores [n] of the predictions of one image, best first, and whether each is a hit at each δ [n, deltas]."""
    xy, objects, score = array(predicted, columns=2), array(truth, columns=2), array(scores, what="scores")
    if len(score) != len(xy):
        raise DataError(f"{len(score)} scores for {len(xy)} predicted points: give one for each")
    order = canonical(xy)
    order = order[np.argsort(-score[order], kind="stable")]
    xy, score, objects = xy[order], score[order], objects[canonical(objects)]
    reach = spacing(torch.from_numpy(objects), neighbours, alone).double().numpy()
    rows, columns, distance = candidates(xy, objects, max(deltas, default=0.0) * reach)
    ranked = np.lexsort((columns, distance, rows))
    rows, columns, distance = rows[ranked], columns[ranked], distance[ranked]
    hits = np.zeros((len(xy), len(deltas)), dtype=bool)
    for k, delta in enumerate(deltas):
        near = distance <= delta * reach[columns]
        r, c = rows[near], columns[near]
        hits[r[first_come(r.tolist(), c.tolist())], k] = True
    return score, hits
