"""`papm predict --engine ray`: very many images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from typer import Exit

from papm.cli import ui
from papm.cli.options import How
from papm.errors import ConfigError
from papm.text import duration, n_of


def count_many(models: Sequence[str], images: Sequence[str], out: str, how: How, json: bool, **options: Any) -> None:
    """Count with Ray, show how far it is, and what came of it."""
    from papm.predict.scaleout.run import Far, predict_many

    with ui.items("counting", 0) as advance:

        def seen(far: Far) -> None:
            if not far.seconds and far.before:
                ui.note(f"{out}: {far.before:,} of {n_of(far.of_images, 'image')} counted before.")
            advance.at(
                far.images, far.of_images, f"{far.shards}/{far.of_shards} shards, {far.rate:.0f} images/s", far.before
            )

        asked: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
        try:
            made = predict_many(
                [*models, *how.beside],
                list(images),
                out,
                device=how.device,
                tile=how.tile,
                count=how.count,
                precision=how.precision,
                scale=how.scale,
                on_shard=seen,
                **asked,
            )
        except KeyboardInterrupt:
            ui.note(
                f"Stopped after {advance.done:,} of {n_of(advance.total, 'image')}; they are in {out}. Go on with --resume."
            )
            raise Exit(1) from None
    if json:
        ui.print_json(asdict(made))
    else:
        ui.say(f"{made.total:,.1f} objects in {n_of(made.counted, 'image')}, {duration(made.seconds)}.")
        ui.say(f"Results in {made.out}: a row for each image in counts/, the figures in summary.json")
    if made.failed:
        ui.note(f"papm: {n_of(made.failed, 'image')} could not be counted; the column fault says why: {made.faults[0]}")
    raise Exit(2 if made.failed else 0)


def refuse_of_plain(**given: object) -> None:
    """Options that only --engine ray has."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is an option of --engine ray")


def refuse_of_ray(**given: object) -> None:
    """Options that --engine ray, which gives counts of whole images, has no use for."""
    for name, value in given.items():
        if value not in (None, []):
            option = f"--{name.strip('_').replace('_', '-')}"
            raise ConfigError(f"{option} is not for --engine ray, which counts in whole images; leave one of them out")
