"""benchmarks/fuzz.py: a slice of its mutations, and that it notices what it is there to notice."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fuzz
from fuzzing import pool
from fuzzing.inputs import ENCODINGS, photo
from fuzzing.png import SIGNATURE, damaged
from fuzzing.trees import TREES
from papm.data.base import readers
from papm.data.formats import FORMATS
from papm.errors import DataError

# Mutations of each group.
EACH = {"format": 150, "published": 80, "image": 160, "model": 80, "settings": 80}


@pytest.mark.slow
@pytest.mark.parametrize("group", EACH)
def test_a_slice_of_the_mutations(group: str) -> None:
    families = fuzz.chosen([group])
    tried = list(pool.run(fuzz.FAMILIES, fuzz.jobs(families, EACH[group], seed=0), seed=0, workers=2))
    assert len(tried) >= EACH[group] // 2 and {t.family for t in tried} == set(families)
    assert not fuzz.grouped([t for t in tried if t.outcome in pool.FINDINGS])
    assert {"refused", "equal"} <= {t.outcome for t in tried}


def test_every_format_layout_and_encoding_is_tried() -> None:
    families = set(fuzz.FAMILIES)
    assert {f"format/{name}" for name in FORMATS} <= families
    assert {f"published/{name}" for name in set(readers()) - {"folder", "synthetic"}} <= families
    assert set(TREES) == set(readers()) - {"folder", "synthetic"} and len(ENCODINGS) == 16
    for group in fuzz.SHARES:
        assert fuzz.chosen([group])
    todo = fuzz.jobs(list(families), 10_000, seed=0)
    assert len(todo) == pytest.approx(10_000, rel=0.02) and len(set(todo)) == len(todo)


def test_a_mutation_depends_on_its_number_alone(tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        subject: Any = fuzz.FAMILIES["format/coco"](tmp_path / name)
        subject.apply(Random("0/x/99"))
        subject.restore()
        what = [subject.apply(Random(f"0/x/{k}")) + str(subject.changed.stat().st_size) for k in range(30)]
        made.append((what, subject.changed.read_bytes()))
    assert made[0] == made[1] and len(set(made[0][0])) > 20


# -- the fuzzer sees -----------------------------------------------------------------------------------------------------


class Fake:
    """A subject whose reading is a function."""

    def __init__(self, use: Callable[[], Any], wrong: bool = False) -> None:
        self.read, self.is_wrong, self.changed = use, wrong, False

    def apply(self, rng: Random) -> str:
        self.changed = True
        return "changed"

    def use(self) -> Any:
        return self.read() if self.changed else 0

    def wrong(self, found: Any) -> bool:
        return self.is_wrong

    def restore(self) -> None:
        self.changed = False


def refuse(words: str) -> Callable[[], Any]:
    def use() -> Any:
        raise DataError(words)

    return use


def busy() -> int:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pass
    return 0


def large() -> int:
    return int(np.ones(200_000_000, np.float32)[-1])  # 800 MB that are written to


def crash() -> Any:
    os._exit(3)


def sleeps() -> int:
    time.sleep(30)
    return 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "outcome", "detail"),
    [
        (Fake(lambda: 0), "equal", ""),
        (Fake(lambda: 1), "different", ""),
        (Fake(refuse("a.txt: no number")), "refused", "a.txt"),
        (Fake(refuse("a.txt:\nmany lines")), "traceback", "not a sentence"),
        (Fake(lambda: {}["x"]), "traceback", "KeyError"),
        (Fake(lambda: 0, wrong=True), "silent", "success"),
        (Fake(busy), "hang", "processor time"),
        (Fake(sleeps), "hang", "by the clock"),
        (Fake(large), "memory", "GB"),
        (Fake(crash), "traceback", "died"),
    ],
    ids=["equal", "different", "refused", "words", "traceback", "silent", "busy", "sleeps", "memory", "crash"],
)
def test_what_became_of_a_mutation(subject: Fake, outcome: str, detail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes of their own, and the next mutation is tried all the same."""
    monkeypatch.setattr(pool, "SECONDS", 0.3 if subject.read is busy else 10.0)
    monkeypatch.setattr(pool, "LONGEST", 1.5 if subject.read is sleeps else 60.0)
    monkeypatch.setattr(pool, "MEMORY", min(pool._status("VmRSS"), pool.IMPORTS) + 200_000_000)
    families = {"fake": lambda root: subject, "well": lambda root: Fake(lambda: 0)}
    found = list(pool.run(families, [("fake", 0), ("well", 1)], workers=1))
    assert [t.outcome for t in found] == [outcome, "equal"] and detail in found[0].detail, found
    assert found[0].what == "changed"


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(photo(size=(6, 8))).save(buffer, "PNG")
    return buffer.getvalue()


def test_a_png_is_whole_or_damaged() -> None:
    """Any one bit between the signature and the last chunk, and any end before it."""
    whole = png()
    last = whole.index(b"IEND") - 4
    assert not damaged(whole) and not damaged(whole + b"more") and not damaged(b"GIF89a")
    assert all(damaged(whole[:k]) for k in range(len(SIGNATURE), last + 8))
    for k in range(len(SIGNATURE), last):
        for bit in range(8):
            assert damaged(whole[:k] + bytes([whole[k] ^ 1 << bit]) + whole[k + 1 :])
