"""`papm serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from papm.cli.options import Beside, Count, Device, How, Precision, Tile


def add(app: typer.Typer) -> None:
    app.command("serve", short_help="Count in the browser, on this machine.")(serve)


def serve(
    model: Annotated[Path, typer.Argument(help="A run folder or a checkpoint.")],
    host: Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen at; 0 is any that is free.")] = 8000,
    device: Device = "auto",
    tile: Tile = "auto",
    count: Count = None,
    precision: Precision = "32",
    beside: Beside = None,
    max_megapixels: Annotated[float, typer.Option(help="Refuse larger images.")] = 100.0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Count in the browser: drop images on a page, see counts and points, correct the dots, download them.

    Images are sent to this program alone, which keeps nothing. Ctrl-C ends it.

    Examples:

    papm serve runs/first

    papm serve runs/first --port 8080 --open

    papm serve runs/first --with runs/second
    """
    import socket
    import threading
    import webbrowser

    from papm.cli import ui
    from papm.serve.counting import Limits, describe
    from papm.serve.server import address, is_local, listen, names, require_serve, run

    require_serve()
    limits = Limits(max_megapixels)
    import torch

    from papm.serve.app import application

    counter = How(device, tile, count, precision, beside or ()).open(model)
    if tile.isdecimal():  # a side too small for the network is said now, not with the first large image
        counter.predict(torch.zeros(3, 1, int(tile) + 1, dtype=torch.uint8), points=False)
    with listen(host, port) as sock:
        if not is_local(sock):
            ui.note("papm: there is no password: everyone who reaches this machine over the network can use this page,")
            ui.note(f"papm: for instance at http://{socket.gethostname()}:{sock.getsockname()[1]}")

        def ready() -> None:
            ui.say(f"{address(sock)}  (Ctrl-C ends it)")
            if open_browser:
                threading.Thread(target=webbrowser.open, args=(address(sock),), daemon=True).start()

        app = application(counter, describe(counter, model, limits), limits, names(host))
        try:
            run(app, sock, ready)
        except KeyboardInterrupt:  # the way to end it
            ui.note("ended")
