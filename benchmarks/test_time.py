"""Does it pay to look at a test image in another way than once and whole, or to count points in another way?

    PYTHONPATH=src python3 benchmarks/test_time.py OUT.json shanghaitech-a:data/ShanghaiTech runs/al-papm-*

For every run of a density network: MAE of the whole image, of the mean with its mirror image, of overlapping windows of the
size trained on (every window seen as a crop was in training, the mean where windows overlap), and of both. For a point
network: proposals that score above 0.3, 0.4, 0.5 and 0.6, and the number to be expected, which is the sum of probabilities
(a score q that was learned with background weighing w is a probability of w·q/(1 − q + w·q)); each with the mirror image too.
Runs that held training images out (`select=val`) are measured on those as well: that is where such a thing may be chosen.
The count of every image is kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from papm import checkpoint, data
from papm.data.base import Dataset
from papm.data.splits import hold_out
from papm.engine.run_folder import stored_config
from papm.files import write_json
from papm.imagenet import normalize
from papm.models.p2pnet import P2PNet
from papm.predict.tiling import contract_of
from papm.structures import DensityOutput, PointProposals

CELL = 8  # px, a multiple of every stride
THRESHOLDS = (0.3, 0.4, 0.5, 0.6)
# network, image [1, 3, H, W], crop of training → counts by name
Look = Callable[[torch.nn.Module, Tensor, int], dict[str, Tensor]]


def whole(network: torch.nn.Module, image: Tensor, crop: int) -> dict[str, Tensor]:
    output: DensityOutput = network.forward(image)
    return {"whole": output.density.float().sum()}


def windows(network: torch.nn.Module, image: Tensor, crop: int) -> dict[str, Tensor]:
    """Windows of the crop's size, half a crop apart; a cell is the mean of the windows that show it."""
    image = F.pad(image, (0, -image.shape[-1] % CELL, 0, -image.shape[-2] % CELL))
    h, w = image.shape[-2:]
    corners = [(top, left) for top in _starts(h, crop) for left in _starts(w, crop)]
    seen = torch.cat([image[..., y : y + crop, x : x + crop] for y, x in corners])
    made = [network.forward(part) for part in seen.split(32)]
    stride, density = made[0].stride, torch.cat([m.density.float() for m in made])
    total = density.new_zeros(-(-h // stride), -(-w // stride))
    times = torch.zeros_like(total)
    for (y, x), part in zip(corners, density[:, 0]):
        rows, columns = slice(y // stride, y // stride + part.shape[0]), slice(x // stride, x // stride + part.shape[1])
        total[rows, columns] += part
        times[rows, columns] += 1
    return {"windows": (total / times.clamp(min=1)).sum()}


def _starts(length: int, crop: int) -> list[int]:
    """Corners half a crop apart; the last window ends where the image does."""
    last = max(0, length - crop)
    return sorted({*range(0, last, crop // 2), last})


def points(network: torch.nn.Module, image: Tensor, crop: int) -> dict[str, Tensor]:
    """Proposals above several thresholds, and their number to be expected."""
    output: PointProposals = network.forward(image)
    score = output.logits.float().softmax(-1)[0, :, 1:].sum(-1)
    expected = output.probabilities(contract_of(network).background).sum()
    return {f"above {t:g}": (score > t).sum().float() for t in THRESHOLDS} | {"expected": expected}


def both(look: Look) -> Look:
    """As it is, and the mean with the mirror image."""

    def looked(network: torch.nn.Module, image: Tensor, crop: int) -> dict[str, Tensor]:
        one, two = (look(network, x, crop) for x in (image, image.flip(-1)))
        return one | {f"{name}, mirrored": 0.5 * (one[name] + two[name]) for name in one}

    return looked


@torch.inference_mode()
def measured(network: torch.nn.Module, dataset: Dataset, crop: int) -> dict[str, Any]:
    """MAE of every way to look, and the counts behind it."""
    device = next(network.parameters()).device
    looks = [both(look) for look in ((points,) if isinstance(network, P2PNet) else (whole, windows))]
    truth = [float(sample.published.counted.sum()) for sample in dataset]
    rows: dict[str, list[float]] = {}
    for sample in dataset:
        image = normalize(sample.image.to(device))[None]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            for look in looks:
                for name, count in look(network, image, crop).items():
                    rows.setdefault(name, []).append(round(float(count), 2))
    mae = {name: round(sum(abs(p - t) for p, t in zip(row, truth)) / len(truth), 2) for name, row in rows.items()}
    return {"mae": mae, "images": [s.name for s in dataset], "truth": truth, "counts": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("data")
    parser.add_argument("runs", type=Path, nargs="+")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = False
    splits = data.open_spec(given.data)
    if any(s.roi_source is not None for s in splits["test"]):
        parser.error(f"{given.data} has regions of interest, which are not looked at here")
    found: dict[str, Any] = {}
    for run in given.runs:
        path, config = checkpoint.resolve(run), stored_config(run)
        network = checkpoint.build(*checkpoint.load(path), path).to(device).eval()
        looked = {"test": splits["test"]}
        if config.select == "val" and "val" not in splits:
            looked["held out"] = hold_out(splits["train"], config.val_fraction, config.seed)[1]
        found[run.name] = {k: measured(network, images, config.crop) for k, images in looked.items()}
        print(run.name, {k: v["mae"] for k, v in found[run.name].items()}, flush=True)
        write_json(given.out, found)


if __name__ == "__main__":
    main()
