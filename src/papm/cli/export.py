"""`papm export`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from typer import Option

from papm.cli import ui
from papm.cli.options import Json, Model, height_width
from papm.errors import ConfigError, PapmError
from papm.extras import has

LIMIT = 1e-4  # of the output's largest value: what float32 sums in another order differ by, with room


def export(
    model: Model,
    out: Annotated[Path, Option(help="The ONNX file to write.")] = Path("model.onnx"),
    fixed: Annotated[str | None, Option(help="For images of one size only: height x width (512x768).")] = None,
    json: Json = False,
) -> None:
    """Write a model as an ONNX file, for images of any size, and compare it with the model.

    Example: papm export runs/first --out model.onnx
    """
    size = None if fixed is None else height_width(fixed, "--fixed")
    if out.suffix.lower() != ".onnx":
        raise ConfigError(f"{out}: the name of an ONNX file ends in .onnx")
    from papm import checkpoint
    from papm.export.onnx import SIZES, check_onnx, export_onnx, onnx_metadata, require_onnx

    require_onnx()
    file = checkpoint.resolve(model.expanduser())
    spec, state = checkpoint.load(file)
    network = checkpoint.build(spec, state, file)
    checked = has("onnxruntime")
    with _draft(out) as draft:
        export_onnx(network, draft, size, dynamic=size is None, spec=spec)
        difference = check_onnx(draft, network, SIZES if size is None else [size]) if checked else None
        if difference is not None and not difference <= LIMIT:
            raise PapmError(
                f"{out}: not written, because the file differs from the model by {difference:.1e} of its largest value"
            )
    about = onnx_metadata(out)
    if json:
        ui.print_json({"file": str(out), "bytes": out.stat().st_size, "difference": difference, **about})
        return
    ui.say(f"{out}: {about['backbone']}, stride {about['stride']}, {out.stat().st_size / 1e6:.1f} MB")
    ui.say("For images of any size" if size is None else f"For images of {size[0]}×{size[1]} only")
    if difference is not None:
        ui.say(f"Checked with onnxruntime: differs from the model by at most {difference:.1e} of its largest value")
    else:
        ui.note("Not checked: onnxruntime is not installed (pip install 'papm[export]')")


@contextmanager
def _draft(out: Path) -> Iterator[Path]:
    """A place for a file of this name, beside its own, which it takes when nothing went wrong; until then the old one stays."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as place:
            draft = Path(place) / out.name
            yield draft
            draft.replace(out)
    except OSError as error:
        raise PapmError(f"{out}: cannot be written ({error.strerror})") from None
