"""The families of models and settings: checkpoints as bytes and as values, runs to go on with, settings of a training."""

from __future__ import annotations

import dataclasses
import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import papm
from fuzzing.inputs import photo
from fuzzing.mutate import NUMBERS, ODD, WORDS, mutate, nodes
from fuzzing.subjects import Files, Subject, not_finite
from papm import checkpoint, losses, methods, models
from papm import config as configuration
from papm.engine import run_folder
from papm.engine import train as engine
from papm.engine.build import resolve
from papm.engine.dry_run import dry_run

SCENES = "synthetic:look=cells,train=4,test=2,size=48,count=3-6"
SHORT: Mapping[str, Any] = {
    "data": SCENES, "device": "cpu", "steps": 4, "crop": 32, "batch": 2, "log_every": 1, "save_every": 2,
    "eval_every": 4, "select": "last",
}  # fmt: skip
PHOTO = photo()


def model(path: Path) -> None:
    """A small model, as a training leaves it."""
    torch.manual_seed(0)
    config = configuration.to_mapping(resolve("hd-papm", "tiny", dict(SHORT)))
    checkpoint.save(
        path,
        checkpoint.ModelSpec("tiny", {"stride": 8}, "hd-papm", config, 4),
        models.create("tiny", stride=8).state_dict(),
    )


def count(path: Path, chance: float = 1.0) -> Any:
    """`papm predict` of one photograph."""
    found = papm.Counter.load(path, "cpu").predict(PHOTO)
    return (found.count, found.size, None if found.points is None else len(found.points))


# -- checkpoints -------------------------------------------------------------------------------------------------------


class Archive(Files):
    """A checkpoint, whose bytes are changed as they are, or inside the archive that it is."""

    def apply(self, rng: Random) -> str:
        if rng.random() < 0.4:
            return super().apply(rng)
        path = self.changed
        with zipfile.ZipFile(path) as archive:
            parts = {i.filename: archive.read(i) for i in archive.infolist()}
        small = [n for n in parts if len(parts[n]) < 100_000]
        name = rng.choice([n for n in parts if n.endswith("data.pkl")] * 3 + small)
        what, parts[name] = mutate(rng, parts[name], ".bin")
        with zipfile.ZipFile(path, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
            for part, content in parts.items():
                archive.writestr(part, content)
        return f"{name} in it: {what}"


def archive(root: Path) -> Archive:
    """The bytes of a checkpoint."""
    model(root / "model.ckpt")
    return Archive([root / "model.ckpt"], partial(count, root / "model.ckpt"), not_finite)


def odd_tensor(rng: Random, like: torch.Tensor) -> torch.Tensor:
    """A tensor that a network cannot count with."""
    like = like.float()
    made: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: like.to("meta"),
        lambda: like.to_sparse() if like.ndim else like[None].to_sparse(),
        lambda: torch.quantize_per_tensor(like, 0.1, 0, torch.qint8),
        lambda: like.bool(),
        lambda: like.to(torch.complex64),
        lambda: like.half(),
        lambda: like.double() * 1e300,
        lambda: torch.full_like(like, torch.nan),
        lambda: torch.full_like(like, torch.inf),
        lambda: like * 1e8,
        lambda: like.reshape(-1)[:0],
        lambda: torch.zeros(1).expand(2**40),
        lambda: like[None],
        lambda: torch.nn.Parameter(like),
    )
    return rng.choice(made)()


class Values:
    """A file of `torch.save` in which one value is missing or another."""

    def __init__(self, path: Path, use: Callable[[], Any]) -> None:
        self.path, self.use = path, use
        self.valid = path.read_bytes()

    def apply(self, rng: Random) -> str:
        if rng.random() < 1 / 150:
            return bomb(self.path)
        document = torch.load(self.path, weights_only=True)
        about, which = document["papm"], rng.random()
        if which < 0.15:
            where, key = (
                about["options"],
                rng.choice(("num_classes", "stride", "width", "activation", "weights", "trunk")),
            )
        elif which < 0.3:
            where = rng.choice((about["config"], about["config"].setdefault("options", {})))
            key = rng.choice(("min_side", "max_side", "resize", "margin", "correct", "count", "loss"))
        else:
            where, key = rng.choice(nodes(document))
        old = where.get(key) if isinstance(where, dict) else where[key]
        if which > 0.86:
            del where[key]
            what = f"{key!r} is missing"
        else:
            new = odd_tensor(rng, old) if isinstance(old, torch.Tensor) else rng.choice((*ODD, 20_000, 10**9))
            where[key] = new
            words = f"a tensor of {new.dtype}, {new.layout}" if isinstance(new, torch.Tensor) else str(new)[:60]
            what = f"{key!r} is {words}"
        torch.save(document, self.path)
        return what

    def wrong(self, found: Any) -> bool:
        return not_finite(found)

    def restore(self) -> None:
        self.path.write_bytes(self.valid)


def bomb(path: Path, numbers: int = 700_000_000) -> str:
    """A checkpoint of a few megabytes that unpacks to gigabytes of zeros."""
    values = torch.load(path, weights_only=True)
    values["state_dict"]["network.more"] = torch.zeros(4)
    torch.save(values, path)
    with zipfile.ZipFile(path) as whole:
        parts = {i.filename: whole.read(i) for i in whole.infolist()}
    storage = max((n for n in parts if "/data/" in n), key=lambda n: int(n.rpartition("/")[2]))  # the last
    pickle = next(n for n in parts if n.endswith("data.pkl"))
    # The end of the tuple that names a storage of four numbers: BININT1 4, TUPLE, BINPUT.
    parts[pickle] = parts[pickle].replace(b"K\x04tq", b"J" + numbers.to_bytes(4, "little") + b"tq")
    del parts[storage]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for name, content in parts.items():
            made.writestr(name, content)
        with made.open(storage, "w", force_zip64=True) as stream:
            for start in range(0, 4 * numbers, 2**24):
                stream.write(bytes(min(2**24, 4 * numbers - start)))
    return f"a storage of {4 * numbers / 1e9:.1f} GB of zeros in a file of {path.stat().st_size / 1e6:.0f} MB"


