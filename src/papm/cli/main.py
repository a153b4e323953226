"""The command line: `papm COMMAND`. Each command is one file; its heavy imports happen when it runs."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.main import get_command

from papm.cli.advice import refuse_settings_as_options
from papm.errors import PapmError
from papm.extensions import load_extensions
from papm.version import __version__

LOOK: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
GROUPS = {
    "": "Count dense objects from imperfect point annotations.",
    "data": "Look at datasets, check and convert them.",
    "study": "The paper's tables: what it says, what was measured, and the trainings that are missing.",
    "models": "Models that are ready to count.",
    "bench": "Time our parts beside other ways to do the same.",
}
# Group and name of each command, the file and function that it is, and its line in the list of commands where the first
# sentence of the function is too long for it.
COMMANDS: tuple[tuple[str, str, str, str | None], ...] = (
    ("", "demo", "demo.demo", "Draw scenes, train on exact and misplaced dots, compare."),
    ("", "train", "train.train", None),
    ("", "eval", "evaluate.evaluate", "Count a split and compare with its annotations."),
    ("", "predict", "predict.predict", "Count in images: counts, points, pictures."),
    ("", "calibrate", "calibrate.calibrate", "Fit a factor for counts on a few checked images."),
    ("", "serve", "serve.serve", "Count in the browser, on this machine."),
    ("", "export", "export.export", "Write a model as an ONNX file."),
    ("", "report", "report.report", "Write the page of a run, or compare several."),
    ("", "robustness", "robustness.robustness", "Train methods with dots moved by several distances, compare."),
    ("", "doctor", "doctor.doctor", "Say what this machine offers."),
    ("data", "list", "data.list_formats", None),
    ("data", "info", "data.info", "Sum up a dataset: images, points, spacing, sizes, blemishes."),
    ("data", "stats", "data_stats.stats", "Draw how counts and distances are spread, as text or a page."),
    ("data", "check", "data_check.check", "Read everything and list what is wrong."),
    ("data", "convert", "data_writing.convert", "Write a dataset as a folder, or for an annotation tool."),
    ("data", "split", "data_writing.split", "Divide a dataset into train, val and test."),
    ("data", "displace", "data_writing.displace", "Write a dataset with its dots moved, missed, doubled."),
    ("study", "list", "study.list_studies", None),
    ("study", "show", "study.show", None),
    ("study", "run", "study_run.run", None),
    ("study", "rank", "study_rank.rank", None),
    ("study", "figure", "study_figure.figure", "Draw a figure of the paper; without a name, list them."),
    ("study", "results", "study_overview.write_results", "Write what is reached as pages of Markdown."),
    ("models", "list", "models.list_models", "Name every ready model, and those that could be installed."),
    ("models", "info", "models.info", "Print the licence and the card of a ready model."),
    ("bench", "list", "bench.list_benches", None),
    ("bench", "targets", "bench.targets", None),
    ("bench", "transport", "bench.transport", None),
    ("bench", "matching", "bench.matching", None),
    ("bench", "predict", "bench_predict.predict", None),
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"papm {__version__}")
        raise typer.Exit


def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Say more; also after a command."),
) -> None:
    """Count dense objects from imperfect point annotations.

    Start with `papm demo`; then `papm train --help`.
    """


@functools.cache
def build() -> typer.Typer:
    """The application with every command."""
    groups = {name: typer.Typer(name=name or "papm", help=said, **LOOK) for name, said in GROUPS.items()}
    app = groups[""]
    app.callback()(options)
    for group, name, place, summary in COMMANDS:
        file, _, function = place.partition(".")
        groups[group].command(name, short_help=summary)(getattr(import_module(f"papm.cli.{file}"), function))
    for name in filter(None, groups):
        app.add_typer(groups[name], name=name)
    return app


@functools.cache
def _command() -> Callable[..., Any]:
    """The same, with all options read once: a process may run many commands."""
    return get_command(build())


def main(argv: list[str] | None = None) -> None:
    """Entry point: user errors are one sentence and exit code 2, an interruption is exit code 1."""
    with _warnings_on_stderr():
        _main(sys.argv[1:] if argv is None else argv)


class _Stderr(logging.Handler):
    """Writes to the standard error of the moment, which a progress bar may have taken."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(f"{self.format(record)}\n")


@contextlib.contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """What the library warns of, while a command runs."""
    shown = _Stderr()
    shown.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logging.getLogger().addHandler(shown)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(shown)


def _main(words: list[str]) -> None:
    verbose = any(w in ("-v", "--verbose") for w in words)  # wherever it stands
    logging.getLogger("papm").setLevel(logging.INFO if verbose else logging.WARNING)
    words = [w for w in words if w not in ("-v", "--verbose")]
    for stream in (sys.stdout, sys.stderr):  # a terminal that knows no × shows a ? instead of a traceback
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        load_extensions()
        refuse_settings_as_options(words)
        _command()(args=words)
    except PapmError as error:
        _end(str(error), 2)
    except KeyboardInterrupt:
        _end("interrupted", 1)
    except SystemExit as stop:
        if stop.code != 130:  # typer turns an interruption into 130, in silence; the contract has 0, 1 and 2
            raise
        _end("interrupted", 1)
    except BrokenPipeError:
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is None:
            raise
        _end(f"{error.filename}: {error.strerror or error}", 2)


def _end(why: str, code: int) -> NoReturn:
    sys.stderr.write(f"papm: {why}\n")
    raise SystemExit(code) from None


if __name__ == "__main__":
    main()
