"""Several datasets as one: what is joined by +, what each image remembers, how often it is shown."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from papm import data
from papm.data.augment import Augment, plan
from papm.data.several import join, origin, parts_of, turns
from papm.data.spec import names_of, open_split, open_splits
from papm.errors import ConfigError, DataError
from papm.serve.counting import _trained_on

A = "synthetic:look=cells,train=2,test=2,size=64,count=1-3"
B = "synthetic:look=crowd,train=18,test=1,size=64,count=1-3"


def test_what_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c+d"):
        (tmp_path / name).mkdir()
    assert parts_of("a+b") == ["a", "b"]
    assert parts_of("c+d") == ["c+d"]  # a folder of that name
    assert parts_of("a+nothing") == ["a+nothing"]  # said to be missing, as it was written
    assert parts_of(f"{A}+folder:c+d+b") == [A, "folder:c+d", "b"]
    for name in (f"{'x' * 300}+a", "~nobody-here/photos+a"):  # no names of files, such as a stored model may hold
        assert parts_of(name) == [name.removesuffix("+a"), "a"] and _trained_on(name).endswith("+ a")
    with pytest.raises(DataError, match=r"a\+nothing: no such file"):
        data.open_spec("a+nothing")


def test_images_keep_the_name_of_their_dataset() -> None:
    splits = data.open_spec(f"{A}+{B}")
    assert {k: len(d) for k, d in splits.items()} == {"train": 20, "test": 3}
    assert Counter(map(origin, splits["train"])) == {"synthetic-1": 2, "synthetic-2": 18}
    assert len({s.name for d in splits.values() for s in d}) == 23
    assert splits["train"].name == "synthetic"
    assert len(open_split(f"{A}+{B}", "test")) == 3 and len(open_splits(f"{A}+{B}")["train"]) == 20
    assert names_of(f"{A}+{B}") == ["synthetic", "synthetic"]


def test_a_dataset_without_splits_is_trained_on() -> None:
    splits = data.open_spec(A)
    whole = join([("a", splits), ("b", {"all": splits["test"], "fold1": splits["test"]})])
    assert len(whole["train"]) == 4 and len(whole["test"]) == 2
    with pytest.raises(DataError, match="b: has the splits fold1"):
        join([("a", splits), ("b", {"fold1": splits["test"]})])


def test_a_small_dataset_is_not_drowned_and_one_alone_is_as_ever() -> None:
    splits = data.open_spec(f"{A}+{B}")
    assert Counter(turns(splits["train"].samples))[0] == 3  # √(18/2)
    assert turns(data.open_spec(B)["train"].samples) == list(range(18))
    size, points = [(64, 64)] * 20, [np.zeros((0, 3), np.float32)] * 20
    order = turns(splits["train"].samples)
    shown = [
        int(k)
        for step in range(len(order) // 4)
        for k in plan(step, Augment(64), size, points, seed=0, batch=4, turns=order).rows[:, 0]
    ]
    assert Counter(shown) == Counter(order)  # every epoch is the list, shuffled


def test_options_go_to_those_that_have_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="resize=usual is the rule of one dataset"):
        data.open_spec(f"{A}+{B}", resize="usual")
    with pytest.raises(ConfigError, match="unknown option of the datasets"):
        data.open_spec(f"{A}+{B}", orign=0.5)
    assert data.open_spec(f"{A}+{B}", max_side=32)["train"][19].size == (32, 32)
    held = data.open_spec(f"{A}+{B}", holdout=0.5)
    assert {k: len(d) for k, d in held.items()} == {"train": 10, "test": 10} and len(turns(held["train"].samples)) == 12
    with pytest.raises(DataError, match="several datasets; one is needed here"):
        data.parse_spec(f"{A}+{B}")


def test_words_of_the_page() -> None:
    assert _trained_on("folder:/home/anna/photos+bbbc039:/data/cells") == "photos + bbbc039"
