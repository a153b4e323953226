"""Files of two published crowd datasets, in a folder of one's own.

    nwpu            images/a.jpg, jsons/a.json (or beside it)         {"points": [[x, y], …], "boxes": [[x1, y1, x2, y2], …]}
    shanghaitech    images/a.jpg, ground_truth/GT_a.mat (or beside it)     image_info{1}.location of n × 2

Pixel origin: 0 and −0.5, as `readers/nwpu.py` and `readers/shanghaitech.py` say why.
"""

from __future__ import annotations

from pathlib import Path

from papm.data.base import Annotation
from papm.data.readers.jsonfile import has_keys, is_object, peek
from papm.data.readers.kinds import MAYBE, NO, SURELY, Context


def looks_like_nwpu(path: Path) -> int:
    """Whether a JSON file has a list of points and nothing of LabelMe's."""
    content = peek(path)
    if not is_object(content) or not has_keys(content, "points") or has_keys(content, "shapes", "images", "classes"):
        return NO
    return SURELY if has_keys(content, "human_num", "boxes", "img_id") else MAYBE


def read_nwpu(path: Path, image: Path, context: Context) -> Annotation:
    """Heads of one JSON file."""
    from papm.data.readers import nwpu

    return nwpu.read_json(path, origin=context.origin)


def looks_like_mat(path: Path) -> int:
    """Whether a file begins as MATLAB's."""
    return SURELY if peek(path).startswith(b"MATLAB") else NO


def read_mat(path: Path, image: Path, context: Context) -> Annotation:
    """Heads of one GT_NAME.mat."""
    from papm.data.readers import shanghaitech

    return shanghaitech.read_points(path, origin=context.origin)
