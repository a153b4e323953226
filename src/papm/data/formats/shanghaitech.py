"""MATLAB files as of ShanghaiTech, `image_info{1}.location` of n × 2 per image, in a folder of one's own.

Pixel origin: −0.5, as `readers/shanghaitech.py` says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from papm.data.base import Annotation
from papm.data.formats.base import NO, SURELY, Context, PerImage, register
from papm.data.formats.items import Item
from papm.data.formats.jsonfile import peek


@register
class ShanghaiTech(PerImage):
    """MATLAB files as of ShanghaiTech: points"""

    name = "shanghaitech"
    layout = "images/NAME.jpg, ground_truth/GT_NAME.mat"
    endings = (".mat",)
    prefix = "GT_"
    origin = -0.5
    labels = False

    def detect(self, path: Path) -> int:
        return SURELY if peek(path).startswith(b"MATLAB") else NO

    def read(self, path: Path, image: Path, context: Context) -> Annotation:
        from papm.data.readers.shanghaitech import read_points  # which registers datasets: not before their turn

        return read_points(path, origin=context.origin)

    def write(self, items: Iterable[Item], folder: Path) -> None:
        import scipy.io

        (folder / "ground_truth").mkdir(parents=True, exist_ok=True)
        for item in items:
            info = np.empty((1, 1), dtype=object)  # a cell that holds a struct
            location = np.asarray(item.points, dtype=np.float64).reshape(-1, 2)
            info[0, 0] = {"location": location, "number": float(len(location))}
            with (folder / "ground_truth" / f"GT_{item.name}.mat").open("wb") as stream:
                scipy.io.savemat(stream, {"image_info": info})
