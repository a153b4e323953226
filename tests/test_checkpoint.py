"""Checkpoints: what was saved comes back, a bad file is refused in one sentence, and none of its code is run."""

from __future__ import annotations

import copy
import errno
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from papm import checkpoint, models
from papm.checkpoint import FORMAT, ModelSpec, assign, build, load, read, resolve, save
from papm.config import TrainConfig, to_mapping
from papm.errors import CheckpointError, PapmError
from papm.inference import Inference
from papm.predict.predictor import Counter

SPEC = ModelSpec("tiny", {"stride": 8}, "hd-papm", to_mapping(TrainConfig(loss={"sigma": 6.0})), 1200, Inference())


def network(**options: Any) -> models.Network:
    torch.manual_seed(0)
    return models.create("tiny", **{"stride": 8, **options})


def nested(depth: int) -> Any:
    """A few lists that stand for 2^depth values, if anybody writes them out."""
    value: Any = [0, 0]
    for _ in range(depth):
        value = [value, value]
    return value


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "best.ckpt"
    save(path, SPEC, network().state_dict())
    return path


def refused(path: Path) -> str:
    """Loading and building fail with one sentence that begins with the file's name."""
    with pytest.raises(CheckpointError) as caught:
        build(*load(path), path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    return message


def test_round_trip(saved: Path) -> None:
    spec, state = load(saved)
    assert spec == SPEC
    made = build(spec, state, saved)
    image = torch.randn(1, 3, 40, 56)
    assert torch.equal(made(image).density, network()(image).density)
    assert read(saved)["papm"]["format"] == FORMAT


def test_settings_that_no_longer_exist_do_not_matter(tmp_path: Path) -> None:
    """A model of an older papm stores settings and options of its loss that are gone since: it counts as it did."""
    path = tmp_path / "old.ckpt"
    config = {
        **to_mapping(TrainConfig()),
        "region": 128,
        "loss": {"bounded": True, "ignore_border": 8.0, "balance": 1.0},
    }
    save(path, ModelSpec("tiny", {"stride": 8}, "p2p-papm", config, 1200), network().state_dict())
    image = torch.randint(0, 255, (3, 40, 56), dtype=torch.uint8)
    new = tmp_path / "new.ckpt"
    save(new, SPEC, network().state_dict())
    assert Counter.load(path, "cpu").predict(image).count == Counter.load(new, "cpu").predict(image).count


def test_only_plain_types_are_stored(saved: Path) -> None:
    """`weights_only` reads it without any allowed classes."""
    values = torch.load(saved, weights_only=True)
    assert set(values) == {"papm", "state_dict"} and all(k.startswith("network.") for k in values["state_dict"])


def test_extra_entries_of_a_trainer_are_no_hindrance(saved: Path) -> None:
    values = read(saved)
    values |= {"optimizer_states": [{"lr": 1}], "global_step": 3}
    values["state_dict"]["metrics.count"] = torch.zeros(1)
    torch.save(values, saved)
    spec, state = load(saved)
    assert spec == SPEC and "metrics.count" not in state
    build(spec, state, saved)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_keeps_the_old_checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    before = saved.read_bytes()

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(PapmError, match=r"No space left on device\); what was there before is kept"):
        save(saved, SPEC, network().state_dict())
    assert saved.read_bytes() == before and [p.name for p in saved.parent.iterdir()] == ["best.ckpt"]


def test_a_disk_that_fills_up_in_the_middle(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()
    real = os.fdopen

    class Full(io.BufferedWriter):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdopen", lambda handle, mode: Full(real(handle, "wb", buffering=0)))
    with pytest.raises(PapmError, match="No space left on device"):
        save(saved, SPEC, network().state_dict())
    assert saved.read_bytes() == before and [p.name for p in saved.parent.iterdir()] == ["best.ckpt"]


# --- another network --------------------------------------------------------------------------------------------------


def test_another_network_is_refused() -> None:
    own = network(stride=8)
    other = network(stride=4).state_dict()
    with pytest.raises(CheckpointError, match=r"^x: belongs to another network: "):
        assign(own, other, "x")
    state = own.state_dict()
    with pytest.raises(CheckpointError, match=r"'output\.weight' is \[2, 48, 1, 1\], not \[1, 48, 1, 1\]"):
        assign(own, network(num_classes=2).state_dict(), "x")
    with pytest.raises(CheckpointError, match=r"'more' is not part of this one"):
        assign(own, {**state, "more": torch.zeros(1)}, "x")
    with pytest.raises(CheckpointError, match=r"it has no 'output\.bias'"):
        assign(own, {k: v for k, v in state.items() if k != "output.bias"}, "x")


def test_a_refused_checkpoint_leaves_the_network_alone() -> None:
    own = network()
    before = {k: v.clone() for k, v in own.state_dict().items()}
    state = {k: torch.zeros_like(v) for k, v in before.items()}
    with pytest.raises(CheckpointError):
        assign(own, {**state, "more": torch.zeros(1)}, "x")
    assert all(torch.equal(v, before[k]) for k, v in own.state_dict().items())


def test_half_precision_weights_load(saved: Path) -> None:
    values = read(saved)
    values["state_dict"] = {k: v.half() for k, v in values["state_dict"].items()}
    torch.save(values, saved)
    made = build(*load(saved), saved)
    assert next(made.parameters()).dtype == torch.float32


# --- bad files --------------------------------------------------------------------------------------------------------


def test_missing_and_empty_files(tmp_path: Path) -> None:
    assert "no such checkpoint file" in refused(tmp_path / "none.ckpt")
    assert "no such checkpoint file" in refused(tmp_path)
    (tmp_path / "zero.ckpt").write_bytes(b"")
    assert "not a readable checkpoint" in refused(tmp_path / "zero.ckpt")


@pytest.mark.parametrize(
    "content", [b"garbage", b"\x80\x02", b"PK\x03\x04nonsense", b"\x00" * 4096, "ß".encode() * 99, b"\x89PNG\r\n\x1a\n"]
)
def test_garbage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.ckpt"
    path.write_bytes(content)
    assert "not a readable checkpoint" in refused(path)


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.sampled_from(("cut", "flip", "zero")))
def test_damaged_files(tmp_path_factory: pytest.TempPathFactory, seed: int, damage: str) -> None:
    """Truncated, or with bytes changed: a sentence, or the weights (when only their numbers were hit)."""
    path = tmp_path_factory.mktemp("damaged") / "a.ckpt"
    save(path, SPEC, {k: v for k, v in network().state_dict().items() if v.numel() < 300})
    content = bytearray(path.read_bytes())
    place = seed % len(content)
    if damage == "cut":
        del content[place:]
    else:
        content[place : place + 8] = (
            bytes(8) if damage == "zero" else bytes(b ^ 0xFF for b in content[place : place + 8])
        )
    path.write_bytes(content)
    try:
        load(path)
    except CheckpointError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)


