"""`papm bench predict`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

from typer import Option

from papm.cli import ui
from papm.cli.bench import Repeat, show
from papm.cli.options import Json, height_width


def predict(
    backbone: Annotated[str, Option(help="A density network.")] = "lite",
    size: Annotated[str, Option(help="Height and width of the image.")] = "768x1024",
    threads: Annotated[int, Option(help="Threads of every candidate.", min=1)] = 2,
    onnx: Annotated[bool, Option(help="Count in ONNX Runtime too, which takes an export.")] = True,
    bf16: Annotated[bool, Option("--bf16", help="Count in half precision too.")] = False,
    repeat: Repeat = 5,
    json: Json = False,
) -> None:
    """Count a photograph on the CPU, beside the same network in plain PyTorch and in ONNX Runtime.

    Example: papm bench predict --backbone lite --size 768x1024 --threads 2
    """
    from papm.bench import predict as bench

    side = height_width(size, "--size")
    if onnx and (find_spec("onnxruntime") is None or find_spec("onnxscript") is None):
        ui.note("Not installed, so not compared: ONNX Runtime (pip install 'papm[export]')")
        onnx = False
    with ui.err.status("counting") as status:
        rows = bench.run(backbone, side, threads, repeat, onnx, bf16, status.update)
    what = {"backbone": backbone, "size": list(side), "threads": threads, "repeat": repeat}
    more = {"cpu_ms": "cpu_ms", "first_ms": "first_ms", "difference_of_count": "difference"}
    show("predict", what, rows, more, bench.agree(rows), json)
