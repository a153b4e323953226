"""What a run on a CPU starts from where nothing is said: a small network trained from scratch does badly on photographs.

Images that the ready model `cells` already counts roughly are of cells: `tiny` starts from it. All others get `lite` with
ImageNet weights, or `tiny` from scratch where these cannot be had (docs/notebook/small-data.md). A ready model under another
licence than papm's is only named: a run that starts from it inherits that licence.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from papm import ready
from papm.data.base import Dataset
from papm.engine.build import middle
from papm.engine.ranks import started_processes
from papm.errors import CheckpointError, ConfigError, PapmError
from papm.models.base import Progress
from papm.models.weights import fetch
from papm.predict.outputs import counts
from papm.predict.predictor import Counter
from papm.predict.tiling import contract_of, infer

CELLS, PHOTOGRAPHS = "cells", "lite"
LOOKED_AT, SIDE = 8, 1024  # training images, and pixels of the middle of each
# Of what is in them: `cells` is off by 2 % to 8 % on images of cells, and by 75 % or more on any other that was tried
# (docs/notebook/touching-cells.md).
ROUGHLY = 0.5

log = logging.getLogger(__name__)


def head_start(images: Dataset, progress: Progress | None = None) -> tuple[dict[str, Any], list[str]]:
    """Settings of a run on these images that nobody chose anything of, and the reasons."""
    if (off := error_of(CELLS, images)) <= ROUGHLY:
        return {"init": CELLS}, [f"init={CELLS}: that ready model {_counts(off)}"]
    hints = _others(images)
    try:
        fetch(PHOTOGRAPHS, progress)
    except CheckpointError as error:
        if started_processes() > 1:  # the others may have them, and would train another network
            raise ConfigError(f"{error}; several processes must start from the same: name --backbone") from None
        log.warning("%s cannot be used (%s); a small network is trained from scratch instead", PHOTOGRAPHS, error)
        return {}, ["from scratch, which does badly on photographs: there are no ImageNet weights", *hints]
    reason = "weights=imagenet: trained from scratch, a small network does badly on photographs"
    return {"backbone": PHOTOGRAPHS, "weights": "imagenet"}, [reason, *hints]


def _counts(off: float) -> str:
    return f"is off by {100 * off:.0f} % on the training images"


def _others(images: Dataset) -> list[str]:
    """The ready model that counts these images best, where one does roughly: named only, as its licence is its own."""
    found = []
    for name in set(ready.known()) - {CELLS}:
        try:
            found.append((error_of(name, images), name))
        except PapmError as error:  # an installed model that cannot be read is no reason not to train
            log.warning("%s", error)
    off, name = min(found, default=(float("inf"), ""))
    if off > ROUGHLY:
        return []
    return [f"without a training, the ready model {name} {_counts(off)} (its licence: papm models info {name})"]


def error_of(name: str, images: Dataset) -> float:
    """Σ|count − n| / Σn of a ready model over the middles of up to eight images, inside their regions of interest; infinite
    where there are no objects."""
    network = Counter.load(ready.find(name).path, "cpu").network
    wrong = total = 0.0
    for k in np.unique(np.linspace(0, len(images) - 1, LOOKED_AT).round().astype(int)):
        sample = images[int(k)]
        region = sample.roi
        top, left = (max(0, n - SIDE) // 2 for n in sample.size)
        seen = sample.points[sample.inside & sample.counted_in(region)] - sample.points.new_tensor([left, top])
        n = int(((seen >= 0) & (seen < SIDE)).all(1).sum())
        with torch.no_grad():
            output = infer(network, middle(sample.image, SIDE), precision="32")
            asked = None if region is None else middle(region[None], SIDE)[0]
            found = float(counts(output, contract_of(network), asked)[0])
        wrong, total = wrong + abs(found - n), total + n
    return wrong / total if total else float("inf")
