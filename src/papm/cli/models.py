"""`papm models list` and `info`: the models that are ready to count."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument

from papm.cli import ui
from papm.cli.options import Json


def list_models(json: Json = False) -> None:
    """Name every ready model: what it counts, its size and licence, its errors; and those that could be installed.

    Example: papm models list
    """
    from papm import ready
    from papm.ready.places import ELSEWHERE

    absent = ready.missing()
    here = [ready.find(name) for name in ready.known() if name not in absent]
    if json:
        found: list[dict[str, Any]] = [{"name": m.name, "installed": True, **_facts(m)} for m in here]
        ui.print_json([*found, *({"name": n, "installed": False, "how": how} for n, how in absent.items())])
        return
    for model in here:
        ui.say(f"{model.name:12}{model.card.counts} ({model.bytes / 1e6:.1f} MB; {model.card.licence or 'no licence'})")
        for figure in model.card.errors:
            ui.say(f"{'':12}{figure}{'' if figure.seen else ', a dataset it never saw'}")
    for name, how in absent.items():
        ui.say(f"{name:12}{ELSEWHERE.get(name, '')}: {how}".replace("  :", "  "))
    ui.say("\nCount with one: papm predict NAME photo.jpg   Its card and licence: papm models info NAME")


def info(name: Annotated[str, Argument(help="A ready model.")], json: Json = False) -> None:
    """Print the licence and the card of a ready model: what taught it, how well it counts, what it is not for.

    Example: papm models info cells
    """
    from papm import checkpoint, ready

    model = ready.find(name)
    spec, _ = checkpoint.load(model.path)
    if json:
        ui.print_json({"name": name, "backbone": spec.backbone, "method": spec.method, **_facts(model)})
        return
    ui.say(f"{name}: {model.card.counts}")
    ui.say(f"Licence: {model.card.licence or 'none is given'}")
    ui.say(f"File: {model.path} ({model.bytes / 1e6:.1f} MB, {spec.backbone}, {spec.method})")
    for figure in model.card.errors:
        ui.say(f"  {figure}{'' if figure.seen else ', a dataset it never saw'}")
    ui.say(f"\n{model.card.text.strip()}")


def _facts(model: Any) -> dict[str, Any]:
    """What both commands say of a model in JSON."""
    return {"file": str(model.path), "bytes": model.bytes, **model.card.to_mapping()}
