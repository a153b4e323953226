"""Draw the pictures of the documentation with papm itself, from synthetic scenes only.

papm train synthetic:train=80,test=20 --backbone tiny --out runs/picture steps=1000 select=last
python docs/images/make_images.py runs/picture
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from papm import Counter, data
from papm.data.click_model import Annotator
from papm.draw import figure, panel, title_size
from papm.points import crop
from papm.study.figures import FIGURES, Asked
from papm.targets import density_map

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


def main(run: str | None = None) -> None:
    """Write every picture beside this file; without a run, the curves alone."""
    for name, file in (("kernel-shapes", "kernel.svg"), ("cost-shapes", "costs.svg")):
        FIGURES.get(name).draw(Asked()).save(HERE / file)
    if run is None:
        return
    made = targets_and_prediction(run).permute(1, 2, 0).numpy()
    few = Image.fromarray(made).quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    few.save(HERE / "targets.png", optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
