"""The parts of the long tests: together all of them, each in one part, and the other tests in every part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tests.conftest as shared


class Item:
    """A test as the hook sees it."""

    def __init__(self, name: str, long: bool) -> None:
        self.nodeid, self.long = name, long

    def get_closest_marker(self, name: str) -> object:
        return True if self.long and name == "long" else None


@pytest.mark.parametrize("parts", [1, 4])
def test_parts_cover_everything_once(parts: int) -> None:
    items = [Item(f"tests/test_{k}.py::test", long=k % 2 == 0) for k in range(60)]
    seen: list[str] = []
    for part in range(17, 17 + parts):
        left: list[Any] = []
        hook = SimpleNamespace(pytest_deselected=lambda items, left=left: left.extend(items))
        config: Any = SimpleNamespace(getoption=lambda name, part=part: f"{part}/{parts}", hook=hook)
        kept: list[Any] = list(items)
        shared.pytest_collection_modifyitems(config, kept)
        assert len(kept) + len(left) == 60 and [i for i in kept if not i.long] == items[1::2]
        seen += [i.nodeid for i in kept if i.long]
    assert sorted(seen) == sorted(i.nodeid for i in items if i.long)