class Bomb:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("form", ["pickle", "torch", "legacy", "inside"])
def test_code_in_a_file_is_not_run(tmp_path: Path, saved: Path, form: str) -> None:
    marker, path = tmp_path / "ran", tmp_path / "bomb.ckpt"
    bomb = Bomb(marker)
    if form == "pickle":
        path.write_bytes(pickle.dumps(bomb, protocol=2))
    elif form == "inside":
        torch.save({**read(saved), "papm": {**SPEC.to_mapping(), "config": {"x": bomb}}}, path)
    else:
        torch.save({"papm": bomb, "state_dict": {}}, path, _use_new_zipfile_serialization=form == "torch")
    assert "not a readable checkpoint" in refused(path)
    assert not marker.exists()
    with path.open("rb") as stream:  # the bomb works where pickles are trusted
        if form == "pickle":
            pickle.load(stream)  # noqa: S301
            assert marker.exists()


def test_objects_in_a_file_are_named(tmp_path: Path, saved: Path) -> None:
    """What torch says of them speaks of its own versions and options."""
    path = tmp_path / "bomb.ckpt"
    torch.save({**read(saved), "more": Bomb(tmp_path / "ran")}, path)
    said = "it holds Python objects other than tensors (posix.system), which could run code and are not loaded"
    assert refused(path).endswith(said)
    path.write_bytes(saved.read_bytes()[:-300])
    assert refused(path).endswith(": it is cut off or damaged")


