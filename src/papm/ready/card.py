"""The card of a model: what it counts, under which licence, how well; facts in YAML at the top, then words in Markdown.

---
counts: cells and nuclei under a microscope
licence: Apache-2.0
errors:
  - {data: BBBC039 test, images: 50, mae: 3.1, bias: 0.01, seen: true}
---
# cells …
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from papm.untrusted import brief, load_yaml

FENCE = "---"
LONGEST = 1_000  # characters of a fact
MOST = 100  # figures


@dataclass(frozen=True)
class Figure:
    """How well a model counts in images that it was not trained on; `seen`: whether others of that dataset taught it."""

    data: str
    images: int
    mae: float
    bias: float  # of the total count, as a share of it
    seen: bool = True
    relative: float | None = None  # mean of |error| / truth

    def __str__(self) -> str:
        """In words.

        >>> str(Figure("BBBC039 test", 50, 3.14, -0.012))
        'BBBC039 test: MAE 3.1, total −1.2 % (50 images)'
        """
        share = "" if self.relative is None else f", {100 * self.relative:.1f} % per image"
        total = f"{100 * self.bias:+.1f} %".replace("-", "−")
        return f"{self.data}: MAE {self.mae:.1f}{share}, total {total} ({self.images} images)"


@dataclass(frozen=True)
class Card:
    """What a model says about itself."""

    counts: str = ""
    licence: str = ""
    errors: tuple[Figure, ...] = ()
    text: str = ""  # Markdown

    @classmethod
    def parse(cls, text: str) -> Card:
        """The card that a text holds; ValueError, with the reason, for one that is no card.

        >>> Card.parse("---\\ncounts: cells\\n---\\n# cells\\n")
        Card(counts='cells', licence='', errors=(), text='# cells\\n')
        """
        head, fence, body = text.removeprefix(f"{FENCE}\n").partition(f"\n{FENCE}\n")
        if not text.startswith(f"{FENCE}\n") or not fence:
            return cls(text=text)
        try:
            facts = load_yaml(head)
        except yaml.YAMLError:
            raise ValueError("the facts of its card are no YAML") from None
        if not isinstance(facts, dict):
            raise ValueError("the facts of its card are no list of 'key: value' lines")
        rows = facts.get("errors") or []
        if not isinstance(rows, list) or len(rows) > MOST:
            raise ValueError("the errors of its card are no list")
        return cls(_words(facts, "counts"), _words(facts, "licence"), tuple(_figure(row) for row in rows), body)

    def write(self) -> str:
        """The text that `parse` reads."""
        rows = [{k: v for k, v in asdict(figure).items() if v is not None} for figure in self.errors]
        facts = {"counts": self.counts, "licence": self.licence, "errors": rows}
        made = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=120)
        return f"{FENCE}\n{made}{FENCE}\n{self.text}"

    def to_mapping(self) -> dict[str, Any]:
        """Plain types."""
        return {**asdict(self), "errors": [asdict(figure) for figure in self.errors]}


def _words(facts: Mapping[str, Any], key: str) -> str:
    value = facts.get(key, "")
    if not isinstance(value, str) or len(value) > LONGEST:
        raise ValueError(f"'{key}' of its card is a line of text, not {brief(value)}")
    return " ".join(value.split())


def _figure(row: Any) -> Figure:
    try:
        made = Figure(
            str(row["data"])[:LONGEST],
            int(row["images"]),
            float(row["mae"]),
            float(row["bias"]),
            bool(row.get("seen", True)),
            None if row.get("relative") is None else float(row["relative"]),
        )
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        raise ValueError(f"{brief(row)} is no figure of a card: data, images, mae, bias") from None
    if not all(math.isfinite(v) for v in (made.mae, made.bias, made.relative or 0.0)):
        raise ValueError(f"{brief(row)} holds what is no number")
    return made