def values(root: Path) -> Values:
    """What a checkpoint says about its network, and the weights."""
    model(root / "model.ckpt")
    return Values(root / "model.ckpt", partial(count, root / "model.ckpt"))


class _Stop:
    """A watcher that ends a run after its checkpoint of step 2."""

    def on_step(self, step: int, total: int, values: Mapping[str, float]) -> None:
        if step == 3:
            raise InterruptedError

    def on_start(self, sizes: Mapping[str, int]) -> None: ...

    def on_evaluation(self, step: int, values: Mapping[str, float]) -> None: ...


class Resumed(Values):
    """A run that was stopped half way and goes on with a last.ckpt of which one value is another."""

    def __init__(self, root: Path) -> None:
        self.kept, self.run, self.config = root / "kept", root / "run", resolve("hd-papm", "tiny", dict(SHORT))
        with suppress(InterruptedError):
            engine.train(self.config, self.kept, watcher=_Stop())
        super().__init__(self.kept / "last.ckpt", self.go_on)

    def go_on(self) -> Any:
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.kept, self.run)
        made = engine.train(self.config, self.run, resume=True)
        return (made.step, (made.result or {}).get("mae"))

    def wrong(self, found: Any) -> bool:
        return found[1] is not None and not np.isfinite(found[1])


# -- settings ----------------------------------------------------------------------------------------------------------

METHODS = ("hd-papm", "gaussian", "al-papm", "dm-count", "bl", "gl", "p2p-papm")
LEVELS = "".join(f", &k{k + 1} [{', '.join([f'*k{k}'] * 10)}]" for k in range(8))
TEXTS = (
    *NUMBERS,
    *WORDS,
    f"[&k0 [a]{LEVELS}]",
    "[" * 3000,
    "2024-13-45",
    "!!python/name:os.system",
    "{a: 1}",
    "yes",
    "~",
)


EXTREME = ("0", "1", "1e9", "1e12", "1e30", "1e300", "1e-320", "2147483648", "99999999999999999999", "9" * 400)


def keys(method: str, numeric: bool) -> list[str]:
    """What can be set for a method on the small network; the numbers among it, or everything."""
    groups = {"loss": losses.options(methods.method(method).loss), "network": models.info("tiny").options}
    every = {f.name: f.default for f in dataclasses.fields(configuration.TrainConfig)}
    every |= {f"{group}.{k}": v for group, options in groups.items() for k, v in options.items()}
    every |= {"data.min_side": 0, "data.max_side": 0, "network.num_classes": 1}
    if numeric:
        return [k for k, v in every.items() if isinstance(v, int | float) and not isinstance(v, bool)]
    return [*every, "nothing", ""]


class Settings:
    """One or two settings as they are written behind `papm train`; `run` also takes a step with them."""

    def __init__(self, run: bool) -> None:
        self.run, self.given, self.method = run, list[str](), METHODS[0]

    def apply(self, rng: Random) -> str:
        self.method = rng.choice(METHODS)
        named = rng.sample(keys(self.method, self.run), 1 if self.run else rng.choice((1, 1, 2)))
        self.given = [f"{k}={rng.choice(EXTREME if self.run else TEXTS)}" for k in named]
        return f"{self.method} {' '.join(self.given)}"[:200]

    def use(self) -> Any:
        network = "p2pnet" if self.method == "p2p-papm" else "tiny"
        given: dict[str, Any] = {**SHORT, **({"network": {"trunk": "tiny"}} if network == "p2pnet" else {})}
        for key, value in configuration.parse_overrides(self.given).items():
            given[key] = {**configuration.group(given, key), **value} if isinstance(value, dict) else value
        config = resolve(self.method, network, given)
        if self.run:
            dry_run(config, steps=1, warmup=1)
        return (
            configuration.to_mapping(dataclasses.replace(config, method=METHODS[0])) if not self.given else self.given
        )

    def wrong(self, found: Any) -> bool:
        return False

    def restore(self) -> None:
        self.given, self.method = [], METHODS[0]


def stored(root: Path) -> Files:
    """config.yaml, as `papm train --config` reads it, or as `--resume` does."""
    path = root / "config.yaml"
    path.write_text(configuration.to_yaml(resolve("al-papm", "tiny", dict(SHORT))), encoding="utf-8")

    def read(chance: float) -> Any:
        if chance < 0.3:
            return configuration.to_mapping(run_folder.stored_config(root))
        given = configuration.load(path)
        return configuration.to_mapping(
            resolve(str(given.get("method", "hd-papm")), str(given.get("backbone", "vgg19")), given)
        )

    return Files([path], read)


MODELS: Mapping[str, Callable[[Path], Subject]] = {
    "model/checkpoint": archive,
    "model/values": values,
    "model/resume": Resumed,
    "settings/command": lambda root: Settings(run=False),
    "settings/run": lambda root: Settings(run=True),
    "settings/config.yaml": stored,
}
