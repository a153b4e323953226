"""Errors a user can do something about.

Everything raised on purpose because of what a user gave us derives from `PapmError`; the command line prints its
message as one sentence and exits with code 2. Anything else is a defect of ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 60  # characters of a name in a message
LONGEST_MESSAGE = 1000  # characters: what it quotes from a file may be of any length


class PapmError(Exception):
    """Wrong usage or bad input; the message names the file, line or key and what to do.

    >>> len(str(PapmError("steps is a whole number, not '" + 10**6 * "9" + "'")))
    1000
    """

    def __str__(self) -> str:
        text = super().__str__()
        half = LONGEST_MESSAGE // 2
        return text if len(text) <= LONGEST_MESSAGE else f"{text[: half - 3]} … {text[-half:]}"


class ConfigError(PapmError):
    """An unknown key, a value of the wrong kind, or options that contradict each other."""


class WriteError(PapmError):
    """A file that cannot be written: a full disk, mostly."""


class DataError(PapmError):
    """An image, an annotation or a dataset that cannot be used."""


class CheckpointError(PapmError):
    """A checkpoint or weights file that cannot be read, or belongs to another network, or would hold what is not finite."""


def unknown(kind: str, name: str, known: Iterable[object]) -> ConfigError:
    """The error for a name that is not in a registry; names the nearest known one.

    >>> str(unknown("method", "hd-pamp", ["hd-papm", "gaussian"]))
    "unknown method 'hd-pamp'; did you mean 'hd-papm'? Known: gaussian, hd-papm"
    >>> str(unknown("method", "foo", ["hd-papm", "gaussian"]))
    "unknown method 'foo'; known: gaussian, hd-papm"
    """
    names, name = sorted(map(str, known)), name if len(name) <= LONGEST else f"{name[:LONGEST]}…"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? Known" if near else "known"
    return ConfigError(f"unknown {kind} '{name}'; {hint}: {', '.join(names)}")
