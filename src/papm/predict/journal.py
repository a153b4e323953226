"""The journal of a prediction of many images: a line for each as soon as it is counted, so that a killed one can go on.

The first line says what was asked of which model; the others hold predictions, without their maps. A line that a kill has cut
is not believed: its image is counted again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from papm.errors import ConfigError, WriteError
from papm.predict.ensemble import Ensemble
from papm.predict.prediction import Prediction
from papm.predict.predictor import Counter

JOURNAL = "journal.jsonl"
ADVICE = "drop --resume to count all images again, or choose another --out"


@dataclass(frozen=True)
class Counted:
    """What is remembered of an image: its prediction without the map, and what makes it doubtful."""

    prediction: Prediction
    dark: bool = False
    stack: bool = False


def asked_of(counter: Counter | Ensemble, points: bool = True, roi: Path | None = None) -> dict[str, Any]:
    """What results depend on, as JSON types. Not the device: it changes no more than the last digits."""
    members = counter.members if isinstance(counter, Ensemble) else (counter,)
    first = members[0]
    return {
        "model": [_fingerprint(m) for m in members],
        "names": list(counter.names) if isinstance(counter, Ensemble) else [],
        "count": [m.inference.decode for m in members],
        "tile": first.tile,
        "precision": first.precision,
        "scale": first.scale,
        "points": points,
        "roi": None if roi is None else _content(roi),
    }


def _fingerprint(counter: Counter) -> str:
    """Of the weights of a model and of how it counts, wherever it is stored."""
    about = {**counter.spec.to_mapping(), "version": ""}
    made = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name, value in sorted(counter.network.state_dict().items()):
        made.update(name.encode())
        made.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return made.hexdigest()[:16]


def _content(path: Path) -> str:
    """Of a file's content, or of the names, sizes and times of a folder's files."""
    if not path.is_dir():
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    listed = [(p.name, *_state(p)) for p in sorted(path.iterdir())]
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:16]


def _state(path: Path) -> list[int]:
    """Bytes and time of change, by which a file is known to be the same."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def refuse_other(where: object, then: Mapping[str, Any], now: Mapping[str, Any], advice: str = ADVICE) -> None:
    """Refuse to go on with counts of another model, or that were asked for otherwise."""
    for key, value in now.items():
        if then.get(key) != value:
            told = f"{key}={_said(then.get(key))}, not {_said(value)}"
            raise ConfigError(
                f"{where}: holds counts with {f'another {key}' if key in ('model', 'roi') else told}; {advice}"
            )


class Journal:
    """`journal.jsonl` in the folder of a result, begun with its first image, or gone on with where `resume`."""

    def __init__(self, folder: Path, asked: Mapping[str, Any], resume: bool = False) -> None:
        self.path, self.asked = folder / JOURNAL, json.loads(json.dumps(asked))
        self.good = 0  # bytes of whole lines
        self.known: dict[str, dict[str, Any]] = {}  # by file
        self.stream: IO[bytes] | None = None
        if resume and self.path.exists():
            self._read()

    def _read(self) -> None:
        """The lines there are; refused where they answer something else."""
        with self.path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):  # cut by a kill
                    break
                value = _object(line)
                if not self.good:
                    self._check(value)
                elif isinstance(value.get("file"), str):
                    self.known[value["file"]] = value
                self.good += len(line)

    def _check(self, head: Mapping[str, Any]) -> None:
        then = head.get("asked")
        if not isinstance(then, dict):
            raise ConfigError(f"{self.path}: is no journal of papm predict; choose another --out")
        refuse_other(self.path.parent, then, self.asked)

    def find(self, file: Path, name: str, picture: Path | None) -> Counted | None:
        """What is known of a file that has not changed since and whose `picture` is there, if one is wanted."""
        value = self.known.get(str(file.absolute()))
        if value is None or (picture is not None and (value["picture"] != picture.name or not picture.is_file())):
            return None
        try:
            if value["state"] != _state(file):
                return None
            made = Prediction(**{k: _from_json(v) for k, v in value["prediction"].items()})
            return Counted(replace(made, name=name), value["dark"], value["stack"])
        except (OSError, KeyError, TypeError, ValueError, AttributeError):  # written by another version
            return None

    def add(self, file: Path, picture: Path | None, counted: Counted) -> None:
        """Write down an image; after this a kill does not lose it."""
        told = {f.name: _to_json(getattr(counted.prediction, f.name)) for f in fields(Prediction)}
        value = {
            "file": str(file.absolute()),
            "state": _state(file),
            "picture": None if picture is None else picture.name,
            "prediction": told,
            "dark": counted.dark,
            "stack": counted.stack,
        }
        try:
            if self.stream is None:
                self.stream = self._open()
            self.stream.write(_line(value))
            self.stream.flush()
        except OSError as error:
            raise WriteError(f"{self.path}: cannot be written ({error.strerror})") from None

    def _open(self) -> IO[bytes]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.good:
            stream = self.path.open("wb")
            stream.write(_line({"asked": self.asked}))
            return stream
        os.truncate(self.path, self.good)
        return self.path.open("ab")

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
            self.stream = None


def light(prediction: Prediction) -> Prediction:
    """A prediction without its map, with the counts of the classes that the map had."""
    return replace(prediction, density=None, by_class=tuple(prediction.class_counts))


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    """The object in a line; an empty one where it is damaged."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _to_json(value: Any) -> Any:
    """Tensors with their type and shape; what else a prediction holds is plain.

    >>> _to_json(torch.tensor([[1.5, 2.0]])), _from_json(_to_json((3, 4)))
    ({'dtype': 'float32', 'shape': [1, 2], 'values': [1.5, 2.0]}, (3, 4))
    """
    if not isinstance(value, Tensor):
        return value
    held = value.detach().cpu()
    return {"dtype": str(held.dtype)[6:], "shape": list(held.shape), "values": held.reshape(-1).tolist()}


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return torch.tensor(value["values"], dtype=getattr(torch, value["dtype"])).reshape(value["shape"])
    return tuple(map(_from_json, value)) if isinstance(value, list) else value


def _said(value: Any) -> str:
    """
    >>> _said(None), _said([]), _said(["a", "b"]), _said(512)
    ('none', 'none', 'a, b', '512')
    """
    return (", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)) or "none"
