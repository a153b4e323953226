"""What the page may do about the calibration of the model: fit a factor on the images that a person checked, count with it for
as long as the server runs, and store it with the model where the server was started so.

    POST /api/calibrate   {"images": [{"name", "key", "bytes", "counted", "truth"}, …], "then": "show", "use" or "store"}
                          {"then": "off"}
                          -> {calibration, note, stored}

The images were sent to be counted and are not kept; the page says again what it was told of each: `file`, the raw count.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from papm import checkpoint
from papm.engine.calibration import from_counts
from papm.engine.unseen import Fingerprint
from papm.errors import ConfigError, DataError, PapmError, WriteError
from papm.inference import CALIBRATED, MOST_CHECKED, Calibration
from papm.predict.predictor import Counter, Source
from papm.serve.counting import plain_name
from papm.untrusted import is_whole

LARGEST = 2_000_000  # bytes of a request: MOST_CHECKED images with long names
THEN = ("show", "use", "store", "off")
CLOSED = "This server is open to other machines; start it with --allow-calibrate to calibrate in the page."
FEW = "A calibration is of one model: calibrate each by itself, and count with them together."
OTHER = "This model counts in another way than it was trained for (--count); start the page without --count."
UNKNOWN = "The training images are not here to compare with: see to it that the model was not trained on these."


class Calibrator:
    """The calibration of a model that is served; `file`: where it came from, `use` and `store`: what the page may do."""

    def __init__(self, source: Source, file: Path | None = None, *, use: bool = False, store: bool = False) -> None:
        self.counter = source if isinstance(source, Counter) else None
        self.file, self.use, self.store = file, use or store, store and file is not None
        if store and file is not None:
            checkpoint.require_changeable(file)
        self.first = {} if self.counter is None else {k: getattr(self.counter.inference, k) for k in CALIBRATED}
        self.stored = False  # by us

    def describe(self) -> dict[str, Any]:
        """What the page says: the factor that counts are multiplied by, and what it may do."""
        why = self._refusal()
        may = "no" if why else "store" if self.store else "use"
        found = None if self.counter is None else self.counter.inference.calibration
        own = found == self.first.get("calibration")
        return {"calibration": _plain(found), "own_calibration": own, "may_calibrate": may, "why_not": why}

    def answer(self, body: bytes) -> dict[str, Any]:
        """Do what a request asks."""
        if self.counter is None or (why := self._refusal()):
            raise ConfigError(FEW if self.counter is None else why)
        asked, then = read_request(body)
        if then == "store" and not self.store:
            raise ConfigError("this server does not store a calibration; start it with --allow-calibrate")
        if then == "off":
            return self._set(self.first, "", self.stored)
        images, counted = asked
        folder = None if self.file is None else self.file.parent
        contract, doubt = from_counts(self.counter, images, counted, folder)
        note = UNKNOWN if doubt else ""
        if then == "show":
            return {"calibration": _plain(contract["calibration"]), "note": note, "stored": ""}
        return self._set(contract, note, then == "store")

    def _set(self, contract: dict[str, Any], note: str, store: bool) -> dict[str, Any]:
        """Count so from now on; where it is stored too, that comes first, since it may fail."""
        assert self.counter is not None
        if store:
            assert self.file is not None
            try:
                checkpoint.change_inference(self.file, **contract)
            except PapmError as error:  # where the file lies is not told
                raise WriteError(str(error).replace(str(self.file), self.file.name)) from None
            self.stored = contract is not self.first
        self.counter.change(**contract)
        stored = self.file.name if store and self.file is not None else ""
        return {"calibration": _plain(contract["calibration"]), "note": note, "stored": stored}

    def _refusal(self) -> str:
        if self.counter is None:
            return FEW
        if not self.use:
            return CLOSED
        own = self.counter.spec.inference
        return OTHER if own is not None and own.decode != self.counter.inference.decode else ""


def _plain(found: Calibration | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)


def read_request(body: bytes) -> tuple[tuple[list[Fingerprint], list[float]], str]:
    """The checked images of a request with their raw counts, and what is to be done.

    >>> one = '{"name": "a.png", "key": "00112233aabbccdd", "bytes": 7, "counted": 2.5, "truth": 3}'
    >>> read_request(b'{"then": "show", "images": [%s]}' % one.encode())
    (([Fingerprint(name='a.png', bytes=7, key='00112233aabbccdd', truth=3.0)], [2.5]), 'show')
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise DataError("not a request in JSON") from None
    then = asked.get("then") if isinstance(asked, dict) else None
    if then not in THEN:
        raise DataError(f"a request is an object with 'then', one of {', '.join(THEN)}, and 'images'")
    if then == "off":
        return ([], []), then
    images = asked.get("images")
    if not isinstance(images, list) or len(images) > MOST_CHECKED:
        raise DataError(f"'images' is a list of at most {MOST_CHECKED} checked images")
    read = [_checked(image) for image in images]
    known: dict[str, str] = {}
    for image, _ in read:
        if image.key in known:
            raise DataError(f"{known[image.key]} and {image.name} are one image; tick only one of them as checked")
        known[image.key] = image.name
    return ([image for image, _ in read], [counted for _, counted in read]), then


def _checked(image: Any) -> tuple[Fingerprint, float]:
    def entry(name: str, good: Callable[[Any], bool]) -> Any:
        value = image.get(name) if isinstance(image, dict) else None
        if not good(value):
            raise DataError(f"a checked image has {name}, as it was counted; got '{plain_name(str(value)[:60])}'")
        return value

    name = plain_name(entry("name", lambda v: isinstance(v, str)))
    key = entry("key", lambda v: isinstance(v, str) and re.fullmatch(r"[0-9a-f]{16}", v) is not None)
    size = entry("bytes", lambda v: is_whole(v, 1, 1 << 50))
    counted, truth = (float(entry(word, _is_count)) for word in ("counted", "truth"))
    return Fingerprint(name, size, key, truth), counted


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12 and math.isfinite(value)
