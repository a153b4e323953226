"""Examples of docstrings (`>>> …`) as code blocks of the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?! *$).*)*", flags=re.M)


class Fenced(griffe.Extension):
    """Puts a fence around each example, which Markdown would take for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\g<indent>```pycon\n\g<0>\n\g<indent>```", obj.docstring.value)
