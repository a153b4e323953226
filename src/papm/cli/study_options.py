"""What the commands over many trainings share: reading --weights and --seeds as a study wants them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from papm.errors import ConfigError

if TYPE_CHECKING:
    from papm.study.cells import Study


def read_pairs(given: list[str] | None, form: str) -> dict[str, str]:
    """NAME=VALUE options as a mapping.

    >>> read_pairs(["trancos=data/TRANCOS"], "--data DATASET=FOLDER")
    {'trancos': 'data/TRANCOS'}
    """
    out: dict[str, str] = {}
    for pair in given or []:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise ConfigError(f"'{pair}' is not of the form {form}")
        out[key] = value
    return out


def read_weights(given: list[str] | None) -> dict[str, str]:
    """Weights by network; those without a network are for all others.

    >>> read_weights(["imagenet", "csrnet=none"])
    {'': 'imagenet', 'csrnet': 'none'}
    """
    from papm import models

    out: dict[str, str] = {}
    for text in given or []:
        network, equals, value = text.partition("=")
        named = bool(equals) and network in models.names()
        key, source = (network, value) if named else ("", text)
        if source not in ("imagenet", "none") and not Path(source).expanduser().is_file():
            raise ConfigError(f"--weights {text}: no such file; give imagenet, none, FILE or NETWORK=FILE")
        out[key] = source
    return out


def read_seeds(text: str) -> tuple[int, ...]:
    """Whole numbers from `0,1,2`, once each.

    >>> read_seeds("0,1,2")
    (0, 1, 2)
    """
    try:
        found = tuple(dict.fromkeys(int(t) for t in text.split(",")))
    except ValueError:
        found = ()
    if not found or min(found) < 0:
        raise ConfigError(f"--seeds is whole numbers separated by commas, such as 0,1,2; got '{text}'")
    return found


def read_tiers(text: str | None, studies: Sequence[Study]) -> tuple[int, ...]:
    """Whole numbers from `1,2`, each a tier of one of the studies.

    >>> read_tiers(None, [])
    ()
    """
    if text is None:
        return ()
    known = {t.number for s in studies for t in s.tiers}
    try:
        found = tuple(dict.fromkeys(int(t) for t in text.split(",")))
    except ValueError:
        found = ()
    if not found or not known.issuperset(found):
        have = f"tiers {', '.join(map(str, sorted(known)))}" if known else "no tiers"
        raise ConfigError(f"--tier is whole numbers separated by commas; got '{text}', and the study has {have}")
    return found
