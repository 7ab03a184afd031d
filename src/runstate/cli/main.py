"""Puts the commands together, and turns errors into exit codes."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from runstate.cli.loading import LoadedCommands
from runstate.cli.output import prepare_streams, print_error, silence_stdout, words
from runstate.cli.progress_display import erase_leftover
from runstate.errors import (
    BlobNotFound,
    EventNotFound,
    InvalidArgument,
    LogDamaged,
    LogNotFound,
    RunstateError,
    StreamNotFound,
    redact,
)

exit_damage, exit_usage, exit_not_found, exit_busy, exit_interrupted = 1, 2, 3, 4, 130


class Commands(TyperGroup):
    """All commands. A reader that has seen enough (`| head`) ends a command without an error."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = LoadedCommands()  # type: ignore[assignment]

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            silence_stdout()
            raise typer.Exit from None
        except Exception as error:
            if isinstance(shown := getattr(error, "message", None), str):
                error.message = redact(shown)  # type: ignore[attr-defined]  # It may repeat a password that was typed.
            raise
        except KeyboardInterrupt:
            erase_leftover()  # Also the ^C that the terminal shows.
            words.print("interrupted")
            raise typer.Exit(exit_interrupted) from None


app = typer.Typer(
    name="runstate",
    cls=Commands,
    help="A durable, event-sourced state store for things that run.",
    epilog="URLs: sqlite:PATH, ndjson:DIR, segments:DIR, wal:DIR, postgresql://…, dynamodb://…, snowflake://…, "
    "archive:DIR, memory:. "
    "Exit codes: 0 fine, 1 damage or difference found, or a run that "
    "failed, 2 bad usage or input, 3 not found, 4 busy: try again, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"runstate {version('runstate')}\n")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point of the `runstate` command."""
    prepare_streams()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except RunstateError as error:
        if "--json" in sys.argv:
            sys.stderr.buffer.write(msgspec.json.encode(error.as_data()) + b"\n")
        else:
            where = f"line {error.details['line']}: " if "line" in error.details else ""
            print_error(error.code, f"{where}{error}")
        sys.exit(_exit_code(error))
    except BrokenPipeError:
        silence_stdout()
        sys.exit(0)
    except UnicodeEncodeError as error:
        print_error(
            InvalidArgument.code,
            f"{error.object[:200]!r} is not valid text. Use a UTF-8 locale (LANG=C.UTF-8), or rename what it names",
        )
        sys.exit(exit_usage)
    except OSError as error:
        print_error("os", str(error))
        silence_stdout()
        sys.exit(exit_usage)


def _exit_code(error: RunstateError) -> int:
    # What fails in a stage of the pipeline arrives as data, from another process. Errors of runtimes are known by their
    # codes: to load their classes takes longer than most commands run.
    cause = error.details.get("cause")
    code = cause.get("code") if isinstance(cause, dict) else error.code
    if code in (LogNotFound.code, StreamNotFound.code, EventNotFound.code, BlobNotFound.code, "session.node_not_found"):
        return exit_not_found
    if code in (LogDamaged.code, "table.damaged"):
        return exit_damage
    if isinstance(error, StreamNotFound | BlobNotFound | LogNotFound):
        return exit_not_found
    if error.code == "run.cancelled":
        return exit_interrupted
    if isinstance(error, LogDamaged) or error.code == "run.failed":
        return exit_damage
    return exit_busy if error.retryable else exit_usage
