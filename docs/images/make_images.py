"""Draw the pictures of the documentation with papm itself, from synthetic scenes only.

papm train synthetic:train=80,test=20 --backbone tiny --out runs/picture steps=1000 select=last
python docs/images/make_images.py runs/picture
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from papm import Counter, data, ggd
from papm.data.click_model import Annotator
from papm.draw import figure, panel, title_size
from papm.points import crop
from papm.targets import density_map
from papm.transport import Cost

HERE = Path(__file__).parent
SCENE, CORNER, SIDE, ZOOM = 18, (96, 16), 128, 3  # no head and no click near the border of this window
LOOK: dict[str, Any] = {"headed": False, "text": title_size(SIDE * ZOOM), "max_side": SIDE * ZOOM}


def target(image: Tensor, points: Tensor, kernel: str, sigma: float, shape: float) -> Tensor:
    """A learning target over its image."""
    made = density_map(points, (SIDE, SIDE), kernel, sigma, shape)  # type: ignore[arg-type]
    return figure(image, made, **LOOK)


def targets_and_prediction(run: str) -> Tensor:
    """Dots, the two targets made from the misplaced ones, and what a small network counts."""
    sample = data.open("synthetic", train=1, test=20)["test"][SCENE]
    misplaced = Annotator("extent", 0.35).annotate(sample, seed=0)
    x, y = CORNER
    photo = sample.image[:, y : y + SIDE, x : x + SIDE]
    true, _ = crop(sample.points, (x, y), (SIDE, SIDE))
    dots, _ = crop(misplaced.points, (x, y), (SIDE, SIDE))
    made = Counter.load(run, "cpu").predict(sample.image)
    assert made.density is not None and made.points is not None
    s = made.stride
    part = made.density[:, y // s : (y + SIDE) // s, x // s : (x + SIDE) // s]
    found, _ = crop(made.points, (x, y), (SIDE, SIDE))
    pictures = [
        figure(photo, points=dots, truth=true, **LOOK),
        target(photo, dots, "gaussian", 4.0, 2.0),
        target(photo, dots, "ggd", 4.0, 8.0),
        figure(photo, part, s, points=found, truth=true, **LOOK),
    ]
    titles = [
        "centres (rings), clicks (dots)",
        "target: Gaussian, sigma 4",
        "target: HD-PAPM, sigma 4, s 8",
        f"a small network: {float(part.sum()):.1f} of {len(true)}",
    ]
    return panel(pictures, titles)


@dataclass(frozen=True)
class Plot:
    """Curves over the distance from a dot; `level` is the height that is marked on the axis."""

    title: str
    r: Tensor
    curves: dict[str, Tensor]
    limit: float
    level: float
    colours: tuple[str, ...] = ("#888", "#3b82c4", "#2a9d8f", "#d1495b", "#b07aa1")
    legend: int = 60  # distance of the names from the axis
    line: float | None = None  # a height drawn across


def svg(plots: Sequence[Plot]) -> str:
    """Plots side by side."""
    width, height, left, top, gap = 340, 190, 40, 30, 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {len(plots) * (width + gap) - gap + 2 * left} {height + 80}" '
        'font-family="sans-serif" font-size="13">',
        "<style>text{fill:#777}.a{fill:none;stroke-width:2}.g{stroke:#999;stroke-width:1}</style>",
    ]
    for k, plot in enumerate(plots):
        x0, longest = left + k * (width + gap), float(plot.r[-1])
        parts.append(f'<text x="{x0}" y="18">{plot.title}</text>')
        level = top + height * (1 - plot.level / plot.limit) + 5
        parts.append(f'<text x="{x0 - 6}" y="{level:.0f}" text-anchor="end">{plot.level:g}</text>')
        parts.append(f'<path class="g" fill="none" d="M{x0} {top}V{top + height}H{x0 + width}"/>')
        if plot.line is not None:
            at = top + height * (1 - plot.line / plot.limit)
            parts.append(f'<path class="g" stroke-dasharray="4" d="M{x0} {at:.1f}H{x0 + width}"/>')
        for tick in range(0, int(longest) + 1, 4 if longest <= 32 else 8):
            at = x0 + width * tick / longest
            parts.append(f'<text x="{at:.0f}" y="{top + height + 16}" text-anchor="middle">{tick}</text>')
        parts.append(
            f'<text x="{x0 + width}" y="{top + height + 34}" text-anchor="end">distance from the dot, px</text>'
        )
        for j, (name, y) in enumerate(plot.curves.items()):
            pairs = [(a, b) for a, b in zip(plot.r.tolist(), y.tolist()) if b <= plot.limit and math.isfinite(b)]
            line = " ".join(
                f"{x0 + width * a / longest:.1f},{top + height * (1 - b / plot.limit):.1f}" for a, b in pairs
            )
            parts.append(f'<polyline class="a" stroke="{plot.colours[j]}" points="{line}"/>')
            parts.append(
                f'<text x="{x0 + plot.legend}" y="{top + 16 + 18 * j}" style="fill:{plot.colours[j]}">{name}</text>'
            )
    return "\n".join([*parts, "</svg>\n"])


def kernels() -> str:
    """The kernel as a curve for three shapes, and the cost built from it."""
    r, far = (torch.linspace(0, end, 241, dtype=torch.float64) for end in (12, 32))
    costs = {"r²": far**2, "r²/k, σ = 16, s = 2": ggd.transport_cost(far**2, 16.0, 2.0)}
    kernel = {f"s = {s}": ggd.kernel(r**2, 4.0, s) for s in (2, 4, 8)}
    return svg(
        [
            Plot("kernel, σ = 4", r, kernel, 1.05, 1.0, ("#888", "#3b82c4", "#d1495b"), legend=280),
            Plot("transport cost, px²", far, costs, 2000.0, 2000.0, ("#888", "#d1495b")),
        ]
    )


def costs() -> str:
    """The paper's figures of the transport cost: by σ, by s, and beside other costs. Dashed: the dustbin."""
    r = torch.linspace(0, 40, 241, dtype=torch.float64)
    bin_cost = 10 * math.log(1e16)
    by_sigma = {f"σ = {s}": ggd.transport_cost(r**2, s, 2.0) for s in (4, 8, 16, 32)}
    by_shape = {f"s = {s:g}": ggd.transport_cost(r**2, 16.0, s) for s in (0.5, 1, 2, 4, 8)}
    others = {
        "l2": Cost("l2")(r**2),
        "log-ggd, σ = 16, s = 4": Cost("log-ggd", 16.0, 4.0)(r**2),
        "ggd-l1, σ = 16, s = 2": Cost("ggd-l1", 16.0, 2.0)(r**2),
        "ggd-l2, σ = 16, s = 2": Cost("ggd-l2", 16.0, 2.0)(r**2),
    }
    titles = ("ggd-l2, s = 2", "ggd-l2, σ = 16", "costs by name")
    return svg(
        [Plot(t, r, c, 1500.0, 1500.0, legend=8, line=bin_cost) for t, c in zip(titles, (by_sigma, by_shape, others))]
    )


def main(run: str | None = None) -> None:
    """Write every picture beside this file; without a run, the curves alone."""
    (HERE / "kernel.svg").write_text(kernels(), encoding="utf-8")
    (HERE / "costs.svg").write_text(costs(), encoding="utf-8")
    if run is None:
        return
    made = targets_and_prediction(run).permute(1, 2, 0).numpy()
    few = Image.fromarray(made).quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    few.save(HERE / "targets.png", optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
