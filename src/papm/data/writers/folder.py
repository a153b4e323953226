"""Write samples as a `folder` dataset: images/NAME.jpg with NAME.txt beside it.

Every file is written under another name and renamed, so that an interrupted run leaves no half files. Points come back
bit for bit. What the text format cannot hold (boxes, regions of interest, perspective) is left out, with a warning in the log.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image

from papm.errors import DataError
from papm.images import is_image_name
from papm.structures import Sample

logger = logging.getLogger(__name__)


def write_folder(
    dataset: Iterable[Sample],
    out: str | Path,
    copy_images: bool | Literal["link"] = True,
    *,
    overwrite: bool = False,
    inside_only: bool = False,
) -> int:
    """Write every sample to `out/images`; gives the number of images.

    `copy_images`: True copies the files, "link" makes symbolic links to them (copies where links are not possible), False
    writes the points alone. Images that are drawn on demand are saved as PNG. `inside_only` leaves out points outside
    their image, which `papm data check` counts as errors in folder data. A folder with something in it is refused without
    `overwrite`.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: is a file; give a folder to write to")
    if not overwrite and out.is_dir() and any(out.iterdir()):
        raise DataError(f"{out}: not empty; choose a new folder, or allow overwriting")
    target = out / "images"
    target.mkdir(parents=True, exist_ok=True)
    written: set[str] = set()
    classes: tuple[str, ...] = ()
    lost: set[str] = set()
    for sample in dataset:
        name = _file_name(sample)
        if name.casefold() in written:
            raise DataError(f"{target / name}: two samples have this name; rename one")
        written.add(name.casefold())
        if inside_only:
            sample = sample.keep(sample.inside)
        lost |= {k for k in ("boxes", "roi_source", "perspective") if getattr(sample, k) is not None}
        classes = tuple(sample.meta.get("classes", ())) or classes
        if copy_images:
            _write_image(sample, target, name, link=copy_images == "link")
        _atomically(target / f"{name}.txt", partial(_put_text, text=_text(sample)))
    if classes:
        _atomically(out / "classes.txt", partial(_put_text, text="".join(f"{c}\n" for c in classes)))
    if lost:
        logger.warning("%s: folder data cannot hold %s; left out", out, ", ".join(sorted(lost)))
    return len(written)


def _file_name(sample: Sample) -> str:
    """A sample's name as a file name without suffix: `cam1/a.jpg` becomes `cam1_a`."""
    name = sample.name.replace("\\", "/").strip("/").replace("/", "_")
    if is_image_name(name):
        name = name.rpartition(".")[0]
    if not name or name.startswith(".") or any(ord(c) < 32 or c in '<>:"|?*' for c in name):
        raise DataError(f"{sample.path or 'a sample'}: the name {sample.name!r} cannot be a file name")
    return name


def _text(sample: Sample) -> str:
    """The lines of NAME.txt; float32 with as many digits as it takes to come back unchanged."""
    if not bool(torch.isfinite(sample.points).all()):
        raise DataError(f"{sample.path or sample.name}: has a point that is not finite")
    labels = None if sample.labels is None else sample.labels.tolist()
    lines = ["# x y" if labels is None else "# x y label"]
    for i, xy in enumerate(sample.points.cpu().numpy().astype(np.float32)):
        x, y = (np.format_float_positional(v, unique=True, trim="-") for v in xy)
        lines.append(f"{x} {y}" if labels is None else f"{x} {y} {labels[i]}")
    return "\n".join(lines) + "\n"


def _write_image(sample: Sample, target: Path, name: str, link: bool) -> None:
    source = sample.path
    if source is None:
        pixels = sample.image.permute(1, 2, 0).contiguous().cpu().numpy()
        _atomically(target / f"{name}.png", lambda p: Image.fromarray(pixels).save(p, "PNG"))
        return
    path = target / f"{name}{source.suffix.lower()}"
    if path.exists() and path.resolve() == source.resolve():
        raise DataError(f"{path}: would be written over itself; choose another folder")
    if link:
        try:
            _atomically(path, lambda p: p.symlink_to(source.resolve()))
            return
        except OSError as e:
            logger.warning("%s: cannot link (%s), copying", path, e.strerror or e)
    try:
        _atomically(path, partial(shutil.copyfile, source))
    except FileNotFoundError as e:
        raise DataError(f"{source}: no such image file") from e


def _put_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")


def _atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, then rename it there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
