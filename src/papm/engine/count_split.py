"""Counting a split with a trained model, or with several together, each at the size of images that it knows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from papm.data.base import Dataset, require_annotated
from papm.data.resize import resized
from papm.engine.evaluate import Evaluation, evaluate, mean_of
from papm.errors import ConfigError
from papm.predict.ensemble import Ensemble
from papm.predict.predictor import Counter
from papm.predict.tiling import OnTile

log = logging.getLogger(__name__)


def count_split(
    model: Counter | Ensemble,
    dataset: Dataset,
    grid: bool,
    rule: bool,
    on_item: Callable[[], None] | None,
    on_tile: OnTile | None,
) -> Evaluation:
    """Counts of a split by one model, or the mean of several, each seeing the images at its own size."""
    require_annotated(dataset)
    members = model.members if isinstance(model, Ensemble) else (model,)
    if grid and len(members) > 1:
        raise ConfigError("GAME is of the map of one model: leave out --game or --with")
    grid = grid or (len(members) == 1 and any(s.roi_source is not None for s in dataset))
    each = []
    for member in members:
        seen = _at_size_of(member, dataset) if rule else dataset
        hear: dict[str, Any] = {"on_item": on_item, "on_tile": on_tile}
        how: dict[str, Any] = {"precision": member.precision, "tile": member.tile, "classes": member.spec.classes}
        each.append(evaluate(member.network, seen, grid=grid, strict=True, **how, **hear))
    return mean_of(dict(zip(model.names, each))) if isinstance(model, Ensemble) else each[0]


def _at_size_of(counter: Counter, dataset: Dataset) -> Dataset:
    """The images as the model knows them; a warning names the largest of those that its rule would shrink much more than the
    images of its training."""
    said = [(s, w) for s in dataset if (w := counter.warning(s.published.size))]
    if said:
        sample, warning = max(said, key=lambda found: max(found[0].published.size))
        more = f" (and {len(said) - 1} more of {len(dataset)})" if len(said) > 1 else ""
        log.warning("%s%s: %s (resize=none counts images at their own size)", sample.name, more, warning)
    sizes = [s.size if s.original is not None else counter.seen_size(s.size, s.name) for s in dataset]
    samples = [s if size == s.size else resized(s, size) for s, size in zip(dataset, sizes)]
    return Dataset(samples, dataset.name, dataset.split, dataset.root, dataset.file_format)
