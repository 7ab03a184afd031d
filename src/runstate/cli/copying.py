"""copy: streams from one log to another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from runstate.cli.options import AsJson
from runstate.cli.output import counted, words, write_json, write_line
from runstate.copying import Advance, check_apart, check_target, copy_stream
from runstate.errors import AppendOutcomeUnknown, LogClosed, LogFull, RunstateError, StreamNotFound
from runstate.logs.log import EventLog
from runstate.logs.registry import open_log

_ends_all = (LogClosed, LogFull, AppendOutcomeUnknown)
"""What would meet every further stream too."""


def copy(
    source: Annotated[str, typer.Argument(help="The log to copy from.", show_default=False)],
    target: Annotated[
        str, typer.Argument(help="The log to copy to. It is created if the place is new or empty.", show_default=False)
    ],
    stream: Annotated[
        list[str] | None, typer.Option("--stream", "-s", help="Only this stream. May be given several times.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy streams from one log to another, with their seqs, ids, keys, times and bytes, and read the copies back.

    Running it again goes on where it ended. Exit code 1 when a stream could not be copied as it is.
    """
    check_apart(source, target)
    done = events = adopted = blobs = failed = 0
    with open_log(source, create=False) as from_log:
        for name in stream or ():
            if from_log.stream(name) is None:
                raise StreamNotFound(f"There is no stream {name!r} in the source", stream=name)
        with open_log(target) as to_log, _bar(from_log, stream) as advance:
            check_target(to_log)
            for name in _names(from_log, stream):
                try:
                    copied = copy_stream(from_log, to_log, name, advance)
                except _ends_all:
                    raise
                except StreamNotFound:  # Deleted since it was listed; or its first append was never finished.
                    continue
                except RunstateError as error:  # One stream that cannot be copied does not keep the others from it.
                    failed += 1
                    if as_json:
                        write_json({"stream": name, **error.as_data()})
                    else:
                        write_line(f"{name}: {error.code}: {error}".encode())
                else:
                    done, events = done + 1, events + copied.events
                    adopted, blobs = adopted + copied.adopted, blobs + copied.blobs
                    if as_json:
                        write_json(copied)
    words.print(
        f"{counted(done, 'stream')}: {counted(adopted, 'event')} copied, {events - adopted} there already, "
        f"{counted(blobs, 'blob')}, all read back"
        + (f"; {counted(failed, 'stream')} could not be copied" if failed else "")
    )
    raise typer.Exit(1 if failed else 0)


def _names(log: EventLog, streams: list[str] | None) -> Iterator[str]:
    if streams:
        yield from dict.fromkeys(streams)
        return
    for head in log.heads(versions=False):
        yield head.stream


@contextmanager
def _bar(log: EventLog, streams: list[str] | None) -> Iterator[Advance]:
    """A bar of events on a terminal; elsewhere nothing moves."""
    if not words.is_terminal:
        yield lambda events: None
        return
    only = set(streams or ())
    total = sum(head.weight for head in log.heads() if not only or head.stream in only)
    columns = (SpinnerColumn(), TextColumn("copying"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=words, transient=True) as bar:
        task = bar.add_task("copying", total=total)
        yield lambda events: bar.advance(task, events)
