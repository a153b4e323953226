"""Which images are trained on: never those that give the figure."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from papm.data import base
from papm.data.base import Dataset
from papm.data.convert import divide
from papm.data.splits import Splits, choose, hold_out, training_only
from papm.errors import ConfigError, DataError
from papm.structures import Sample


def dataset(split: str, n: int, points: int = 1) -> Dataset:
    samples = [
        Sample(f"{split}{k}", lambda: torch.zeros(3, 8, 8, dtype=torch.uint8), torch.ones(points, 2), (8, 8))
        for k in range(n)
    ]
    return Dataset(samples, "made", split)


def names(data: Dataset | None) -> list[str]:
    return [] if data is None else [s.name for s in data]


@given(n=st.integers(2, 60), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 9))
def test_hold_out_cuts_in_two(n: int, fraction: float, seed: int) -> None:
    whole = dataset("all", n)
    rest, held = hold_out(whole, fraction, seed)
    assert sorted(names(rest) + names(held)) == sorted(names(whole))
    assert len(rest) >= 1 and len(held) == min(max(1, round(fraction * n)), n - 1)
    again = hold_out(whole, fraction, seed)
    assert names(again[0]) == names(rest) and names(again[1]) == names(held)
    assert (rest.split, held.split) == ("train", "val")


def test_seeds_cut_differently_and_keep_the_order() -> None:
    whole = dataset("all", 40)
    cuts = {tuple(names(hold_out(whole, 0.25, seed)[1])) for seed in range(5)}
    assert len(cuts) == 5
    for cut in cuts:
        assert [names(whole).index(n) for n in cut] == sorted(names(whole).index(n) for n in cut)


@given(filled=st.lists(st.booleans(), min_size=2, max_size=12), fraction=st.floats(0.01, 0.9), seed=st.integers(0, 9))
def test_what_is_held_out_has_an_object_where_two_images_have(filled: list[bool], fraction: float, seed: int) -> None:
    """Errors of empty images would choose the weights that count nothing."""
    made = [dataset("all", len(filled), points=int(p))[k] for k, p in enumerate(filled)]
    whole = Dataset(made, "made", "all")
    rest, held = hold_out(whole, fraction, seed)
    usual = names(hold_out(dataset("all", len(filled)), fraction, seed)[1])
    assert sorted(names(rest) + names(held)) == sorted(names(whole)) and len(held) == len(usual)
    if sum(filled) > 1:
        assert sum(s.count for s in held) > 0
        assert len(set(usual) - set(names(held))) <= 1
    if any(s.count for s in whole if s.name in usual):
        assert names(held) == usual


@pytest.mark.parametrize("n", [0, 1])
def test_nothing_can_be_held_out_of_one_image(n: int) -> None:
    with pytest.raises(DataError, match="at least two"):
        hold_out(dataset("all", n), 0.5, 0)


@pytest.mark.parametrize(("n", "have"), [(2, "2 images, 1 for testing"), (3, "")])
def test_what_a_user_has_is_said_where_it_is_too_little(n: int, have: str) -> None:
    """Not what is left after the share for testing."""
    data = dataset("all", n)
    for cut in (lambda: choose({"all": data}, "val", 0.1, 0), lambda: divide({"all": data}, 0.1, 0.2, 0)):
        if have:
            with pytest.raises(DataError, match=f"^made: has {have}; at least 3 are needed to hold one out for val"):
                cut()
        else:
            cut()
    with pytest.raises(DataError, match=r"^made: has 1 training image; at least two are needed"):
        choose({"train": dataset("train", 1), "test": data}, "val", 0.1, 0)


def disjoint(splits: Splits) -> bool:
    train, test = set(names(splits.train)), set(names(splits.test))
    return not train & test and not train & set(names(splits.monitor))


def test_settings_can_be_chosen_without_the_test_images() -> None:
    parts = {split: dataset(split, 10) for split in ("train", "val", "test")}
    made = training_only(parts, 0.3, "made")
    assert set(made) == {"train", "test"} and made["test"].split == "test" and len(made["test"]) == 3
    assert {*names(made["train"]), *names(made["test"])} == {f"train{k}" for k in range(10)}
    assert names(training_only(parts, 0.3, "made")["test"]) == names(made["test"])
    with pytest.raises(DataError, match="no training images"):
        training_only({"test": parts["test"]}, 0.3, "made")
    for share in (0, 1, -0.5, "half", True, None):
        with pytest.raises(ConfigError, match="share of the training images"):
            training_only(parts, share, "made")
    opened = base.open("synthetic", train=5, test=2, size=32, count="1-2", holdout=0.4)
    assert [s.name for s in opened["test"]] and all("train" in s.name for d in opened.values() for s in d)
    assert len(opened["test"]) == 2 and len(opened["train"]) == 3


def test_select_val_holds_out_of_the_training_images() -> None:
    made = choose({"train": dataset("train", 20), "test": dataset("test", 5)}, "val", 0.1, 0)
    assert len(made.train) == 18 and len(names(made.monitor)) == 2 and len(names(made.test)) == 5
    assert set(names(made.monitor)) < {f"train{k}" for k in range(20)} and disjoint(made)


def test_a_given_val_split_is_used() -> None:
    parts = {"train": dataset("train", 20), "val": dataset("val", 3), "test": dataset("test", 5)}
    made = choose(parts, "val", 0.1, 0)
    assert len(made.train) == 20 and names(made.monitor) == ["val0", "val1", "val2"] and len(names(made.test)) == 5


@pytest.mark.parametrize("select", ["last", "test"])
def test_last_and_test_train_on_everything_and_watch_the_test(select: str) -> None:
    made = choose({"train": dataset("train", 20), "test": dataset("test", 5)}, select, 0.1, 0)
    assert len(made.train) == 20 and made.monitor is made.test and len(names(made.test)) == 5


def test_without_a_test_split() -> None:
    only = {"train": dataset("train", 20)}
    made = choose(only, "val", 0.1, 0)
    assert made.test is None and len(names(made.monitor)) == 2
    made = choose(only, "last", 0.1, 0)
    assert made.test is None and made.monitor is None and len(made.train) == 20
    with pytest.raises(DataError, match="select=test needs a test split"):
        choose(only, "test", 0.1, 0)
    with_val = {**only, "val": dataset("val", 3)}
    assert names(choose(with_val, "last", 0.1, 0).test) == ["val0", "val1", "val2"]


@pytest.mark.parametrize("select", ["val", "last", "test"])
@pytest.mark.parametrize("parts", [("all",), ("all", "fold1", "fold2"), ("images",), ("all", "test"), ("all", "val")])
def test_data_without_a_train_split_is_cut(select: str, parts: tuple[str, ...]) -> None:
    whole = dataset("all", 20)
    available = {p: whole.subset(range(20), p) for p in parts}  # they overlap, as folds do
    made = choose(available, select, 0.1, 0)
    assert disjoint(made) and len(names(made.test)) == 4
    assert len(made.train) == (14 if select == "val" else 16)
    assert made.test is not None and made.test.split == "test"


@pytest.mark.parametrize("parts", [("test",), ("val",), ("val", "test")])
def test_test_and_validation_images_are_never_trained_on(parts: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match=f"no images to train on, only: {', '.join(parts)}"):
        choose({p: dataset(p, 10) for p in parts}, "val", 0.1, 0)


def test_nothing_to_learn_from() -> None:
    with pytest.raises(DataError, match="empty"):
        choose({}, "val", 0.1, 0)
    with pytest.raises(DataError, match="none of the 4 training images has a point"):
        choose({"train": dataset("train", 4, points=0), "test": dataset("test", 2)}, "last", 0.1, 0)


def test_images_that_nothing_uses_are_named(caplog: pytest.LogCaptureFixture) -> None:
    parts = {name: dataset(name, 5) for name in ("train", "val", "test")}
    choose(parts, "val", 0.1, 0)
    assert not caplog.records
    choose(parts, "last", 0.1, 0)
    assert caplog.messages == ["the 5 images of 'val' teach and choose nothing: select=val would choose by them"]
    choose({**parts, "trainval": dataset("trainval", 10)}, "last", 0.1, 0)
    assert caplog.messages[-1].endswith("choose by them; data.trainval=true trains on them too")