def repacked(path: Path, method: int) -> None:
    """The same archive, its records compressed or not."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in records.items():
            archive.writestr(name, content)


@pytest.mark.slow
def test_compressed_records_are_refused_before_they_are_unpacked(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repacked(saved, zipfile.ZIP_STORED)
    build(*load(saved), saved)
    torch.save({**read(saved), "zeros": torch.zeros(25_000_000)}, saved)
    repacked(saved, zipfile.ZIP_DEFLATED)
    assert saved.stat().st_size < 1_000_000
    monkeypatch.setattr(torch, "load", lambda *args, **options: pytest.fail("unpacked"))
    assert ": it is compressed, which torch.save does not do" in refused(saved)
    with pytest.raises(CheckpointError, match="it is compressed"):
        models.create("tiny", weights=saved)


def test_records_that_share_their_bytes_are_refused(saved: Path) -> None:
    """An archive may list the same bytes many times: together they are larger than the file."""
    with zipfile.ZipFile(saved, "a") as archive:
        largest = max(archive.infolist(), key=lambda r: r.file_size)
        for k in range(100):
            again = copy.copy(largest)
            again.filename = f"{largest.filename}{k}"
            archive.filelist.append(again)
            archive.NameToInfo[again.filename] = again
        archive._didModify = True  # type: ignore[attr-defined]
    assert ": its records are larger than the file" in refused(saved)


def odd(kind: str, like: torch.Tensor) -> torch.Tensor:
    if kind == "meta":
        return like.to("meta")
    if kind == "sparse":
        return like.to_sparse()
    if kind == "quantized":
        return torch.quantize_per_tensor(like, 0.1, 0, torch.qint8)
    if kind == "expanded":
        return torch.zeros(1).expand(like.shape)
    return like.to({"bool": torch.bool, "complex": torch.complex64, "int": torch.int32}[kind])


@pytest.mark.parametrize("kind", ["meta", "sparse", "quantized", "expanded", "bool", "complex", "int"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_tensors_that_are_no_plain_numbers(saved: Path, tmp_path: Path, kind: str) -> None:
    values = read(saved)
    key = "network.output.weight"
    values["state_dict"][key] = odd(kind, values["state_dict"][key])
    torch.save(values, saved)
    refused(saved)
    weights = tmp_path / "weights.pth"
    torch.save({k.removeprefix("network."): v for k, v in values["state_dict"].items()}, weights)
    with pytest.raises(CheckpointError, match=r"weights\.pth"):
        models.create("tiny", weights=weights, stride=8)


def test_files_that_are_something_else(tmp_path: Path, saved: Path) -> None:
    path = tmp_path / "other.ckpt"
    for value in (
        {"features.0.weight": torch.zeros(1)},
        [1, 2],
        torch.zeros(3),
        {"papm": 3, "state_dict": {}},
        {"papm": {}},
    ):
        torch.save(value, path)
        assert "not a papm checkpoint; trunk weights are given with --weights" in refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "hello")
    assert "not a readable checkpoint" in refused(path)


def test_a_newer_format(saved: Path) -> None:
    values = read(saved)
    values["papm"] |= {"format": FORMAT + 1, "version": "9.9"}
    torch.save(values, saved)
    assert refused(saved).endswith("written by a newer papm (9.9); upgrade to read it")
    values["papm"] |= {"format": 99, "version": "x" * 10**6}
    torch.save(values, saved)
    assert "newer papm" in refused(saved) and len(refused(saved)) < len(str(saved)) + 200
    values["papm"] |= {"format": "x"}
    torch.save(values, saved)
    assert refused(saved).endswith("not a whole papm checkpoint (its format is 'x', not a number)")


@pytest.mark.parametrize(
    "changes",
    [
        {"backbone": None}, {"backbone": "vgg99"}, {"options": 5}, {"options": {"stride": 3}}, {"options": {"strid": 4}},
        {"options": {1: 2}}, {"step": "x"}, {"config": 7}, {"format": "x"}, {"options": {"name": "tiny"}},
        {"step": float("inf")}, {"step": 10**5000}, {"options": {"num_classes": 10**9}}, {"backbone": "x" * 10**6},
        {"options": {"num_classes": nested(60)}}, {"backbone": nested(30)}, {"classes": nested(30)}, {"version": [0] * 10**5},
        *({"config": {"options": {f"{a}_side": n}}} for a in ("min", "max") for n in (10**9, "x", -1, nested(30))),
        *({"config": {"options": {key: 20_000}}} for key in ("min_side", "min_long_side")),
        *({"inference": entry} for entry in (5, [], {"frame": -1}, {"frame": 1.5}, {"frame": True}, {"calibration": 2.0},
          {"resize": {"min_side": 10**9}}, {"resize": {"side": 5}}, {"resize": 7}, {"decode": "guess"}, {"decode": nested(30)},
          {"background": -1.0}, {"background": "x"}, {"background": float("nan")}, {"mean": [0.5]}, {"mean": "abc"},
          {"mean": [float("inf")] * 3}, {"std": [0.0, 1.0, 1.0]}, {"std": None}, {"classes": "abc"}, {"classes": [1]},
          {"classes": ["x"] * 3000}, {"scales": nested(30)}, {1: 2})),
    ],
)  # fmt: skip
def test_a_description_that_makes_no_sense(saved: Path, changes: dict[str, Any]) -> None:
    values = read(saved)
    del values["papm"]["inference"]  # as before the contract, where the settings count
    values["papm"] |= changes
    if changes.get("backbone", "") is None:
        del values["papm"]["backbone"]
    torch.save(values, saved)
    assert len(refused(saved)) < len(str(saved)) + 300


@pytest.mark.parametrize("state", [None, [1], {"network.output.bias": 3}, {5: torch.zeros(1)}, {}])
def test_weights_that_are_none(saved: Path, state: Any) -> None:
    values = read(saved)
    values["state_dict"] = state
    torch.save(values, saved)
    refused(saved)


def test_a_file_cannot_make_us_open_or_fetch_another(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`weights` among the stored options would be taken for trunk weights to load."""
    for option in ({"weights": "imagenet"}, {"weights": "/etc/hostname"}, {"progress": 1}):
        values = read(saved)
        values["papm"] |= {"backbone": "vgg19", "options": option}
        torch.save(values, saved)
        assert "option of network 'vgg19'" in refused(saved)


