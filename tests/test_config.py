"""Configuration: what is written is what is read, and what is wrong is named."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from papm import config as C
from papm import losses, methods, models
from papm.config import TrainConfig, from_mapping, load, parse_overrides, to_mapping, to_yaml
from papm.errors import ConfigError, PapmError


def from_pairs(*pairs: str) -> TrainConfig:
    return from_mapping(parse_overrides(pairs))


# --- round trips ------------------------------------------------------------------------------------------------------

text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "data": text,
            "weights": st.none() | text,
            "steps": st.integers(1, 10**7),
            "lr": st.floats(0, 1),
            "trunk_lr": st.none() | st.floats(0, 1),
            "seed": st.integers(0, 2**31),
            "select": st.sampled_from(("val", "last", "test")),
            "turn": st.booleans(),
            "compile": st.sampled_from(("auto", "yes", "no")),
            "precision": st.sampled_from(("auto", "32", "bf16", "16")),
            "loss": st.dictionaries(st.sampled_from(("sigma", "shape")), st.floats(0.1, 99) | st.integers(1, 9)),
            "network": st.dictionaries(st.sampled_from(("stride", "activation")), st.sampled_from((2, 4, "relu"))),
        },
    )
)
def test_yaml_round_trip(values: dict[str, Any]) -> None:
    made = from_mapping(values)
    again = from_mapping(yaml.safe_load(to_yaml(made)))
    assert again == made
    assert from_mapping(to_mapping(made)) == made


def test_a_file_round_trip(tmp_path: Path) -> None:
    made = TrainConfig(data="shanghaitech-a:Größe/ß", lr=1e-5, loss={"sigma": 6.0}, compile="yes", precision="16")
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(made), encoding="utf-8")
    assert from_mapping(load(path)) == made


def test_mapping_holds_plain_types_and_every_key() -> None:
    values = to_mapping(TrainConfig(loss={"sigma": 1}))
    assert list(values) == C.names() == [f.name for f in dataclasses.fields(TrainConfig)]
    assert all(type(v) in (str, int, float, bool, dict, type(None)) for v in values.values())


def test_values_over_a_base() -> None:
    base = TrainConfig(steps=7, lr=0.5)
    assert from_mapping({"lr": 0.25}, base) == dataclasses.replace(base, lr=0.25)
    with pytest.raises(dataclasses.FrozenInstanceError):
        base.steps = 8  # type: ignore[misc]


# --- overrides --------------------------------------------------------------------------------------------------------


def test_overrides() -> None:
    made = from_pairs("steps=100", "lr=3e-5", "loss.sigma=6", "network.stride=4", "data.look=cells", "select=last")
    assert (made.steps, made.lr, made.select) == (100, 3e-5, "last")
    assert (made.loss, made.network, made.options) == ({"sigma": 6}, {"stride": 4}, {"look": "cells"})
    assert isinstance(made.steps, int) and isinstance(made.lr, float)


@pytest.mark.parametrize("written", ["1e-4", "1.0e-4", "0.0001", "1E-4", "+1e-4"])
def test_numbers_people_write(written: str, tmp_path: Path) -> None:
    """YAML reads 1e-4 as text; on the command line and in a file it is a number."""
    assert from_pairs(f"lr={written}", f"loss.sigma={written}").lr == 1e-4
    assert from_pairs(f"loss.sigma={written}").loss == {"sigma": 1e-4}
    path = tmp_path / "c.yaml"
    path.write_text(f"lr: {written}\nloss:\n  sigma: {written}\n")
    made = from_mapping(load(path))
    assert made.lr == 1e-4 and made.loss == {"sigma": 1e-4}


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert from_pairs("steps=1e4").steps == 10_000 and from_pairs("steps=20.0").steps == 20
    assert from_pairs("lr=1").lr == 1.0


@pytest.mark.parametrize(
    "name", ["2024.10", "007", "1e5", "2024-10-01", "2024-13-45", "on", "1_000", "nan", "[x]", "a: b", "@x", "x=y"]
)
def test_paths_are_what_was_written(name: str) -> None:
    made = from_pairs(f"weights={name}", f"init={name}", f"data={name}")
    assert (made.weights, made.init, made.data) == (name, name, name)


def test_nothing_is_none_where_none_is_allowed() -> None:
    for written in ("", "~", "null"):
        assert from_pairs(f"weights={written}", f"trunk_lr={written}") == TrainConfig()
    assert from_mapping({"weights": None, "trunk_lr": None}) == TrainConfig()


def test_yes_and_no_are_words_here() -> None:
    assert from_pairs("compile=yes").compile == "yes" and from_pairs("compile=no").compile == "no"
    assert from_mapping({"compile": True}).compile == "yes" and from_pairs("precision=16").precision == "16"


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("steps", "'steps' is not of the form key=value"),
        ("=3", "not of the form key=value"),
        ("stepz=3", "unknown key 'stepz'; did you mean 'steps'"),
        ("lose.sigma=3", "unknown group of options 'lose'; did you mean 'loss'"),
        ("loss.=3", "not of the form loss.option=value"),
        ("steps=many", "steps is a whole number, not 'many'"),
        ("steps=1.5", "steps is a whole number, not '1.5'"),
        ("steps=true", "steps is a whole number"),
        ("steps=", "steps is a whole number"),
        ("lr=fast", "lr is a number, not 'fast'"),
        ("lr=[1]", "lr is a number"),
        ("lr=[1", r"lr: cannot read the value '\[1'"),
        ("lr=2024-13-45", "lr: cannot read the value"),
        ("lr=2024-10-01", "lr is a number"),
        ("loss=5", "loss is a mapping, not '5'"),
        ("select=best", "select is one of val, last, test, not 'best'"),
        ("compile=maybe", "compile is one of auto, yes, no"),
        ("optimizer=null", "optimizer is one of adamw, adam"),
    ],
)
def test_wrong_overrides_are_named(pair: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_pairs(pair)


def test_a_group_cannot_be_both_a_value_and_a_mapping() -> None:
    with pytest.raises(ConfigError, match="loss is a mapping, not '5'"):
        parse_overrides(["loss=5", "loss.sigma=6"])
    assert parse_overrides(["loss={shape: 4}", "loss.sigma=6"]) == {"loss": {"shape": 4, "sigma": 6}}


@given(st.text(max_size=20), st.text(max_size=12))
def test_whatever_is_written_the_answer_is_a_config_or_a_sentence(key: str, value: str) -> None:
    for name in (key, "lr", "steps", "weights", "loss.sigma", "select"):
        try:
            from_pairs(f"{name}={value}")
        except PapmError as error:
            assert str(error)


# --- mappings and files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("steps: [", "line 1.*not valid YAML|not valid YAML"),
        ("a: 1\nb: {c\n", "line"),
        ("- steps\n- 3\n", "a configuration is a list of 'key: value' lines"),
        ("42", "a configuration is a list"),
        ("data: 2024-13-45", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_broken_files_are_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read \(No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"data: gr\xfc\xdfe")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load(tmp_path / "latin.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert load(tmp_path / "empty.yaml") == {}


@pytest.mark.parametrize("key", ["stepz", 1, True, None, 2.5])
def test_unknown_keys_of_any_kind(key: Any) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        from_mapping({key: 3})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": [1]}, "data is text"),
        ({"data": True}, "data is text"),
        ({"data": None}, "data is text"),
        ({"steps": 1.5}, "steps is a whole number"),
        ({"steps": math.inf}, "steps is a whole number"),
        ({"batch": True}, "batch is a whole number"),
        ({"lr": None}, "lr is a number"),
        ({"lr": {}}, "lr is a number"),
        ({"loss": [1]}, "loss is a mapping"),
        ({"loss": None}, "loss is a mapping"),
        ({"trunk_lr": "x"}, "trunk_lr is a number"),
    ],
)
def test_wrong_kinds_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_mapping(values)


# --- rules ------------------------------------------------------------------------------------------------------------

RULES: list[tuple[dict[str, Any], str]] = [
    *[({k: 0}, f"{k} must be at least 1, not 0") for k in ("steps", "batch", "devices", "log_every", "save_every")],
    ({"crop": 8}, "crop must be at least 16"),
    *[({k: -1}, f"{k} must not be negative, but is -1") for k in
      ("lr", "trunk_lr", "loss_lr", "weight_decay", "warmup", "clip", "margin", "noise", "correct",
       "eval_every", "seed")],
    *[({k: v}, f"{k} is a probability") for k in ("flip", "grey", "scale_share") for v in (-0.1, 1.1)],
    *[({"ema": v}, "ema is a decay") for v in (-0.1, 1.0)],
    *[({"val_fraction": v}, "val_fraction is a share") for v in (0.0, 1.0)],
    ({"scale_min": 0.05}, "scale_min ≤ scale_max within"),
    ({"scale_min": 2.0}, "scale_min ≤ scale_max within"),
    ({"scale_max": 11.0}, "scale_min ≤ scale_max within"),
    ({"crop": 250}, "multiples of 16"),
    ({"margin": 8}, "multiples of 16"),
    ({"crop": 64, "margin": 32}, "leaves nothing of a crop of 64"),
    ({"correct": 8.0, "scale_max": 1.3}, "correct is a distance in pixels"),
    ({"correct": 17.0, "margin": 16}, "correct=17 needs a margin of at least 32, not 16"),
    ({"correct": 12.0, "correct_kind": "gaussian", "margin": 16}, "at least 32, not 16"),
    *[({k: 10**12}, f"{k} must be at most") for k in
      ("steps", "batch", "crop", "devices", "workers", "log_every", "save_every", "eval_every", "warmup", "margin",
       "noise", "correct")],
    *[({k: 10**20}, f"{k}") for k in ("steps", "seed", "batch")],
    *[({k: 1e300}, f"{k} must be at most") for k in ("noise", "correct", "steps", "seed", "crop", "lr", "trunk_lr", "clip")],
    ({"batch": 65536, "crop": 16384}, "65536 crops of 16384×16384 pixels are too much"),
    ({"batch": 2, "crop": 16384, "correct": 9000.0}, "are too much for a step"),
    *[({k: v}, f"{k} must be a finite number") for k in ("lr", "trunk_lr", "noise", "correct", "ema", "scale_max", "clip",
      "flip") for v in (math.nan, math.inf)],
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), RULES)
def test_every_rule(values: dict[str, Any], message: str) -> None:
    for make in (lambda: TrainConfig(**values), lambda: from_mapping(values)):
        with pytest.raises(ConfigError, match=message) as caught:
            make()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize("pair", [
    "lr=" + "1" * 400, "steps=" + "1" * 400, "seed=" + "9" * 20, "lr=" + "1" * 5000, "loss.sigma=" + "1" * 400,
    "loss.sigma=" + "[" * 3000, "loss.sigma=" + "[" * 3000 + "]" * 3000, "crop=1e9", "batch=1e12", "noise=1e30",
    "loss.sigma=[&a [x], *a]", "steps=99999999999999999999", "loss.sigma=" + "x" * 70_000, "device=" + "x" * 70_000,
])  # fmt: skip
def test_absurd_values_are_one_short_sentence(pair: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_pairs(pair)
    said = str(caught.value)
    assert said.startswith(pair.partition("=")[0].partition(".")[0]) and "\n" not in said and len(said) < 200


def test_aliases_in_a_file_are_not_written_out(tmp_path: Path) -> None:
    """Nine lines that stand for 10^9 values."""
    path = tmp_path / "config.yaml"
    lines = ["loss:", "  k0: &k0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"  k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 10)}]" for n in range(1, 9)]
    path.write_text("\n".join([*lines, "steps: *k8"]))
    with pytest.raises(ConfigError, match=r"config\.yaml, line 3: not valid YAML \(aliases \(\*name\) are not read"):
        from_mapping(load(path))
    for text in ("loss: " + "[" * 3000 + "]" * 3000, "loss: " + "- " * 3000, "x" * 300_000, "lr: " + "1" * 400):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            from_mapping(load(path))
        assert str(caught.value).startswith(f"{path}") and len(str(caught.value)) < len(str(path)) + 150


def test_lists_that_are_shared_are_written_twice(tmp_path: Path) -> None:
    """PyYAML writes aliases for them, which are not read."""
    shared = [1, 2]
    made = TrainConfig(loss={"a": shared}, network={"a": shared})
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(made))
    assert from_mapping(load(path)) == made


def test_what_is_just_allowed() -> None:
    TrainConfig(crop=16, steps=1, batch=1, flip=0.0, grey=1.0, ema=0.0, scale_min=0.1, scale_max=10.0, lr=0.0)
    TrainConfig(crop=256, margin=64)
    TrainConfig(crop=48, margin=16)
    TrainConfig(correct=16.0, margin=16)


@pytest.mark.parametrize(
    ("values", "frame", "view"),
    [
        ({}, 0, 256),
        ({"margin": 48}, 48, 256),
        ({"correct": 32.0}, 32, 320),
        ({"correct": 12.0}, 16, 288),
        ({"correct": 33.0, "correct_kind": "disc"}, 48, 352),
        ({"correct": 12.0, "correct_kind": "gaussian"}, 32, 320),
        ({"correct": 12.0, "margin": 32}, 32, 256),
        ({"noise": 32.0}, 0, 256),
    ],
)
def test_the_crop_grows_by_the_displacement_that_is_corrected(values: dict[str, Any], frame: int, view: int) -> None:
    """A margin that was set is part of the crop, as ever; one that was not is put around it."""
    made = TrainConfig(**values)
    assert (made.frame, made.view) == (frame, view) and made.frame >= made.correct
    assert from_mapping(to_mapping(made)) == made  # what is stored is what was asked for


def test_nan_from_the_command_line() -> None:
    with pytest.raises(ConfigError, match="lr must be a finite number"):
        from_pairs("lr=nan")


# --- the named methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(methods.METHODS))
def test_every_method_can_be_trained_with_every_backbone(name: str) -> None:
    method = methods.method(name)
    assert method.name == name and method.summary and method.network in ("density", "points")
    assert method.loss in losses.names()
    for backbone in models.names():
        if models.info(backbone).kind != method.network:
            continue
        recipe = methods.recipe(name, backbone)
        made = from_mapping(recipe)
        assert set(made.loss) <= set(losses.options(method.loss))
        assert set(made.network) <= set(models.info(backbone).options)
    assert set(methods.BACKBONES) <= set(models.names())


def test_recipes_of_method_and_backbone() -> None:
    assert methods.recipe("al-papm", "vgg19") == {**methods.PHOTOGRAPHS, **methods.method("al-papm").recipe}
    assert "colour" not in methods.recipe("al-papm", "tiny") and "colour" not in methods.recipe("p2p-papm", "p2pnet")
    assert methods.recipe("hd-papm", "vgg19")["network"] == {"activation": "relu-live"}
    assert methods.recipe("hd-papm", "vgg19")["clip"] == 0.1
    assert methods.recipe("hd-papm", "man")["lr"] == methods.recipe("al-papm", "man")["lr"]
    assert methods.recipe("dm-count", "man")["trunk_lr"] == 1e-5  # a user's own lr leaves it alone
    assert methods.recipe("bl", "tiny")["network"] == {"activation": "abs"}
    assert (methods.recipe("hd-papm", "tiny")["crop"], methods.recipe("hd-papm", "tiny")["clip"]) == (160, 5.0)
    with pytest.raises(ConfigError, match="did you mean 'hd-papm'"):
        methods.method("hd-pamp")
