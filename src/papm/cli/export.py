"""`papm export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from papm.cli import ui
from papm.cli.options import Json, Model, height_width

OUT = "The file to write: .onnx, .xml (OpenVINO, with a .bin beside it) or .pt2 (torch.export); model.onnx by default."


def export(
    model: Model,
    out: Annotated[Path | None, Option(help=OUT, show_default=False)] = None,
    form: Annotated[
        str | None,
        Option("--format", help="onnx, openvino or torch-export; else as the name ends.", show_default=False),
    ] = None,
    fixed: Annotated[str | None, Option(help="For images of one size only: height x width (512x768).")] = None,
    licence: Annotated[str, Option(help="Licence of the model, written into the file.", show_default=False)] = "",
    json: Json = False,
) -> None:
    """Write a model for another runtime, for images of any size, and compare it with the model.

    Example: papm export runs/first --out model.onnx
    """
    size = None if fixed is None else height_width(fixed, "--fixed")
    from papm.export.formats import RUNTIMES, export_model, target
    from papm.export.onnx import metadata_of

    out, form = target(out, form)
    with ui.err.status("exporting"):
        made = export_model(model, out, form, size, licence)
    about, difference = made.about, made.difference
    if json:
        values, counts = (None, None) if difference is None else (difference.values, difference.counts)
        found = {"difference": values, "count_difference": counts}
        ui.print_json({"file": str(out), "format": form, "bytes": made.bytes, **found, **metadata_of(about)})
        return
    ui.say(f"{out}: {about.backbone}, stride {about.stride}, {made.bytes / 1e6:.1f} MB")
    ui.say("For images of any size" if size is None else f"For images of {size[0]}×{size[1]} only")
    if form == "torch-export" and size is None:
        ui.say(f"Sides of images are to be longer than {about.multiple} px")
    if difference is not None:
        ui.say(
            f"Checked with {RUNTIMES[form]}: differs from the model by at most {difference.values:.1e} of its largest value,"
            f" {difference.counts:.1e} of a count"
        )
    else:
        ui.note(f"Not checked: {RUNTIMES[form]} is not installed (pip install 'papm[export]')")
