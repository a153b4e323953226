"""Pages: templates with everything escaped, numbers in words, pictures inside the file.

A page is one file that asks the network for nothing; its policy forbids scripts, because names of files are not to be trusted.
"""

from __future__ import annotations

import base64
import functools
import io
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from torch import Tensor

from papm.errors import DataError
from papm.extras import require
from papm.files import write_text
from papm.images import read_image
from papm.text import duration as duration
from papm.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

log = logging.getLogger(__name__)

WIDEST = 1500  # px of an embedded picture: a panel of three stays sharp on a wide screen at about 200 kB
QUALITY = 82  # of its JPEG


@dataclass(frozen=True)
class Picture:
    """An image inside a page."""

    caption: str
    source: str  # data: address
    width: int
    height: int


class Fact:
    """A figure on top of a page, what it is called, and lines below it."""

    def __init__(self, name: str, value: str, *below: str, remark: str = "") -> None:
        self.name, self.value, self.remark = name, value, remark
        self.below = [words for words in below if words]


def require_pages() -> None:
    """Refuse with what to install where pages cannot be written."""
    require("report", "a page needs")


@functools.cache
def environment() -> Environment:
    """Templates of this package; autoescape is on for all of them."""
    require_pages()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("papm.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"figure": figure, "percent": percent, "duration": duration, "whole": whole}
    return made


def render(template: str, path: Path, **values: object) -> Path:
    """Fill a template and write the page whole."""
    html = environment().get_template(template).render(version=__version__, **values)
    # Names of files may hold bytes that are no text; a page is UTF-8.
    write_text(path, html.encode("utf-8", "replace").decode("utf-8"))
    return path


def said(*sentences: tuple[object, str]) -> list[str]:
    """The sentences whose condition holds.

    >>> said((0, "nothing"), (True, "something"))
    ['something']
    """
    return [words for holds, words in sentences if holds]


def embed(pictures: Iterable[tuple[str, Path]]) -> list[Picture]:
    """Image files as JPEG inside the page; one that cannot be read is left out with a warning."""
    made = []
    for caption, path in pictures:
        try:
            made.append(picture(caption, read_image(path)))
        except DataError as error:
            log.warning("left out of the report: %s", error)
    return made


def picture(caption: str, pixels: Tensor) -> Picture:
    """An image, uint8 [3, H, W], as JPEG inside the page."""
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    image.thumbnail((WIDEST, 2 * WIDEST), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY, optimize=True)
    source = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    return Picture(caption, source, image.width, image.height)


def figure(value: float | None, sign: bool = False) -> str:
    """A figure of error with as many digits as it deserves; a dash where there is none.

    >>> figure(57.123), figure(1234.56), figure(0.1234), figure(None)
    ('57.12', '1,234.6', '0.123', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    digits = 1 if size >= 100 else 2 if size >= 1 or size == 0 else 3
    return f"{value:{'+' if sign else ''},.{digits}f}".replace("-", "−")


def percent(value: float | None, sign: bool = False) -> str:
    """A fraction in percent.

    >>> percent(0.1234), percent(-0.02, sign=True), percent(None)
    ('12.3 %', '−2.0 %', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    return f"{100 * value:{'+' if sign else ''}.1f} %".replace("-", "−")


def whole(value: float | None) -> str:
    """A whole number with its thousands apart.

    >>> whole(30000), whole(None)
    ('30,000', '–')
    """
    return "–" if value is None else f"{value:,.0f}"
