"""Which versions the check of the bounds asks for."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import bounds as checked
from project import ROOT, bounds

pytestmark = pytest.mark.skipif(not (ROOT / "constraints.txt").exists(), reason="installed without its sources")


def test_the_lowest_are_within_the_bounds_and_the_newest_are_left_to_pip() -> None:
    extras = checked.EXTRAS.split(",")
    allowed, asked = bounds(extras), [Requirement(line) for line in checked.wanted("lowest", "2.6.0", extras)]
    assert {r.name for r in asked} >= set(allowed)
    for needed in asked:
        if needed.name in allowed:
            [exact] = needed.specifier
            assert exact.operator == "==" and allowed[needed.name].contains(exact.version), needed
    assert next(r for r in asked if r.name == "ray").extras == {"data"}
    newest = {Requirement(line).name: Requirement(line) for line in checked.wanted("newest", "2.13.0", ["train"])}
    assert str(newest["torch"].specifier) == "==2.13.0" and newest["lightning"].specifier.contains("2.6.9")
    assert not newest["lightning"].specifier.contains("2.7.0")
    with pytest.raises(ValueError, match="names no lowest version"):
        checked.lowest(SpecifierSet("<2"))
