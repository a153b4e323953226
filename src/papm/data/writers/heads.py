"""Files as of two crowd datasets: `jsons/NAME.json` of NWPU-Crowd, `ground_truth/GT_NAME.mat` of ShanghaiTech."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from papm.data.writers.base import Item, Writer, atomically, put_json


def _nwpu(items: Iterable[Item], folder: Path) -> None:
    for item in items:
        content: dict[str, Any] = {"img_id": item.file.name, "human_num": len(item.points)}
        content["points"] = [list(p) for p in item.points]
        content["boxes"] = [list(b) for b in item.boxes or ()]
        put_json(folder / "jsons" / f"{item.name}.json", content)


def _shanghaitech(items: Iterable[Item], folder: Path) -> None:
    import scipy.io

    for item in items:
        info = np.empty((1, 1), dtype=object)  # a cell that holds a struct
        location = np.asarray(item.points, dtype=np.float64).reshape(-1, 2)
        info[0, 0] = {"location": location, "number": float(len(location))}

        def save(path: Path, info: Any = info) -> None:
            with path.open("wb") as stream:
                scipy.io.savemat(stream, {"image_info": info})

        atomically(folder / "ground_truth" / f"GT_{item.name}.mat", save)


NWPU = Writer(_nwpu, boxes="beside", labels=False)
SHANGHAITECH = Writer(_shanghaitech, labels=False)
