"""Datasets: `papm.data.open("shanghaitech-a", root)["train"][0].points`."""

from papm.data import synthetic
from papm.data.base import Annotation, Dataset, Entry, Reader, open, open_spec, parse_spec, register
from papm.data.readers import folder, shanghaitech

__all__ = [
    "Annotation",
    "Dataset",
    "Entry",
    "Reader",
    "folder",
    "open",
    "open_spec",
    "parse_spec",
    "register",
    "shanghaitech",
    "synthetic",
]
