"""How fast a photograph is counted on a CPU: our predictor against the same network in plain PyTorch, and in ONNX Runtime."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from papm import imagenet, models
from papm.bench.timing import Timing, compare
from papm.checkpoint import ModelSpec
from papm.errors import ConfigError
from papm.export.onnx import export_onnx
from papm.models import Network, layers
from papm.predict.predictor import Counter

SHARE = 1e-3  # of the count: how far candidates may be apart


@dataclass(frozen=True)
class Row:
    """One way to count an image: its count, and how far that is from plain PyTorch's, as a share.

    `first_ms`: the first image after the model is there. `cpu_ms`: processor time of all threads, the median; on a machine
    that others use too it says more than the clock.
    """

    timing: Timing
    count: float
    difference: float
    first_ms: float
    cpu_ms: float


def lively(backbone: str, seed: int = 0) -> Network:
    """A network with random weights whose map differs from cell to cell, so that a wrong cell shows in the count."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = models.create(backbone).eval()
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d) and layer.out_channels == network.num_classes:
                spread = layer.weight.abs().mean()
                layer.weight.add_(spread * torch.randn(layer.weight.shape, generator=generator))
    return network


def eager(network: Network) -> Callable[[Tensor], float]:
    """The count of uint8 pixels [3, H, W] as plain PyTorch computes it: NCHW, whole maps, norms not folded."""
    plain = copy.deepcopy(network)

    def count(image: Tensor) -> float:
        before, layers.SPAN = layers.SPAN, 2**62  # no strips
        try:
            with torch.no_grad():
                return float(plain(imagenet.normalize(image)[None]).density.sum())
        finally:
            layers.SPAN = before

    return count


def run(
    backbone: str = "lite",
    size: tuple[int, int] = (768, 1024),
    threads: int = 2,
    repeat: int = 5,
    onnx: bool = True,
    bf16: bool = False,
    on_start: Callable[[str], None] = lambda name: None,
) -> list[Row]:
    """Count one image of random pixels in each way, timed in turn; the first row is ours. Without points: the networks' work.

    `onnx`: export the network and count it in ONNX Runtime too, through the same predictor. `bf16`: ours in half precision too.
    """
    if models.info(backbone).kind != "density" or min(size) < 1 or threads < 1:
        raise ConfigError("this bench takes a density network, a size of at least 1x1 and one thread or more")
    network = lively(backbone)
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ways = _ways(network, backbone, onnx, bf16, on_start)
        return _timed({name: _bound(count, image) for name, count in ways.items()}, repeat)
    finally:
        torch.set_num_threads(before)


def _ways(
    network: Network, backbone: str, onnx: bool, bf16: bool, on_start: Callable[[str], None]
) -> dict[str, Callable[[Tensor], float]]:
    spec = ModelSpec(backbone)
    plain = eager(network)
    ways: dict[str, Callable[[Tensor], float]] = {
        "papm": _counting(Counter(copy.deepcopy(network), spec, "cpu")),
        "PyTorch, eager": plain,
    }
    if bf16:
        ways["papm, bf16"] = _counting(Counter(copy.deepcopy(network), spec, "cpu", precision="bf16"))
    if onnx:
        on_start("exporting")
        with tempfile.TemporaryDirectory() as place:
            ways["ONNX Runtime"] = _counting(Counter.load(export_onnx(network, Path(place) / "model.onnx")))
    on_start("counting")
    return ways


def _counting(counter: Counter) -> Callable[[Tensor], float]:
    return lambda image: counter.predict(image, points=False).count


def _bound(count: Callable[[Tensor], float], image: Tensor) -> Callable[[], float]:
    return lambda: count(image)


def _timed(ways: dict[str, Callable[[], float]], repeat: int) -> list[Row]:
    firsts, counts = {}, {}
    for name, way in ways.items():
        start = time.perf_counter()
        counts[name] = way()
        firsts[name] = 1e3 * (time.perf_counter() - start)
    spent: dict[str, list[float]] = {name: [] for name in ways}

    def watched(name: str) -> Callable[[], None]:
        def run() -> None:
            start = time.process_time()
            ways[name]()
            spent[name].append(1e3 * (time.process_time() - start))

        return run

    timings = compare({name: watched(name) for name in ways}, repeat)
    own = counts["PyTorch, eager"]
    return [
        Row(t, counts[t.name], abs(counts[t.name] - own) / max(abs(own), 0.1), firsts[t.name], _median(spent[t.name]))
        for t in timings
    ]


def _median(values: list[float]) -> float:
    return float(torch.tensor(values).median())


def agree(rows: list[Row]) -> bool:
    """Whether all count the same to 0.1 %; half precision is told, not judged."""
    return all(r.difference <= SHARE for r in rows if not r.timing.name.endswith("bf16"))
