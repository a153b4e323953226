"""YAML, files of torch.save and of safetensors that may come from strangers: no code is run, what they hold is bounded."""

from __future__ import annotations

import json
import math
import pickle
import re
import reprlib
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

MOST_VALUES = 1_000_000  # in one file; each counts once for every place it stands in
DEEPEST = 40
LONGEST_YAML = 64_000  # characters; PyYAML reads some 20,000 a second
LONGEST_HEADER = 4_000_000  # bytes: what a .safetensors file says about itself
LARGEST = 2**63  # whole numbers beyond are no setting of anything, and overflow what computes with them

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 80, 80


def brief(value: object, most: int = 60) -> str:
    """A value for a message, cut where it is long.

    >>> brief(3.5), brief("a" * 100, 5), brief([list(range(9))] * 100, 40)
    ('3.5', 'aaaaa…', '[[0, 1, 2, 3, 4, 5, ...], [0, 1, 2, 3, 4…')
    """
    text = value if isinstance(value, str) else _SHORT.repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


def is_whole(value: Any, least: int = 1, most: int = LARGEST) -> bool:
    """Whether this is a whole number within these bounds; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def are_numbers(values: Any, length: int) -> bool:
    """Whether this is a tuple of so many finite numbers.

    >>> are_numbers((1, 2.5), 2), are_numbers((1, True), 2), are_numbers((1, float("nan")), 2), are_numbers([1, 2], 2)
    (True, False, False, False)
    """
    return (
        isinstance(values, tuple)
        and len(values) == length
        and all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    )


def require_plain(value: Any, most: int = MOST_VALUES) -> None:
    """ValueError, with the reason, for what is too large, nested too deeply, or holds tensors that are not plain numbers."""
    seen, waiting = 0, [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        seen += 1
        if seen > most or depth > DEEPEST:
            raise ValueError(f"more than {most:,} values" if seen > most else f"nested more than {DEEPEST} deep")
        if isinstance(item, dict):
            inside = [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set):
            inside = list(item)
        else:
            if isinstance(item, int) and abs(item) >= LARGEST:
                raise ValueError("a whole number of more than 18 digits")
            if isinstance(item, Tensor):
                _require_dense(item)
            continue
        if seen + len(waiting) + len(inside) > most:
            raise ValueError(f"more than {most:,} values")
        waiting += [(v, depth + 1) for v in inside]


def _require_dense(tensor: Tensor) -> None:
    if tensor.device.type == "meta":
        raise ValueError("a tensor without values")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"a {'quantized' if tensor.is_quantized else 'sparse'} tensor; papm reads plain ones")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError("a tensor that is larger than its data")


class _Loader(yaml.SafeLoader):
    """Plain values, each written out: a few lines of aliases stand for as many values as one likes."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        problem = "aliases (*name) are not read: write the value out" if self.check_event(yaml.AliasEvent) else None
        if problem or self.depth > DEEPEST:
            where = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=problem or f"nested more than {DEEPEST} deep", problem_mark=where)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def load_yaml(text: str) -> Any:
    """The values of a YAML text; raises YAMLError or ValueError (a date that is none, a number that is too large)."""
    if len(text) > LONGEST_YAML:
        raise ValueError(f"more than {LONGEST_YAML:,} characters")
    loader = _Loader(text)
    try:
        values = loader.get_single_data()
    finally:
        loader.dispose()
    require_plain(values)
    return values


def load_tensors(path: Path) -> Any:
    """What a file of torch.save holds: plain values, and dense tensors on the CPU. ValueError with the reason.

    torch.save stores records as they are. One that is compressed, or said to be larger than the file, would take memory
    without bound before its tensors can be looked at.
    """
    try:
        with path.open("rb") as stream:
            zipped = stream.read(4) == b"PK\x03\x04"  # as torch tells its present format from older ones
        if zipped:
            _require_stored(path)
    except OSError as error:
        raise ValueError(error.strerror or "it cannot be read") from None
    try:
        with warnings.catch_warnings():  # of pickle protocols
            warnings.simplefilter("ignore")
            values = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise whatever the unpickler trips over
        raise ValueError(_why_unreadable(path, error)) from None
    require_plain(values)
    return values


def _require_stored(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except Exception:  # struct.error, ValueError, … as the damage will have it
        raise ValueError("it is cut off or damaged") from None
    if not any(r.filename.endswith("data.pkl") for r in records):
        raise ValueError("it is a zip archive of something else")
    if any(r.compress_type != zipfile.ZIP_STORED for r in records):
        raise ValueError("it is compressed, which torch.save does not do")
    if sum(r.file_size for r in records) > path.stat().st_size:
        raise ValueError("its records are larger than the file")


def _why_unreadable(path: Path, error: Exception) -> str:
    """Why a file cannot be read as tensors, in words: torch speaks of its own options, at length."""
    with path.open("rb") as stream:
        head = stream.read(512)
    if not head:
        return "it is empty"
    if head.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS, not the file itself ('git lfs pull' fetches that)"
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return "it is a web page; a download went wrong"
    if isinstance(error, pickle.UnpicklingError) and head[:1] in (b"P", b"\x80"):
        found = re.search(r"GLOBAL ([\w.]+)|([\w.]+) was not an allowed global", str(error))
        named = f" ({found[1] or found[2]})" if found else ""
        return f"it holds Python objects other than tensors{named}, which could run code and are not loaded"
    if head[:2] != b"PK" and all(byte >= 32 or byte in b"\t\n\r\f" for byte in head):
        return "it is a text file"
    return "it is damaged, or something else"


def read_header(path: Path) -> dict[str, str]:
    """What a .safetensors file says about itself, words by name; no tensor is read. ValueError with the reason."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(LONGEST_HEADER, path.stat().st_size - 8):
                raise ValueError(_why_unreadable(path, ValueError()))
            header = json.loads(stream.read(length))
    except OSError as error:
        raise ValueError(error.strerror or "it cannot be read") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError("it is damaged, or something else") from None
    found = header.get("__metadata__", {}) if isinstance(header, dict) else None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError("it is damaged, or something else")
    return found


def load_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a .safetensors file, on the CPU, and what it says about itself. ValueError with the reason."""
    header = read_header(path)
    try:
        tensors = load_file(path)
    except Exception:  # whatever its reader trips over
        raise ValueError("it is damaged, or something else") from None
    require_plain(tensors)
    return tensors, header


def plain_json(text: str) -> Any:
    """What a text of JSON holds: plain values, within bounds, and no NaN. ValueError with the reason."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no number")

    try:
        values = json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    require_plain(values)
    return values
