"""Things by name, and the options they take: one registry and one check of what a user set, whatever is registered.

An option is a keyword-only parameter, declared once where it is used: its default, its type, and through `Annotated` its range.

>>> def smooth(x: float, *, sigma: Positive = 4.0, form: Literal["paper", "code"] = "paper") -> float: ...
>>> filters = Registry[Any]("filter")
>>> filters.register("smooth", smooth)
>>> options(filters.get("smooth"))
{'sigma': 4.0, 'form': 'paper'}
>>> check_options("filter 'smooth'", {"sigma": -1.0}, smooth)
Traceback (most recent call last):
papm.errors.ConfigError: sigma of filter 'smooth' must be positive, not -1.0
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from papm.errors import ConfigError, unknown

LARGEST_NUMBER = 1e30  # of a setting: it is computed with in float32, which ends at 3e38

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one kind by name; an unknown name is an error that names the nearest."""

    def __init__(self, kind: str) -> None:
        self.kind = kind  # in words: "loss"
        self._items: dict[str, T] = {}

    @overload
    def register(self, name: str, item: T) -> None: ...
    @overload
    def register(self, name: str) -> Callable[[T], T]: ...
    def register(self, name: str, item: T | None = None) -> Callable[[T], T] | None:
        """Add a thing: `register("name", thing)`, or `@register("name")` above it. A name that is taken is replaced."""
        if item is not None:
            self._items[name] = item
            return None

        def add(thing: T) -> T:
            self._items[name] = thing
            return thing

        return add

    def get(self, name: str) -> T:
        """The thing of that name."""
        if name not in self._items:
            raise unknown(self.kind, name, self._items)
        return self._items[name]

    def names(self) -> list[str]:
        """The known names, sorted."""
        return sorted(self._items)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __len__(self) -> int:
        return len(self._items)


# --- options ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """Which numbers an option takes: from `low`, or above it where `open`, to `high`."""

    words: str  # the rest of "sigma of loss 'x' …"
    low: float
    high: float = math.inf
    open: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.open else self.low <= value) and value <= self.high


POSITIVE = Range("must be positive", 0, open=True)
Positive = Annotated[float, POSITIVE]
NonNegative = Annotated[float, Range("must not be negative", 0)]
Share = Annotated[float, Range("is a share between 0 and 1", 0, 1)]
Whole = Annotated[int, Range("is a whole number ≥ 0", 0)]
AtLeastOne = Annotated[int, Range("is a whole number ≥ 1", 1)]


@dataclass(frozen=True)
class _Kind:
    """What an option takes, read from its annotation."""

    types: tuple[Any, ...]
    choices: tuple[Any, ...] = ()
    ranges: tuple[Range, ...] = ()
    optional: bool = False


def options(*declared: Callable[..., Any], skip: Collection[str] = ()) -> dict[str, Any]:
    """The options of functions, classes or `functools.partial`s of them, with their defaults."""
    parameters = [p for f in declared for p in inspect.signature(f).parameters.values()]
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in skip}


def check_options(
    owner: str, given: Mapping[str, Any], *declared: Callable[..., Any], skip: Collection[str] = ()
) -> None:
    """Refuse options that none of `declared` has, and values they do not take; `owner` is what messages call them."""
    known = options(*declared, skip=skip)
    kinds = {key: kind for f in declared for key, kind in _kinds(_plain(f)).items()}
    for key, value in given.items():
        if key not in known:
            raise unknown(f"option of {owner}", key, known)
        _check(f"{key} of {owner}", kinds.get(key) or _Kind((type(known[key]),)), value)


def check_fields(owner: str, instance: object) -> None:
    """Refuse values of a dataclass that the annotations of its fields do not take."""
    for name, kind in _kinds(type(instance)).items():  # type: ignore[arg-type]
        _check(f"{name} of {owner}", kind, getattr(instance, name))


def _check(what: str, kind: _Kind, value: Any) -> None:
    if (value is None and kind.optional) or len(kind.types) > 1:  # of several types: told apart where it is used
        return
    if kind.choices:
        if value not in kind.choices:
            raise unknown(what, str(value), kind.choices)
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    if float in kind.types:
        if not (whole or (isinstance(value, float) and math.isfinite(value))):
            raise ConfigError(f"{what} is {'a number, or null' if kind.optional else 'a finite number'}, not '{value}'")
        if abs(value) > LARGEST_NUMBER:
            raise ConfigError(f"{what} is a number of at most {LARGEST_NUMBER:g}, not {value:g}")
    elif int in kind.types:
        if not whole:
            raise ConfigError(f"{what} is a whole number, not '{value}'")
    elif bool in kind.types:
        if not isinstance(value, bool):
            raise ConfigError(f"{what} is true or false, not '{value}'")
    elif str in kind.types and not isinstance(value, str):
        raise ConfigError(f"{what} is a word, not '{value}'")
    for wanted in kind.ranges:
        if value not in wanted:
            raise ConfigError(f"{what} {wanted.words}, not {value}")


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside partials; of a class its `__init__`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function.__init__ if isinstance(function, type) else function  # type: ignore[misc]


@functools.lru_cache(maxsize=256)
def _kinds(function: Callable[..., Any]) -> Mapping[str, _Kind]:
    """What each annotated parameter takes. Nothing where annotations name what is imported for typing alone."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError:
        return {}
    return {name: _kind(hint) for name, hint in hints.items()}


def _kind(hint: Any) -> _Kind:
    if get_origin(hint) is Annotated:
        inner, *extra = get_args(hint)
        kind = _kind(inner)
        ranges = (*kind.ranges, *(r for r in extra if isinstance(r, Range)))
        return _Kind(kind.types, kind.choices, ranges, kind.optional)
    if get_origin(hint) is Literal:
        return _Kind((), get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_kind(p) for p in get_args(hint) if p is not types.NoneType]
        return _Kind(
            tuple(t for p in parts for t in p.types),
            tuple(c for p in parts for c in p.choices),
            tuple(r for p in parts for r in p.ranges),
            optional=types.NoneType in get_args(hint),
        )
    return _Kind((hint,))
