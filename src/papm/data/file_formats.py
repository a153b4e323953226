"""Every format of annotation files that a folder of one's own may have: one line each says how it is read and written.

`FORMATS[name]` is what `format=NAME` reads and `papm data convert --to NAME` writes. To add one, write `readers/NAME.py` (tell
it, read it) and `writers/NAME.py` (write it), and list it here.
"""

from __future__ import annotations

from pathlib import Path

from papm.data.readers import (
    coco,
    cvat,
    dotdotgoose,
    dotmap,
    formats,
    heads,
    imagej,
    labelme,
    labelstudio,
    qupath,
    via,
    voc,
    yolo,
)
from papm.data.readers.kinds import MAYBE, NO, SURELY, Context, Format, Sheet, Sidecar
from papm.data.readers.records import Points, Table
from papm.data.writers import coco as to_coco
from papm.data.writers import cvat as to_cvat
from papm.data.writers import dotdotgoose as to_dotdotgoose
from papm.data.writers import dotmap as to_dotmap
from papm.data.writers import heads as to_heads
from papm.data.writers import imagej as to_imagej
from papm.data.writers import labelme as to_labelme
from papm.data.writers import labelstudio as to_labelstudio
from papm.data.writers import qupath as to_qupath
from papm.data.writers import text as to_text
from papm.data.writers import via as to_via
from papm.data.writers import voc as to_voc
from papm.data.writers import yolo as to_yolo


def _looks_like_txt(path: Path) -> int:
    if not formats.looks_like_txt(path):
        return NO
    return SURELY if formats.head_lines(path) else MAYBE


def _looks_like_csv(path: Path) -> int:
    return SURELY if formats.looks_like_csv(path) else NO


def _read_txt(path: Path, image: Path, context: Context) -> Points:
    return formats.read_txt(path, context.wanted)


def _read_csv(path: Path, context: Context) -> Table:
    return formats.read_csv(path, context.wanted)


def _read_coco(path: Path, context: Context) -> Table:
    return coco.read_coco(path, context.wanted, context.keypoint)


_LISTED = (
    Format(
        name="txt",
        summary="text, 'x y [label]' a line",
        layout="NAME.jpg with NAME.txt beside it or in labels/",
        reader=Sidecar(lambda stem, folder: (f"{stem}.txt",), _looks_like_txt, _read_txt),
        writer=to_text.TXT,
        own_filter=True,
    ),
    Format(
        name="csv",
        summary="one CSV with the columns image, x, y and perhaps label",
        layout="images/NAME.jpg, points.csv",
        reader=Sheet((".csv", ".tsv"), _looks_like_csv, _read_csv, unlisted_is_empty=True),
        writer=to_text.CSV,
        own_filter=True,
    ),
    Format(
        name="coco",
        summary="COCO JSON: keypoints, or the centres of boxes",
        layout="images/NAME.jpg, annotations.json",
        reader=Sheet((".json",), coco.looks_like_coco, _read_coco),
        writer=to_coco.COCO,
        own_filter=True,
    ),
    Format(
        name="yolo",
        summary="YOLO text, 'class cx cy w h' a line in fractions: the centres of boxes",
        layout="images/NAME.jpg, labels/NAME.txt, data.yaml or classes.txt",
        reader=Sidecar(
            lambda stem, folder: (f"{stem}.txt",), yolo.looks_like_yolo, yolo.read_yolo, missing_is_empty=True
        ),
        writer=to_yolo.YOLO,
    ),
    Format(
        name="voc",
        summary="Pascal VOC XML: the centres of boxes",
        layout="images/NAME.jpg, annotations/NAME.xml",
        reader=Sidecar(lambda stem, folder: (f"{stem}.xml",), voc.looks_like_voc, voc.read_voc, named_labels=True),
        writer=to_voc.VOC,
    ),
    Format(
        name="cvat",
        summary="CVAT for images 1.1: points, the centres of boxes and ellipses, the centroids of polygons",
        layout="images/NAME.jpg, annotations.xml",
        reader=Sheet((".xml",), cvat.looks_like_cvat, cvat.read_cvat),
        writer=to_cvat.CVAT,
    ),
    Format(
        name="labelstudio",
        summary="Label Studio JSON: keypoints, the centres of boxes and ellipses, the centroids of polygons",
        layout="images/NAME.jpg, project.json",
        reader=Sheet((".json",), labelstudio.looks_like_labelstudio, labelstudio.read_labelstudio),
        writer=to_labelstudio.LABEL_STUDIO,
    ),
    Format(
        name="labelme",
        summary="LabelMe JSON: points, the centres of rectangles and circles, the centroids of polygons",
        layout="NAME.jpg with NAME.json beside it or in annotations/",
        reader=Sidecar(
            lambda stem, folder: (f"{stem}.json",), labelme.looks_like_labelme, labelme.read_labelme, named_labels=True
        ),
        writer=to_labelme.LABELME,
    ),
    Format(
        name="via",
        summary="VIA 2 JSON or CSV: points, the centres of rectangles and circles, the centroids of polygons",
        layout="images/NAME.jpg, via_project.json or via_export.csv",
        reader=Sheet((".json", ".csv"), via.looks_like_via, via.read_via),
        writer=to_via.VIA,
    ),
    Format(
        name="imagej",
        summary="tables of ImageJ or others, one per image: the columns X and Y",
        layout="NAME.jpg with NAME.csv beside it or in points/",
        reader=Sidecar(imagej.table_names, imagej.looks_like_imagej, imagej.read_imagej, named_labels=True),
        writer=to_imagej.IMAGEJ,
        stored=True,
    ),
    Format(
        name="qupath",
        summary="GeoJSON of QuPath: points, the centroids of cells, detections and classified areas",
        layout="NAME.jpg with NAME.geojson beside it or in annotations/",
        reader=Sidecar(qupath.geojson_names, qupath.looks_like_qupath, qupath.read_qupath, named_labels=True),
        writer=to_qupath.QUPATH,
        stored=True,
    ),
    Format(
        name="dotdotgoose",
        summary="DotDotGoose points",
        layout="NAME.jpg, points.pnt in the same folder",
        reader=Sheet((".pnt",), dotdotgoose.looks_like_dotdotgoose, dotdotgoose.read_dotdotgoose),
        writer=to_dotdotgoose.DOTDOTGOOSE,
    ),
    Format(
        name="dotmap",
        summary="dot maps: black PNGs with a dot on each object",
        layout="images/NAME.jpg, dots/NAME.png, or NAME_dots.png beside NAME.jpg",
        reader=Sidecar(dotmap.dot_names, dotmap.looks_like_dots, dotmap.read_dots),
        writer=to_dotmap.DOTMAP,
        origin=dotmap.ORIGIN,
    ),
    Format(
        name="nwpu",
        summary="JSON as of NWPU-Crowd: points and boxes",
        layout="images/NAME.jpg, jsons/NAME.json",
        reader=Sidecar(lambda stem, folder: (f"{stem}.json",), heads.looks_like_nwpu, heads.read_nwpu),
        writer=to_heads.NWPU,
    ),
    Format(
        name="shanghaitech",
        summary="MATLAB files as of ShanghaiTech: points",
        layout="images/NAME.jpg, ground_truth/GT_NAME.mat",
        reader=Sidecar(lambda stem, folder: (f"GT_{stem}.mat",), heads.looks_like_mat, heads.read_mat),
        writer=to_heads.SHANGHAITECH,
        origin=-0.5,
    ),
)

FORMATS: dict[str, Format] = {f.name: f for f in _LISTED}
