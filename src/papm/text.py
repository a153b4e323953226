"""Words for people: counted nouns, and a repr of one line for structures that hold tensors.

Without torch, which commands load only when they run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

LONGEST = 200  # characters of a repr


def n_of(count: int, noun: str, plural: str | None = None) -> str:
    """So many of something.

    >>> n_of(1, "image"), n_of(1201, "image"), n_of(0, "process", "processes")
    ('1 image', '1,201 images', '0 processes')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


COLLAPSED = -0.5  # a bias that no shift of data explains
ZEROS = ": the network has learned little but zeros; train again with a lower lr or trunk_lr (1e-5), or another seed"


def megapixels(pixels: int) -> str:
    """Pixels in millions: four significant digits, whole thousands kept.

    >>> megapixels(3050), megapixels(500_250_000), megapixels(40_000_000_000)
    ('0.00305', '500.2', '40,000')
    """
    return f"{pixels / 1e6:,.0f}" if pixels >= 1_000_000_000 else f"{pixels / 1e6:.4g}"


def bias_of(bias: float, ends: Sequence[float] | None) -> str:
    """The bias of a total count in words, with its interval and whether it is more than chance.

    >>> bias_of(-0.0327, (-0.043, -0.023)), bias_of(0.002, (-0.008, 0.011)), bias_of(0.05, None)
    ('bias −3.3 % (95 % −4.3 to −2.3): too few, by more than chance', 'bias +0.2 % (95 % −0.8 to +1.1)', 'bias +5.0 %')
    >>> bias_of(-0.8, None)
    'bias −80.0 %: the network has learned little but zeros; train again with a lower lr or trunk_lr (1e-5), or another seed'
    """

    def percent(share: float) -> str:
        return f"{100 * share:+.1f}".replace("-", "−")

    if not ends or not all(map(math.isfinite, ends)):
        return f"bias {percent(bias)} %{ZEROS if bias < COLLAPSED else ''}"
    low, high = ends
    sure = ": too few, by more than chance" if high < 0 else ": too many, by more than chance" if low > 0 else ""
    sure = ZEROS if bias < COLLAPSED else sure
    return f"bias {percent(bias)} % (95 % {percent(low)} to {percent(high)}){sure}"


def interval(pair: Sequence[float] | None, to: str = " to ") -> str:
    """The two ends of an interval; nothing where there is none.

    >>> interval((1.0, 2.5)), interval((math.nan, math.nan)), interval(None)
    ('1.00 to 2.50', '', '')
    """
    return to.join(f"{v:.2f}" for v in pair) if pair and all(map(math.isfinite, pair)) else ""


def duration(seconds: float | None) -> str:
    """A time span in two units.

    >>> duration(4.2), duration(75), duration(7384), duration(None)
    ('4.2 s', '1 min 15 s', '2 h 3 min', '–')
    """
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


class Brief:
    """Base of dataclasses that hold tensors or arrays: a repr that gives their shapes, not their numbers.

    Declare them `@dataclass(frozen=True, eq=False, repr=False)`: `==` on tensors has no single answer, so two structures are
    equal when they are the same one, and can be put into sets.

    >>> import torch
    >>> @dataclasses.dataclass(frozen=True, eq=False, repr=False)
    ... class Found(Brief):
    ...     count: float
    ...     points: torch.Tensor
    ...     labels: torch.Tensor | None = None
    >>> Found(2.5, torch.zeros(3, 2))
    Found(count=2.5, points=float32[3, 2])
    """

    def __repr__(self) -> str:
        shown = [(f, getattr(self, f.name)) for f in dataclasses.fields(self) if f.repr]  # type: ignore[arg-type]
        said = ", ".join(f"{f.name}={_shown(v)}" for f, v in shown if v is not f.default and not _says_nothing(v))
        return _cut(f"{type(self).__name__}({said})", LONGEST)


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _says_nothing(value: object) -> bool:
    return value is None or (isinstance(value, Sized) and not _is_array(value) and not len(value))


def _shown(value: Any) -> str:
    if _is_array(value):
        device = getattr(value, "device", "cpu")
        # A tensor of one number is that number, unless it is only the idea of one: on meta, or traced (a kind of its own).
        if not value.shape and str(device) != "meta" and type(value).__name__ in ("Tensor", "ndarray"):
            return f"{value.item():.6g}"
        where = "" if str(device) == "cpu" else f" on {device}"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{where}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_cut(str(k), 20)}: {_shown(v)}" for k, v in list(value.items())[:4]) + "}"
    if isinstance(value, list | tuple):
        if len(value) > 4:
            return f"{type(value).__name__} of {len(value)}"
        inner = ", ".join(map(_shown, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return _cut(repr(value), LONGEST // 2)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 2] + "…" + text[-1]
