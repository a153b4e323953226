"""`papm calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from papm.cli import ui
from papm.cli.options import DATA, Json, Model, Options
from papm.errors import ConfigError

SPLIT = "Which images; needed where the data has several splits, never test."
OUT = "Write the calibrated model to this file and leave MODEL as it is."


def calibrate(
    model: Model,
    data: Annotated[str | None, Argument(help=f"Checked images with points: {DATA}", show_default=False)] = None,
    options: Options = None,
    split: Annotated[str | None, Option(help=SPLIT, show_default=False)] = None,
    out: Annotated[Path | None, Option(help=OUT, show_default=False)] = None,
    off: Annotated[bool, Option("--off", help="Take the calibration of MODEL away.")] = False,
    json: Json = False,
) -> None:
    """Fit a factor for the counts of a model on a few checked images, and store it with the model.

    The images must be new to the model: neither trained on nor tested on. Nothing is stored where the error does not fall by
    more than chance.

    Examples:

    papm calibrate runs/first checked/

    papm calibrate runs/first checked/ --out calibrated.ckpt

    papm calibrate runs/first --off
    """
    from papm import api, checkpoint
    from papm.data import spec

    file = checkpoint.resolve(model.expanduser())
    place = out or file
    if out is not None and out.suffix != ".ckpt":
        raise ConfigError(f"{out}: the name of a model ends in .ckpt")
    if off:
        if data is not None or split is not None:
            raise ConfigError("--off takes no data: papm calibrate MODEL --off")
        checkpoint.store_calibration(file, None, out)
        ui.print_json({"model": str(place), "calibration": None}) if json else ui.say(f"{place}: not calibrated")
        return
    if data is None:
        raise ConfigError("give checked images, papm calibrate MODEL DATA, or --off to take a calibration away")
    with ui.items("counting", 0) as advance:
        how = spec.reader_options(spec.parse(data)[0], options)
        found = api.calibrate(model, data, split=split, options=how, out=out, on_item=advance, on_tile=advance.part)
    if json:
        ui.print_json({"model": str(place), "data": data, "calibration": asdict(found)})
        return
    ui.say(f"Factor {found.scale:.3f} (95 % {found.low:.3f} to {found.high:.3f}) from {found.images} checked images")
    ui.say(f"MAE of each image with the factor of the others: {found.mae_after:.2f}; without it {found.mae_before:.2f}")
    ui.say(f"Stored in {place}: counts and maps are multiplied by it; papm calibrate {place} --off takes it away")
