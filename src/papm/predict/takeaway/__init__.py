"""Files to take results away in, beside the tables that are always written: one file each, with `files`."""

from importlib import import_module

from papm.predict.takeaway.base import RESULT_FORMATS, ResultFormat, Taken, register, save, save_one

__all__ = ["RESULT_FORMATS", "ResultFormat", "Taken", "register", "save", "save_one"]

for _name in ("xlsx", "geojson", "roiset"):
    import_module(f"papm.predict.takeaway.{_name}")
