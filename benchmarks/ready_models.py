"""Make the ready models: teachers, student, a file in half precision, and a card with what it was measured to be worth.

    python benchmarks/ready_models.py cells --data DATA --place
    python benchmarks/ready_models.py crowd --data DATA --weights WEIGHTS --unseen "Mall=folder:DATA/mall" --place
    python benchmarks/ready_models.py vehicles --data DATA --weights WEIGHTS --place

A recipe is `benchmarks/ready/NAME.yaml`. `{data}` and `{weights}` in it stand for the folders of datasets and of trunk weights.
Trainings that are done are kept and those that were stopped go on: the same command, given again, finishes the work.
`--place` puts NAME.safetensors and NAME.md where they are shipped from, which is done once, when they are final. `--set
steps=20 …` changes every training, to try a recipe out. `--profile` trains nothing: the model that is shipped learns anew what
its training images were like, where what a profile holds has changed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import papm
from papm import checkpoint, data
from papm.config import load, parse_overrides
from papm.data.base import Dataset
from papm.data.splits import choose
from papm.engine.build import resolve
from papm.engine.profile import profile_of
from papm.errors import ConfigError, PapmError
from papm.files import write_text
from papm.predict.predictor import Counter
from papm.ready import Card, Figure

HERE = Path(__file__).parent
LARGEST = 10_000_000  # bytes
MOST_LOST = 1e-3  # share of a count that half precision may change
log = logging.getLogger("ready_models")


@dataclass(frozen=True)
class Recipe:
    """How one ready model is made."""

    name: str
    counts: str
    licence: str
    train: str  # data; or `cells`, the images of `ready/cell_images.py`
    student: Mapping[str, Any]
    tests: Mapping[str, str]  # name in the card → data
    text: str  # of the card, in Markdown
    place: str
    trained_on: str = ""  # what the file says about its data: no folders
    half: bool = True  # weights in half precision; not where that changes counts by more than a thousandth
    teachers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    first: Mapping[str, Any] = field(default_factory=dict)  # a training that the student starts from; teachers teach it
    options: Mapping[str, Any] = field(default_factory=dict)  # of the datasets
    unseen: Mapping[str, str] = field(default_factory=dict)
    resized: Mapping[str, float] = field(
        default_factory=dict
    )  # test → factor for its images, where objects are too large

    @classmethod
    def read(cls, path: Path, folders: Mapping[str, str]) -> Recipe:
        """From a YAML file, with the folders in place of their names."""
        known = {f.name for f in dataclasses.fields(cls)}
        values = load(path)
        if extra := set(values) - known:
            raise ConfigError(f"{path}: unknown key '{sorted(extra)[0]}'; known: {', '.join(sorted(known))}")
        return cls(**_filled(values, folders))


def _filled(value: Any, folders: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {k: v if k == "text" else _filled(v, folders) for k, v in value.items()}
    for name, folder in folders.items():
        value = value.replace(f"{{{name}}}", folder) if isinstance(value, str) else value
    return value


def make(recipe: Recipe, root: str, out: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """Train teachers and student, write the model and its card into `out`; gives the model's file."""
    images = _images(recipe, root)
    folder = out / recipe.name
    taught = [_trained(images, folder / name, recipe, s, changes or {}) for name, s in recipe.teachers.items()]
    learning = {"teachers": ",".join(map(str, taught))} if taught else {}
    settings = {**recipe.student, **learning}
    if recipe.first:
        first = _trained(images, folder / "first", recipe, {**recipe.first, **learning}, changes or {})
        settings = {**recipe.student, "init": str(first)}
    student = _trained(images, folder / "student", recipe, settings, changes or {})
    spec, state = checkpoint.load(checkpoint.resolve(student))
    made = out / f"{recipe.name}{checkpoint.COMPACT}"
    checkpoint.save(made, _without_folders(spec, recipe), state, half=recipe.half)
    if made.stat().st_size > LARGEST:
        raise PapmError(f"{made}: {made.stat().st_size / 1e6:.1f} MB, more than {LARGEST / 1e6:.0f}")
    card = Card(recipe.counts, recipe.licence, tuple(figures(recipe, made, student)), recipe.text)
    checkpoint.save(made, _without_folders(spec, recipe), state, card.write(), half=recipe.half)
    write_text(made.with_suffix(".md"), card.write())
    return made


def profiled(recipe: Recipe, root: str, file: Path) -> Path:
    """Write the file of a model again with the profile of its training images as it is made today."""
    spec, state = checkpoint.load(file)
    if spec.inference is None:
        raise PapmError(f"{file}: does not say how it counts; make it again")
    images = _images(recipe, root)
    opened = data.open_spec(images, **recipe.options) if isinstance(images, str) else images
    given = {"select": "last", **recipe.student, "data": recipe.name}
    config = resolve(str(given.pop("method")), str(given.pop("backbone")), given)
    train = choose(opened, config.select, config.val_fraction, config.seed).train
    profile = profile_of(checkpoint.build(spec, state), train, config, "32")
    spec = dataclasses.replace(spec, inference=dataclasses.replace(spec.inference, profile=profile))
    checkpoint.save(file, spec, state, file.with_suffix(".md").read_text(encoding="utf-8"), half=recipe.half)
    return file


