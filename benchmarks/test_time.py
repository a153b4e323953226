"""Does it pay to look at a test image in another way than once and whole?

    PYTHONPATH=src python3 benchmarks/test_time.py OUT.json shanghaitech-a:data/ShanghaiTech runs/al-papm-*

For every run of a density network: MAE of the whole image, of the mean with its mirror image, of overlapping windows of the
size trained on (every window seen as a crop was in training, the mean where windows overlap), and of both. Runs that held
training images out (`select=val`) are measured on those too: that is where such a thing may be chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from papm import checkpoint, data
from papm.data.base import Dataset
from papm.data.splits import hold_out
from papm.engine.run_folder import stored_config
from papm.files import write_json
from papm.imagenet import normalize
from papm.structures import DensityOutput

CELL = 8  # px, a multiple of every stride
Look = Callable[[torch.nn.Module, Tensor, int], Tensor]  # network, image [1, 3, H, W], crop of training → count


def whole(network: torch.nn.Module, image: Tensor, crop: int) -> Tensor:
    output: DensityOutput = network.forward(image)
    return output.density.float().sum()


def windows(network: torch.nn.Module, image: Tensor, crop: int) -> Tensor:
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
    return (total / times.clamp(min=1)).sum()


def _starts(length: int, crop: int) -> list[int]:
    """Corners half a crop apart; the last window ends where the image does."""
    last = max(0, length - crop)
    return sorted({*range(0, last, crop // 2), last})


def mirrored(look: Look) -> Look:
    return lambda network, image, crop: 0.5 * (look(network, image, crop) + look(network, image.flip(-1), crop))


LOOKS: dict[str, Look] = {
    "whole": whole,
    "mirrored": mirrored(whole),
    "windows": windows,
    "windows, mirrored": mirrored(windows),
}


@torch.inference_mode()
def errors(network: torch.nn.Module, dataset: Dataset, crop: int) -> dict[str, float]:
    """MAE of every way to look."""
    device = next(network.parameters()).device
    sums = dict.fromkeys(LOOKS, 0.0)
    for sample in dataset:
        image = normalize(sample.image.to(device))[None]
        truth = float(sample.published.counted.sum())
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            for name, look in LOOKS.items():
                sums[name] += abs(float(look(network, image, crop)) - truth)
    return {name: round(total / len(dataset), 2) for name, total in sums.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("data")
    parser.add_argument("runs", type=Path, nargs="+")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = False
    splits, found = data.open_spec(given.data), {}
    for run in given.runs:
        path, config = checkpoint.resolve(run), stored_config(run)
        network = checkpoint.build(*checkpoint.load(path), path).to(device).eval()
        row = {"test": errors(network, splits["test"], config.crop)}
        if config.select == "val" and "val" not in splits:
            row["held out"] = errors(
                network, hold_out(splits["train"], config.val_fraction, config.seed)[1], config.crop
            )
        found[run.name] = row
        print(run.name, row, flush=True)
        write_json(given.out, found)


if __name__ == "__main__":
    main()
