"""Formats of annotation files: one file each, with `detect`, `read` and `write`."""

from importlib import import_module

from papm.data.formats.base import FORMATS, Format, PerImage, Sheet, formats, register

__all__ = ["FORMATS", "Format", "PerImage", "Sheet", "formats", "register"]

# In the order in which they are listed, and asked about a file.
for _name in (
    *("txt", "csv", "coco", "yolo", "voc", "cvat", "labelstudio", "labelme", "via"),
    *("imagej", "roi", "cellcounter", "napari", "qupath", "dotdotgoose", "dotmap", "masks", "nwpu", "shanghaitech"),
):
    import_module(f"papm.data.formats.{_name}")
