"""Draw the pictures of the documentation with papm itself, from synthetic scenes only.

papm train synthetic:train=80,test=20 --backbone tiny --out runs/picture steps=1000 select=last
python docs/images/make_images.py runs/picture
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from papm import Counter, data, ggd
from papm.data.annotator import Annotator
from papm.points import crop
from papm.predict.overlay import overlay, panel
from papm.targets import density_map

HERE = Path(__file__).parent
SCENE, CORNER, SIDE, ZOOM = 18, (96, 16), 128, 3  # no head and no click near the border of this window


def enlarge(image: Tensor) -> Tensor:
    """Each pixel ZOOM times, uint8 [3, H, W]."""
    return image.repeat_interleave(ZOOM, 1).repeat_interleave(ZOOM, 2)


def target(image: Tensor, points: Tensor, kernel: str, sigma: float, shape: float) -> Tensor:
    """A learning target over its image."""
    made = density_map(points, (SIDE, SIDE), kernel, sigma, shape)  # type: ignore[arg-type]
    return overlay(image, made, stride=ZOOM, alpha=0.9)


def targets_and_prediction(run: str) -> Tensor:
    """Dots, the two targets made from the misplaced ones, and what a small network counts."""
    sample = data.open("synthetic", train=1, test=20)["test"][SCENE]
    misplaced = Annotator("extent", 0.35).annotate(sample, seed=0)
    x, y = CORNER
    photo = enlarge(sample.image[:, y : y + SIDE, x : x + SIDE])
    true, _ = crop(sample.points, (x, y), (SIDE, SIDE))
    dots, _ = crop(misplaced.points, (x, y), (SIDE, SIDE))
    made = Counter.load(run, "cpu").predict(sample.image)
    assert made.density is not None and made.points is not None
    s = made.stride
    part = made.density[:, y // s : (y + SIDE) // s, x // s : (x + SIDE) // s]
    found, _ = crop(made.points, (x, y), (SIDE, SIDE))
    pictures = [
        overlay(photo, points=dots * ZOOM, truth=true * ZOOM, count=len(dots)),
        target(photo, dots, "gaussian", 4.0, 2.0),
        target(photo, dots, "ggd", 4.0, 8.0),
        overlay(photo, part, stride=s * ZOOM, points=found * ZOOM, truth=true * ZOOM),
    ]
    titles = [
        "centres (rings), clicks (dots)",
        "target: Gaussian, sigma 4",
        "target: HD-PAPM, sigma 4, s 8",
        "counted by a small network",
    ]
    return panel(pictures, titles)


def kernels() -> str:
    """The kernel as a curve for three shapes, and the cost built from it, as an SVG."""
    width, height, left, top, gap = 340, 190, 40, 30, 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * width + gap + 2 * left} {height + 80}" '
        'font-family="sans-serif" font-size="13">',
        "<style>text{fill:#777}.a{fill:none;stroke-width:2}.g{stroke:#999;stroke-width:1}</style>",
    ]
    r = torch.linspace(0, 12, 241, dtype=torch.float64)
    cost = torch.linspace(0, 32, 241, dtype=torch.float64)
    plots = (
        ("kernel, σ = 4", r, [(f"s = {s}", ggd.kernel(r**2, 4.0, s)) for s in (2, 4, 8)], 1.05, 1.0, "1"),
        (
            "transport cost, px²",
            cost,
            [("r²", cost**2), ("r²/k, σ = 16, s = 2", ggd.transport_cost(cost**2, 16.0, 2.0))],
            2000.0,
            2000.0,
            "2000",
        ),
    )
    colours = ("#888", "#3b82c4", "#d1495b")
    for k, (title, x, curves, limit, at_mark, mark) in enumerate(plots):
        x0 = left + k * (width + gap)
        parts.append(f'<text x="{x0}" y="18">{title}</text>')
        level = top + height * (1 - at_mark / limit) + 5
        parts.append(f'<text x="{x0 - 6}" y="{level:.0f}" text-anchor="end">{mark}</text>')
        parts.append(f'<path class="g" fill="none" d="M{x0} {top}V{top + height}H{x0 + width}"/>')
        for tick in range(0, int(x[-1]) + 1, 4):
            at = x0 + width * tick / float(x[-1])
            parts.append(f'<text x="{at:.0f}" y="{top + height + 16}" text-anchor="middle">{tick}</text>')
        parts.append(
            f'<text x="{x0 + width}" y="{top + height + 34}" text-anchor="end">distance from the dot, px</text>'
        )
        for j, (name, y) in enumerate(curves):
            colour = colours[j if len(curves) == 3 else 2 * j]
            pairs = [(a, b) for a, b in zip(x.tolist(), y.tolist()) if b <= limit and math.isfinite(b)]
            line = " ".join(
                f"{x0 + width * a / float(x[-1]):.1f},{top + height * (1 - b / limit):.1f}" for a, b in pairs
            )
            parts.append(f'<polyline class="a" stroke="{colour}" points="{line}"/>')
            parts.append(
                f'<text x="{x0 + (width - 60 if k == 0 else 60)}" y="{top + 16 + 18 * j}" style="fill:{colour}">{name}</text>'
            )
    return "\n".join([*parts, "</svg>\n"])


def main(run: str) -> None:
    """Write every picture beside this file."""
    made = targets_and_prediction(run).permute(1, 2, 0).numpy()
    few = Image.fromarray(made).quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(HERE / "targets.png", optimize=True)
    (HERE / "kernel.svg").write_text(kernels(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
