"""`papm calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from papm.cli import ui
from papm.cli.options import DATA, Json, Model, Options
from papm.errors import ConfigError

if TYPE_CHECKING:
    from papm.inference import Calibration, CountInterval

SPLIT = "Which images; needed where the data has several splits, never test."
OUT = "Write the calibrated model to this file and leave MODEL as it is."
INTERVAL = (
    "Leave the factor as it is and learn how far counts may be off: nine images or more, which the factor is not of."
)


def calibrate(
    model: Model,
    data: Annotated[str | None, Argument(help=f"Checked images with points: {DATA}", show_default=False)] = None,
    options: Options = None,
    split: Annotated[str | None, Option(help=SPLIT, show_default=False)] = None,
    interval: Annotated[bool, Option("--interval", help=INTERVAL)] = False,
    out: Annotated[Path | None, Option(help=OUT, show_default=False)] = None,
    off: Annotated[bool, Option("--off", help="Take factor and interval of MODEL away.")] = False,
    json: Json = False,
) -> None:
    """Fit a factor for the counts of a model on a few checked images, and store it with the model.

    The images must be new to the model: neither trained on nor tested on. Nothing is stored where the error does not fall by
    more than chance.

    Examples:

    papm calibrate runs/first checked/

    papm calibrate runs/first more-checked/ --interval

    papm calibrate runs/first --off
    """
    from papm import api, checkpoint
    from papm.data import spec
    from papm.engine.calibration import take_away

    file = checkpoint.resolve(model)
    place = out or file
    if out is not None and out.suffix not in (".ckpt", checkpoint.COMPACT):
        raise ConfigError(f"{out}: the name of a model ends in .ckpt or {checkpoint.COMPACT}")
    if off:
        if data is not None or split is not None or interval:
            raise ConfigError("--off takes no data: papm calibrate MODEL --off")
        take_away(file, out)
        ui.print_json({"model": str(place), "calibration": None}) if json else ui.say(f"{place}: not calibrated")
        return
    if data is None:
        raise ConfigError("give checked images, papm calibrate MODEL DATA, or --off to take a calibration away")
    how = spec.reader_options(data, options)
    learn = api.add_interval if interval else api.calibrate
    with ui.items("counting", 0) as advance:
        found = learn(file, data, split=split, options=how, out=out, on_item=advance, on_tile=advance.part)
    if json:
        ui.print_json({"model": str(place), "data": data, "interval" if interval else "calibration": asdict(found)})
    else:
        _show(found, place)


def _show(found: Calibration | CountInterval, place: Path) -> None:
    """What was learned, what it is worth, where it is."""
    from papm.inference import Calibration

    if isinstance(found, Calibration):
        ends = f"95 % {found.low:.3f} to {found.high:.3f}"
        ui.say(f"Factor {found.scale:.3f} ({ends}) from {found.images} checked images")
        ui.say(
            f"MAE, each image with the factor of the others: {found.mae_after:.2f}; without it {found.mae_before:.2f}"
        )
    else:
        low, high = found.around(100.0)
        ui.say(
            f"Interval of {100 * found.level:g} % from {found.images} checked images: a count of 100 is {low:.0f} to {high:.0f}"
        )
    ui.say(f"Stored in {place}: counts have it from now on; papm calibrate {place} --off takes it away")
