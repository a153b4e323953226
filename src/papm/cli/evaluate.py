"""`papm eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from papm.errors import ConfigError, unknown


def add(app: typer.Typer) -> None:
    app.command("eval")(evaluate)


def evaluate(
    model: Annotated[Path, typer.Argument(help="A run folder or a checkpoint.")],
    data: Annotated[str, typer.Argument(help="NAME:ROOT, a dataset name, or a folder.")],
    split: Annotated[str, typer.Option(help="Which split to count.")] = "test",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the count of every image to this CSV file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Count a split and compare with its annotations.

    Example: papm eval runs/first photos/ --split test
    """
    from papm import data as datasets
    from papm.cli import ui
    from papm.engine import evaluate as engine
    from papm.engine.train import scores
    from papm.predict.predictor import Counter

    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device is auto, cpu or cuda, not '{device}'")
    counter = Counter.load(model, device)
    splits = datasets.open_spec(data)
    if split not in splits:
        if set(splits) == {"all"} and split == "test":
            split = "all"
        else:
            raise unknown("split", split, splits)
    with ui.items("counting", len(splits[split])) as advance:
        found = engine.evaluate(counter.network, splits[split], on_item=advance)
    result = {"data": data, "split": split, "model": str(model), "method": counter.spec.method, **scores(found)}
    if out is not None:
        engine.write_evaluation(out, found)
    if json:
        ui.print_json(result)
        return
    rows = [("MAE", found.score.mae), ("RMSE", found.score.rmse), ("NAE", found.score.nae)]
    interval = found.intervals()
    ui.table(
        ["metric", "value", "95 % interval"],
        [[n, v, "{:.2f} to {:.2f}".format(*interval[n.lower()])] for n, v in rows],
        title=f"{data} {split}: {found.score.n} images",
    )
    ui.out.print(f"Bias of the total count {100 * found.score.bias:+.1f} %")
    if found.score_in_image.mae != found.score.mae:
        ui.out.print(f"Against points inside their image only: MAE {found.score_in_image.mae:.2f}")