def test_a_run_folder_means_its_best_else_its_last(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CheckpointError, match=r"neither best\.ckpt nor last\.ckpt"):
        resolve(tmp_path)
    (tmp_path / "last.ckpt").write_text("")
    assert resolve(tmp_path).name == "last.ckpt" and not caplog.messages
    (tmp_path / "config.yaml").write_text("")
    assert resolve(tmp_path).name == "last.ckpt" and "this run has not ended; last.ckpt is used" in caplog.text
    (tmp_path / "best.ckpt").write_text("")
    assert resolve(tmp_path).name == "best.ckpt" and "this run has not ended; best.ckpt is used" in caplog.text
    caplog.clear()
    (tmp_path / "result.json").write_text("")
    assert resolve(tmp_path).name == "best.ckpt" and not caplog.messages
    assert resolve(tmp_path / "x.ckpt") == tmp_path / "x.ckpt"


def test_messages_without_a_path() -> None:
    with pytest.raises(CheckpointError, match=r"^checkpoint: "):
        checkpoint.build(ModelSpec("tiny"), {})


@pytest.mark.parametrize(
    "wrong", [[0.5], [1, 2, 3, 4], [0.0, 1.0, 1.0], [float("nan")] * 3, "abc", 7, None, [None] * 3]
)
def test_scales_of_the_training_images_are_kept_or_refused(tmp_path: Path, wrong: object) -> None:
    network = models.create("tiny")
    path = tmp_path / "a.ckpt"
    contract = Inference(scales=(0.25, 0.5, 1.0))
    for entry in ("inference", None):
        checkpoint.save(path, ModelSpec("tiny", inference=contract), network.state_dict())
        values = torch.load(path, weights_only=True)
        place = values["papm"]
        if entry is None:  # as it was before the contract
            place["scales"] = place.pop("inference")["scales"]
        torch.save(values, path)
        assert checkpoint.load(path)[0].inference == contract
        (place[entry] if entry else place)["scales"] = wrong
        torch.save(values, path)
        with pytest.raises(CheckpointError, match=r"a\.ckpt: not a whole papm checkpoint"):
            checkpoint.load(path)
