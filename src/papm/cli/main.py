"""The command line: `papm COMMAND`. Each command is one file; its heavy imports happen when it runs."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator

import typer

from papm.cli.advice import refuse_settings_as_options
from papm.errors import PapmError
from papm.extensions import load_extensions
from papm.version import __version__

app = typer.Typer(
    name="papm",
    help="Count dense objects from imperfect point annotations.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"papm {__version__}")
        raise typer.Exit


@app.callback()
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
    from papm.cli import (
        bench,
        data,
        data_check,
        data_stats,
        data_writing,
        demo,
        doctor,
        evaluate,
        export,
        predict,
        report,
        robustness,
        serve,
        study,
        study_run,
        train,
    )

    for module in (demo, train, evaluate, predict, serve, export, report, robustness, doctor):
        module.add(app)
    for part in (data, data_stats, data_check, data_writing):
        part.add(data.app)
    study_run.add(study.app)
    app.add_typer(data.app, name="data")
    app.add_typer(study.app, name="study")
    app.add_typer(bench.app, name="bench")
    return app


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
        build()(args=words)
    except PapmError as error:
        sys.stderr.write(f"papm: {error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("papm: interrupted\n")
        raise SystemExit(1) from None
    except SystemExit as stop:
        if stop.code != 130:
            raise
        # typer turns an interruption into 130, in silence; the contract has 0, 1 and 2.
        sys.stderr.write("papm: interrupted\n")
        raise SystemExit(1) from None
    except BrokenPipeError:
        raise SystemExit(1) from None
    except OSError as error:
        if error.filename is None:
            raise
        sys.stderr.write(f"papm: {error.filename}: {error.strerror or error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
