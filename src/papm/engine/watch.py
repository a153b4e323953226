"""The watched images: counted whole again and again while a network trains, shared out over the processes."""

from __future__ import annotations

import torch
from torch import Tensor

from papm.data.base import Dataset
from papm.data.cache import build_store, decoded_bytes
from papm.engine.interrupts import Stop
from papm.engine.ranks import Ranks
from papm.metrics.counting import CountingScore, counting_errors
from papm.predict.predictor import counts
from papm.predict.tiling import contract_of, infer

# They are kept decoded, on the device, when they take less than this many bytes.
LIMIT = 2**30


class Watched:
    """The images of a dataset that evaluations count; decoded once, with their regions, when that takes little memory."""

    def __init__(self, dataset: Dataset, device: torch.device) -> None:
        self.dataset, self.device = dataset, device
        self.images: list[Tensor] | None = None
        if decoded_bytes(dataset.samples) <= LIMIT:
            # Now rather than at the first evaluation: an unreadable image stops a run before it begins.
            store = build_store(dataset.samples)
            self.images = [store.image(k).contiguous().to(device) for k in range(len(store))]
        self.truth = [float(s.published.counted.sum()) for s in dataset]
        self._regions: dict[int, Tensor | None] = {}

    def image(self, index: int) -> Tensor:
        """Image `index` on the device, uint8 [3, H, W]."""
        return self.dataset[index].image.to(self.device) if self.images is None else self.images[index]

    def region(self, index: int) -> Tensor | None:
        """Region of interest of image `index`."""
        if self.images is None:
            return self.dataset[index].roi
        if index not in self._regions:
            self._regions[index] = self.dataset[index].roi
        return self._regions[index]

    @torch.no_grad()
    def score(self, network: torch.nn.Module, precision: str, ranks: Ranks, stop: Stop) -> CountingScore | None:
        """The errors of a network; None where it was given up for a signal. Each process counts its own images, none twice."""
        found = torch.zeros(len(self.dataset), device=self.device)
        training, given_up = network.training, False
        # Every image has its own size: searching the fastest convolution for each costs more than it gives.
        benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
        network.eval()
        try:
            for k in range(ranks.rank, len(self.dataset), ranks.world):
                if given_up := stop.heard:
                    break
                output = infer(network, self.image(k), precision=precision)
                found[k] = counts(output, contract_of(network), self.region(k))[0]
        finally:
            network.train(training)
            torch.backends.cudnn.benchmark = benchmark
        if ranks.any(given_up):
            return None
        return counting_errors(ranks.total(found).tolist(), self.truth)