def _images(recipe: Recipe, root: str) -> str | dict[str, Dataset]:
    if recipe.train != "cells":
        return recipe.train
    from ready.cell_images import training

    val = data.open_spec(recipe.tests["BBBC039 test"])["val"]  # watched: the test images are for the card alone
    return {"train": training(f"{root}/BBBC039", each=int(recipe.options.get("each", 60))), "test": val}


def _trained(
    images: str | dict[str, Dataset],
    folder: Path,
    recipe: Recipe,
    settings: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> Path:
    """A run folder, trained to its end, whatever of it was there before."""
    if (folder / "result.json").is_file():
        return folder
    given = {"select": "last", **settings, **changes}
    method, backbone = str(given.pop("method", "auto")), str(given.pop("backbone", "auto"))
    if isinstance(images, str) and recipe.options:
        given["options"] = dict(recipe.options)
    log.info("training %s", folder)
    run = papm.train(images, method, backbone, folder, resume=(folder / "last.ckpt").is_file(), progress=_say, **given)
    if run.interrupted:
        raise KeyboardInterrupt
    return folder


def _say(step: int, steps: int, values: Mapping[str, float]) -> None:
    if "mae" in values or step % 500 == 0:
        log.info("step %d of %d: %s", step, steps, ", ".join(f"{k} {v:.3g}" for k, v in values.items()))


def _without_folders(spec: checkpoint.ModelSpec, recipe: Recipe) -> checkpoint.ModelSpec:
    """What a file says about its training, without the folders of the machine it was made on."""
    weights = spec.config.get("weights")
    teachers = ",".join(recipe.teachers) or None
    known = {"data": recipe.trained_on or recipe.name, "weights": weights and Path(weights).name, "teachers": teachers}
    known["init"] = "first" if recipe.first else None
    return dataclasses.replace(spec, config={**spec.config, **known})


def figures(recipe: Recipe, file: Path, student: Path) -> list[Figure]:
    """What the file is worth on test images of its own datasets, and on datasets it never saw; as much as the run it is of."""
    found = []
    for seen, named in ((True, recipe.tests), (False, recipe.unseen)):
        for name, spec in named.items():
            try:
                images = data.spec.open_split(spec, "test", _own(spec, recipe.options))
            except PapmError as error:
                if seen:
                    raise
                log.warning("%s is left out of the card: %s", name, error)
                continue
            counters = [Counter.load(p, scale=recipe.resized.get(name)) for p in (file, student)]
            compact, whole = (_measured(c, images) for c in counters)
            lost = abs(sum(compact.predicted) / max(sum(whole.predicted), 1e-9) - 1)
            if lost > MOST_LOST:
                raise PapmError(
                    f"{file}: half precision changes the total of {name} by {100 * lost:.2f} %; set half: false"
                )
            score = compact.score
            figure = Figure(name, score.n, round(score.mae, 2), round(score.bias, 4), seen, round(score.nae, 4))
            log.info("%s (half precision changes the total by %.1e)", figure, lost)
            found.append(figure)
    return found


def _measured(counter: Counter, images: Dataset) -> papm.Evaluation:
    if counter.scale is None:
        return papm.evaluate(counter, images)
    counts = [counter.predict(s.image, points=False).count for s in images]
    truth = [float(s.count) for s in images]
    return papm.Evaluation([s.name for s in images], counts, truth, truth)


def _own(spec: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the recipe's options that a dataset has."""
    known = data.base.option_names(data.base.reader(data.parse_spec(spec)[0]))
    return {k: v for k, v in options.items() if k in known}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="cells, crowd, vehicles, or a recipe's file")
    parser.add_argument("--data", default="data", help="folder of the datasets")
    parser.add_argument("--weights", default="weights", help="folder of published trunk weights")
    parser.add_argument("--out", type=Path, default=Path("build/ready"))
    parser.add_argument(
        "--unseen", action="append", default=[], metavar="NAME=DATA", help="one more dataset it never saw"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of every training")
    parser.add_argument("--place", action="store_true", help="put the model where it is shipped from")
    parser.add_argument("--profile", action="store_true", help="only look at the training images again")
    asked = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    path = Path(asked.name) if asked.name.endswith(".yaml") else HERE / "ready" / f"{asked.name}.yaml"
    recipe = Recipe.read(path, {"data": asked.data, "weights": asked.weights})
    if asked.profile:
        print(profiled(recipe, asked.data, HERE.parent / recipe.place / f"{recipe.name}{checkpoint.COMPACT}"))
        return
    more = dict(part.split("=", 1) for part in asked.unseen)
    recipe = dataclasses.replace(recipe, unseen={**recipe.unseen, **more})
    made = make(recipe, asked.data, asked.out, parse_overrides(asked.set))
    if asked.place:
        place = HERE.parent / recipe.place
        for file in (made, made.with_suffix(".md")):
            shutil.copyfile(file, place / file.name)
    print(json.dumps({"file": str(made), "bytes": made.stat().st_size, "placed": asked.place}))


if __name__ == "__main__":
    main()
