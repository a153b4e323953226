"""Where a bias of the counts comes from: whole images, windows of the training size, training crops.

    python benchmarks/bias.py RUN [--split train --split test] [--images 100] [--json FILE]

A bias on whole *training* images is no matter of new data. If windows of the training size have it too, it is no matter of
what a whole image shows beyond a crop; if the crops of the training have none, it is one of which parts of an image they
show (docs/notebook/counts-too-low.md). Density networks only.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import papm
from papm.data.base import Dataset, open_spec
from papm.data.splits import choose
from papm.engine.data import CountingData
from papm.engine.run_folder import stored_config
from papm.imagenet import normalize
from papm.losses.base import masked
from papm.models import DensityNetwork
from papm.predict.tiling import infer

Row = tuple[float, float]  # objects, counted


@torch.no_grad()
def in_windows(network: DensityNetwork, image: Tensor, view: int, frame: int) -> float:
    """The count of an image cut into windows that the network sees by themselves; beyond the image is the mean colour."""
    inner, stride = view - 2 * frame, network.stride
    x = normalize(image, network.inference.mean, network.inference.std)[None]
    height, width = x.shape[-2:]
    x = F.pad(x, (frame, frame + (-width) % inner, frame, frame + (-height) % inner))
    total = 0.0
    for top in range(0, height, inner):
        for left in range(0, width, inner):
            density = network.forward(x[..., top : top + view, left : left + view]).density[0, :, frame // stride :]
            rows, columns = (-(-min(inner, n) // stride) for n in (height - top, width - left))
            total += float(density[:, :rows, frame // stride : frame // stride + columns].sum())
    return total


@torch.no_grad()
def in_crops(network: DensityNetwork, train: CountingData, steps: int, device: torch.device) -> list[Row]:
    """The crops of steps that no training takes."""
    rows: list[Row] = []
    for step in range(10**6, 10**6 + steps):
        batch = train.render(train.plan(step)).to(device)
        density = masked(network.forward(batch.images).density, batch, network.stride).sum((1, 2, 3))
        rows += list(zip(batch.points.counts.tolist(), density.tolist()))
    return rows


def told(rows: list[Row]) -> dict[str, float]:
    """MAE and bias of the total, and the bias of the third of the images with the fewest and with the most objects."""
    truth, found = torch.tensor(rows, dtype=torch.float64).T
    order, third = truth.argsort(), max(1, len(rows) // 3)

    def bias(k: Tensor) -> float:
        return float(found[k].sum() / truth[k].sum().clamp(min=1) - 1)

    few, many = order[:third], order[-third:]
    return {"mae": float((found - truth).abs().mean()), "bias": bias(order), "few": bias(few), "many": bias(many)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", action="append")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    config = stored_config(args.run)
    counter = papm.Counter.load(args.run)
    network, device = counter.network, counter.device
    if not isinstance(network, DensityNetwork):
        raise SystemExit("this is for networks that give density maps")
    data: dict[str, Dataset] = open_spec(config.data, **config.options)
    result: dict[str, dict[str, float]] = {}
    unframed = dataclasses.replace(network.inference, frame=0)
    for split in args.split or [s for s in ("train", "test") if s in data]:
        chosen = data[split].samples[:: max(1, len(data[split]) // args.images)]
        whole, pieces = [], []
        for sample in chosen:
            truth, image = float((sample.inside & sample.counted).sum()), sample.image.to(device)
            output = infer(network, image)
            assert isinstance(output, papm.structures.DensityOutput)
            whole.append((truth, float(output.density.sum())))
            framed, network.inference = network.inference, unframed
            pieces.append((truth, in_windows(network, image, config.view, config.frame)))
            network.inference = framed
        result |= {f"{split}, whole": told(whole), f"{split}, windows": told(pieces)}
    crops = CountingData(choose(data, "last", config.val_fraction, config.seed), config)
    crops.load(torch.device("cpu"))
    network.inference = unframed
    result["training crops"] = told(in_crops(network, crops, max(1, 400 // config.batch), device))
    print(f"{'':22}{'MAE':>8}{'bias':>9}{'few':>9}{'many':>9}")
    for name, found in result.items():
        print(f"{name:22}{found['mae']:8.2f}" + "".join(f"{100 * found[k]:+8.1f}%" for k in ("bias", "few", "many")))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
