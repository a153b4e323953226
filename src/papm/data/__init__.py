"""Datasets: `papm.data.open("shanghaitech-a", root)["train"][0].points`."""

from papm.data import synthetic
from papm.data.base import Annotation, Dataset, Entry, Reader, open, register, require_annotated
from papm.data.readers import bbbc039, carpk, dota, folder, jhu, nwpu, shanghaitech, trancos, ucf
from papm.data.spec import open_spec, parse_spec

__all__ = [
    "Annotation",
    "Dataset",
    "Entry",
    "Reader",
    "bbbc039",
    "carpk",
    "dota",
    "folder",
    "jhu",
    "nwpu",
    "open",
    "open_spec",
    "parse_spec",
    "register",
    "require_annotated",
    "shanghaitech",
    "synthetic",
    "trancos",
    "ucf",
]
