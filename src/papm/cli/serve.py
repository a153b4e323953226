"""`papm serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from papm.cli import ui
from papm.cli.options import MODEL, Beside, Count, Device, How, Precision, Tile
from papm.errors import ConfigError

if TYPE_CHECKING:
    from papm.predict.predictor import Source
    from papm.serve.counting import Limits

ALLOW = "Let the page store a calibration in MODEL, made from checked images; without it, one lasts until this ends."
CLASSES = "Without a model: names of what is marked, divided by commas."


def serve(
    model: Annotated[str | None, Argument(help=f"{MODEL[:-1]}; none to set dots by hand.", show_default=False)] = None,
    host: Annotated[str, Option(help="The address to listen at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, Option(help="The port to listen at; 0 is any that is free.")] = 8000,
    device: Device = "auto",
    tile: Tile = "auto",
    count: Count = None,
    precision: Precision = "32",
    beside: Beside = None,
    classes: Annotated[str, Option(help=CLASSES, show_default=False)] = "",
    max_megapixels: Annotated[float, Option(help="Refuse larger images.")] = 100.0,
    allow_calibrate: Annotated[bool, Option("--allow-calibrate", help=ALLOW)] = False,
    open_browser: Annotated[bool, Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Count in the browser: drop images on a page, see counts and points, correct the dots, download them.

    Without a model the page is for the first dots of your images, which `papm train` learns from.

    Images are sent to this program alone, which keeps nothing. Ctrl-C ends it.

    Examples:

    papm serve runs/first

    papm serve runs/first --port 8080 --open

    papm serve runs/first --with runs/second

    papm serve runs/first --allow-calibrate

    papm serve --classes car,bus
    """
    import socket
    import threading
    import webbrowser

    from papm.serve.counting import Limits
    from papm.serve.server import address, is_local, listen, names, require_serve, run

    require_serve()
    limits = Limits(max_megapixels)
    import torch

    from papm.checkpoint import resolve
    from papm.serve.app import application
    from papm.serve.calibrating import Calibrator

    counter, about = _source(model, How(device, tile, count, precision, beside or ()), classes, limits)
    if tile.isdecimal() and int(tile) < min(limits.pixels, 10_000):  # too small is said now, not with the first image
        counter.predict(torch.zeros(3, 1, int(tile) + 1, dtype=torch.uint8), points=False)
    with listen(host, port) as sock:
        if not is_local(sock):
            ui.note("papm: there is no password: everyone who reaches this machine over the network can use this page,")
            ui.note(f"papm: for instance at http://{socket.gethostname()}:{sock.getsockname()[1]}")

        def ready() -> None:
            ui.say(f"{address(sock)}  (Ctrl-C ends it)")
            if open_browser:
                threading.Thread(target=webbrowser.open, args=(address(sock),), daemon=True).start()

        file = None if model is None else resolve(model)
        calibrator = Calibrator(counter, file, use=is_local(sock), store=allow_calibrate)
        app = application(counter, about, limits, names(host), calibrator=calibrator)
        try:
            run(app, sock, ready)
        except KeyboardInterrupt:  # the way to end it
            ui.note("ended")


def _source(model: str | None, how: How, classes: str, limits: Limits) -> tuple[Source, dict[str, Any]]:
    """What counts, and what the page says about it."""
    from papm.serve.blank import Blank
    from papm.serve.counting import describe

    if model is None:
        if how.beside:
            raise ConfigError("--with goes with a model: papm serve MODEL --with ANOTHER")
        blank = Blank([c.strip() for c in classes.split(",")] if classes else ())
        return blank, blank.describe(limits)
    if classes:
        raise ConfigError("--classes goes without a model; this one has classes of its own")
    counter = how.open(model)
    return counter, describe(counter, model, limits)
