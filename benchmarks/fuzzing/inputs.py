"""The families of files: annotations of every format and published layout, regions, images of sixteen encodings."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fuzzing.subjects import Files, Small, pixels, read_dataset, recognised
from fuzzing.trees import TREES, text
from papm.data.convert import write_folder
from papm.data.formats import FORMATS
from papm.images import frames, image_size, read_image
from papm.metrics import nwpu
from papm.predict.localization import from_files
from papm.structures import Sample

SIZE = (30, 40)  # (H, W)
PICTURES = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp"}


def photo(seed: int = 0, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Something with structure, uint8 [H, W, 3]."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]]
    waves = np.stack([np.sin(x / (3 + k)) * np.cos(y / (5 - k)) for k in range(3)], -1)
    return (127 + 80 * waves + rng.normal(0, 12, (*size, 3))).clip(0, 255).astype(np.uint8)


def samples(roi: bool = False) -> list[Sample]:
    """Two images with points, labels and boxes."""
    made = []
    for k, name in enumerate(("a", "b")):
        xy = torch.tensor([[3.5, 4.5], [20.5, 11.5], [36.5, 27.5], [12.5, 22.5 + k]])
        boxes = torch.cat([xy - 2, xy + 2], 1)
        image = torch.from_numpy(photo(k)).permute(2, 0, 1)
        made.append(
            Sample(
                name,
                lambda image=image: image,  # type: ignore[misc]
                xy,
                SIZE,
                labels=torch.tensor([0, 1, 0, 1]),
                boxes=boxes,
                roi_source=(lambda: torch.arange(40).expand(30, 40) < 30) if roi else None,
                meta={"classes": ("car", "bus")},
            )
        )
    return made


def of_kinds(root: Path, kinds: set[str] | None = None, *, but: set[str] = frozenset()) -> list[Path]:  # type: ignore[assignment]
    """Files of a tree with these endings, or with all but those."""
    found = [p for p in sorted(root.rglob("*")) if p.is_file()]
    return [p for p in found if (kinds is None or p.suffix in kinds) and p.suffix not in but]


def annotation(format: str) -> Callable[[Path], Files]:
    """A folder in one of the formats of annotation files; one time in four papm finds out which."""

    def make(root: Path) -> Files:
        write_folder(samples(), root, to=format)
        files = [p for p in of_kinds(root) if p.suffix not in PICTURES or "images" not in p.parts]
        own = [p for p in files if p.name != "classes.txt"]
        return Files(
            [*own, *own, *files],
            lambda chance: recognised(root) if chance < 0.25 else read_dataset("folder", root, format=format),
        )

    return make


def published(name: str) -> Callable[[Path], Files]:
    """The layout of a published dataset; one file in ten that is changed is an image."""

    def make(root: Path) -> Files:
        TREES[name](root)
        files = of_kinds(root, but=PICTURES)
        pictures = [
            p for p in of_kinds(root, PICTURES) if not p.name.endswith("dots.png")
        ]  # TRANCOS has them beside its texts
        often = [*files] * (1 + 9 * len(pictures) // len(files))
        return Files([*often, *pictures], lambda chance: read_dataset(name, root))

    return make


def mask(root: Path) -> Files:
    """Regions of interest as masks."""
    write_folder(samples(roi=True), root)
    return Files(of_kinds(root / "roi"), lambda chance: read_dataset("folder", root))


def regions(root: Path) -> Files:
    """Regions of interest as polygons."""
    write_folder(samples(), root)
    table = {"a.png": [[[1, 1], [30, 2], [20, 28]], [[2, 20], [9, 21.5], [5, 29]]], "*": [[[0, 0], [40, 0], [40, 30]]]}
    text(root / "roi.json", json.dumps(table))
    return Files([root / "roi.json"], lambda chance: read_dataset("folder", root))


def annotators(root: Path) -> Files:
    """Images that three people marked."""
    for sample in samples():
        for k, person in enumerate(("anna", "ben", "cleo")):
            text(
                root / "annotators" / person / f"{sample.name}.txt",
                "".join(f"{x + k / 4} {y}\n" for x, y in sample.points),
            )
        (root / "images").mkdir(exist_ok=True)
        Image.fromarray(sample.image.permute(1, 2, 0).numpy()).save(root / "images" / f"{sample.name}.png")
    return Files(of_kinds(root / "annotators"), lambda chance: read_dataset("folder", root))


def localization(root: Path) -> Files:
    """The two text files of the NWPU protocol, as `papm eval --localization nwpu` reads and compares them."""
    text(root / "truth.txt", "1 2 0 0 3 5 1 6 0 3 5 2\n2 1 50 50 4 6 2\n3 0\n")
    text(root / "found.txt", "1 2 5 0 11 0\n2 1 51 50\n3 1 9 9\n")

    def read(chance: float) -> Any:
        made = from_files(root / "found.txt", root / "truth.txt")
        return repr(nwpu(made.predicted, made.truth, made.sigma_s, made.sigma_l, made.levels))

    return Files([root / "truth.txt", root / "found.txt"], read)


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[274] = 6
    return exif


def _floats() -> Image.Image:
    return Image.fromarray(photo()[..., 0].astype(np.float32) / 255)


# name → ending, how the picture is made, how it is saved
ENCODINGS: Mapping[str, tuple[str, Callable[[], Image.Image], dict[str, Any]]] = {
    "jpeg": (".jpg", lambda: Image.fromarray(photo()), {"quality": 90}),
    "jpeg-progressive": (".jpg", lambda: Image.fromarray(photo()), {"progressive": True}),
    "jpeg-cmyk": (".jpg", lambda: Image.fromarray(photo()).convert("CMYK"), {}),
    "jpeg-exif": (".jpg", lambda: Image.fromarray(photo()), {"exif": _exif()}),
    "png": (".png", lambda: Image.fromarray(photo()), {}),
    "png-palette": (".png", lambda: Image.fromarray(photo()).quantize(64), {"transparency": 3}),
    "png-16-bit": (".png", lambda: Image.fromarray(photo()[..., 0].astype(np.uint16) * 257), {}),
    "png-alpha": (".png", lambda: Image.fromarray(np.dstack([photo(), photo()[..., 0]])), {"exif": _exif()}),
    "bmp": (".bmp", lambda: Image.fromarray(photo()), {}),
    "tiff": (".tif", lambda: Image.fromarray(photo()), {}),
    "tiff-lzw": (".tif", lambda: Image.fromarray(photo()), {"compression": "tiff_lzw"}),
    "tiff-deflate": (".tif", lambda: Image.fromarray(photo()), {"compression": "tiff_adobe_deflate"}),
    "tiff-float": (".tif", _floats, {}),
    "tiff-pages": (
        ".tif",
        lambda: Image.fromarray(photo()),
        {"save_all": True, "append_images": [Image.fromarray(photo(1))]},
    ),
    "webp": (".webp", lambda: Image.fromarray(photo()), {"quality": 80}),
    "webp-lossless": (".webp", lambda: Image.fromarray(photo()), {"lossless": True}),
}


def picture(name: str) -> Callable[[Path], Files]:
    """An image of one of the encodings, counted as `papm predict` counts it."""

    def make(root: Path) -> Files:
        suffix, draw, options = ENCODINGS[name]
        path = root / f"photo{suffix}"
        buffer = io.BytesIO()
        draw().save(buffer, format={".jpg": "JPEG", ".tif": "TIFF"}.get(suffix, suffix[1:].upper()), **options)
        path.write_bytes(buffer.getvalue())

        def read(chance: float) -> Any:
            size, several = image_size(path), frames(path)
            return (*Small.count(path), size, several, pixels(read_image(path)))

        return Files([path], read)

    return make


FILES: Mapping[str, Callable[[Path], Files]] = {
    **{f"format/{name}": annotation(name) for name in FORMATS},
    "format/annotators": annotators,
    "format/regions": regions,
    "format/masks": mask,
    "format/localization": localization,
    **{f"published/{name}": published(name) for name in TREES},
    **{f"image/{name}": picture(name) for name in ENCODINGS},
}
