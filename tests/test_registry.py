"""One registry and one check of options: names, nearest names, kinds, ranges."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import pytest

from papm.errors import ConfigError
from papm.registry import AtLeastOne, NonNegative, Positive, Registry, Share, Whole, check_options, options


def takes(
    x: float,
    stride: int = 8,
    *,
    sigma: Positive = 4.0,
    kappa: Positive | None = None,
    weight: NonNegative = 0.0,
    share: Share = 0.5,
    rank: Whole = 3,
    steps: AtLeastOne = 1,
    flag: bool = False,
    form: Literal["paper", "released"] = "paper",
    name: str = "a",
    context: object = None,
) -> float:
    return x


class Made:
    def __init__(self, stride: int = 8, *, side: AtLeastOne = 5, **more: Any) -> None: ...


def test_names_and_the_nearest() -> None:
    registry = Registry[int]("number")
    registry.register("two", 2)

    @registry.register("one")
    def one() -> None: ...

    assert registry.names() == ["one", "two"] and list(registry) == ["two", "one"] and len(registry) == 2
    assert "two" in registry and registry.get("two") == 2 and registry.get("one") is one
    with pytest.raises(ConfigError, match="unknown number 'tow'; did you mean 'two'"):
        registry.get("tow")


def test_options_are_the_keyword_only_parameters() -> None:
    known = options(takes, skip=("context",))
    assert list(known) == ["sigma", "kappa", "weight", "share", "rank", "steps", "flag", "form", "name"]
    assert options(functools.partial(takes, sigma=16.0))["sigma"] == 16.0
    assert options(takes, Made, skip=("context",)) == {**known, "side": 5}
    assert options(Made) == {"side": 5}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *[
            ("sigma", v, "sigma of loss 'x' is a finite number, not")
            for v in ("wide", math.nan, math.inf, True, None, [4])
        ],
        ("sigma", 0, "sigma of loss 'x' must be positive, not 0"),
        *[(k, v, f"{k} of loss 'x' is a number of at most 1e") for k in ("sigma", "kappa") for v in (1e300, 10**31)],
        ("sigma", -1.5, "must be positive, not -1.5"),
        ("kappa", "small", "kappa of loss 'x' is a number, or null"),
        ("kappa", -1, "kappa of loss 'x' must be positive"),
        ("weight", -0.1, "weight of loss 'x' must not be negative"),
        ("share", 1.5, "share of loss 'x' is a share between 0 and 1"),
        ("rank", -1, "rank of loss 'x' is a whole number ≥ 0"),
        ("rank", 2.5, "rank of loss 'x' is a whole number, not '2.5'"),
        ("rank", True, "is a whole number"),
        ("steps", 0, "is a whole number ≥ 1, not 0"),
        ("flag", 1, "flag of loss 'x' is true or false"),
        ("form", "papre", "unknown form of loss 'x' 'papre'; did you mean 'paper'"),
        ("name", 3, "is a word"),
        ("side", 0, "side of loss 'x' is a whole number ≥ 1"),
        ("sgima", 1, "unknown option of loss 'x' 'sgima'; did you mean 'sigma'"),
        ("context", 1, "unknown option"),
        ("stride", 4, "unknown option"),
    ],
)
def test_what_is_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options("loss 'x'", {key: value}, functools.partial(takes, sigma=2.0), Made, skip=("context",))


def test_what_is_taken() -> None:
    for key, values in {
        "sigma": (3, 0.1), "kappa": (None, 2), "weight": (0,), "share": (0, 1), "rank": (0,), "steps": (1,),
        "flag": (True,), "form": ("released",), "side": (7,),
    }.items():  # fmt: skip
        for value in values:
            check_options("loss 'x'", {key: value}, takes, Made)


def test_without_annotations_the_default_says_what_is_taken() -> None:
    for function in (lambda *, sigma=3.0: sigma, _unresolved):
        check_options("loss 'x'", {"sigma": 2}, function)
        with pytest.raises(ConfigError, match="is a finite number"):
            check_options("loss 'x'", {"sigma": "wide"}, function)


def _unresolved(*, sigma: float = 1.0, other: Nowhere = None) -> None:  # type: ignore[name-defined]  # noqa: F821
    ...
