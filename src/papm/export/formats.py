"""`papm export`: a model in the form that another runtime reads, written only if it counts as the model does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from papm import exported
from papm.checkpoint import ModelSpec
from papm.errors import ConfigError, PapmError, WriteError, unknown
from papm.export.onnx import export_onnx, require_onnx
from papm.export.package import check_package, export_package
from papm.export.program import SIZES, Difference, compare, load_model
from papm.extras import has
from papm.models import Network

FORMATS = {"onnx": ".onnx", "openvino": ".xml", "torch-export": ".pt2"}
RUNTIMES = {"onnx": "onnxruntime", "openvino": "openvino", "torch-export": "torch"}  # what a file is checked with


@dataclass(frozen=True)
class Exported:
    """A file that was written, what it says about itself, and how far it is from its model; None: nothing to check it with."""

    file: Path
    format: str
    about: exported.About
    difference: Difference | None

    @property
    def bytes(self) -> int:
        """Size of the file, or of both files of OpenVINO."""
        return sum(p.stat().st_size for p in {self.file, *_beside(self.file)})


def target(out: Path | None, form: str | None) -> tuple[Path, str]:
    """The file and the format that a user means, who may name one or both.

    >>> target(None, None), target(Path("a.xml"), None)[1], target(None, "torch-export")[0].name
    ((PosixPath('model.onnx'), 'onnx'), 'openvino', 'model.pt2')
    """
    if form is not None and form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if out is None:
        form = form or "onnx"
        return Path(f"model{FORMATS[form]}"), form
    fitting = next((f for f, suffix in FORMATS.items() if out.suffix.lower() == suffix), None)
    if form is None and fitting is None:
        raise ConfigError(
            f"{out}: the name of an ONNX file ends in .onnx, of an OpenVINO model in .xml, of a package in .pt2"
        )
    if form is not None and fitting != form:
        raise ConfigError(f"{out}: the name of a file of format {form} ends in {FORMATS[form]}")
    return out, str(fitting)


def export_model(
    model: Network | str | Path,
    out: str | Path | None = None,
    form: str | None = None,
    size: tuple[int, int] | None = None,
    licence: str = "",
) -> Exported:
    """Write a model as ONNX, for OpenVINO or as a torch.export package; by `form`, or by how the name ends.

    The file is compared with the model at several sizes, odd ones among them; where a value or a count differs by more than
    rounding does, nothing is written. `size`: for images of that (H, W) only.
    """
    path, form = target(None if out is None else Path(out).expanduser(), form)
    if form != "torch-export":
        require_onnx()
    if form == "openvino":
        exported.import_openvino()
    network, known = load_model(model)
    spec = known or ModelSpec(type(network).__name__.lower())
    about = exported.About.of(network, spec, size, licence)
    with _draft(path) as draft:
        WRITERS[form](network, draft, size, spec, licence)
        difference = _check(draft, form, network, size)
        if difference is not None and not difference.small:
            raise PapmError(
                f"{path}: not written, because the file differs from the model by {difference.values:.1e} of its largest value"
                f" and {difference.counts:.1e} of a count"
            )
    return Exported(path, form, about, difference)


def _check(file: Path, form: str, network: Network, size: tuple[int, int] | None) -> Difference | None:
    if form == "torch-export":
        return check_package(file, network, size)
    if not has(RUNTIMES[form]):
        return None
    return compare(exported.load(file)[0], network, SIZES if size is None else [size])


def _write_onnx(network: Network, file: Path, size: tuple[int, int] | None, spec: ModelSpec, licence: str) -> None:
    export_onnx(network, file, size, dynamic=size is None, spec=spec, licence=licence)


def _write_openvino(network: Network, file: Path, size: tuple[int, int] | None, spec: ModelSpec, licence: str) -> None:
    """By way of ONNX, which OpenVINO reads; weights stay in full precision, or counts would move."""
    openvino = exported.import_openvino()
    with tempfile.TemporaryDirectory() as place:
        onnx = export_onnx(network, Path(place) / "model.onnx", size, dynamic=size is None, spec=spec, licence=licence)
        model = openvino.Core().read_model(str(onnx))
        model.set_rt_info(exported.About.of(network, spec, size, licence).to_text(), ["papm", "model"])
        openvino.save_model(model, str(file), compress_to_fp16=False)


def _write_package(network: Network, file: Path, size: tuple[int, int] | None, spec: ModelSpec, licence: str) -> None:
    export_package(network, file, size, spec=spec, licence=licence)


Writer = Callable[[Network, Path, tuple[int, int] | None, ModelSpec, str], None]
WRITERS: dict[str, Writer] = {"onnx": _write_onnx, "openvino": _write_openvino, "torch-export": _write_package}


def _beside(file: Path) -> list[Path]:
    """The second file of an OpenVINO model, its weights."""
    return [file.with_suffix(".bin")] if file.suffix.lower() == ".xml" else []


@contextmanager
def _draft(out: Path) -> Iterator[Path]:
    """A place for a file of this name, beside its own, which it takes when nothing went wrong; until then the old one stays."""
    place = ""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as place:
            draft = Path(place) / out.name
            yield draft
            for made in (*_beside(draft), draft):  # the .xml last: with it the model is there
                made.replace(out.parent / made.name)
    except WriteError as error:  # names the draft, which is gone
        raise WriteError(str(error).replace(place, str(out.parent))) from None
    except OSError as error:
        raise PapmError(f"{out}: cannot be written ({error.strerror})") from None
