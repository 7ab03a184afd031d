"""copy: streams from one log to another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

import typer

from runstate.cli.options import AsJson
from runstate.cli.output import counted, words, write_json, write_line
from runstate.cli.progress_display import showing
from runstate.copying import check_apart, check_target, copy_stream
from runstate.errors import AppendOutcomeUnknown, LogClosed, LogFull, NotWritable, RunstateError, StreamNotFound
from runstate.logs.log import EventLog
from runstate.logs.registry import open_log
from runstate.models.registry import find_model

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
    model: Annotated[
        str | None,
        typer.Option(
            help="The model to record for streams that record none, because an older version wrote them.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy streams from one log to another, with their seqs, ids, keys, times and bytes, and read the copies back.

    Running it again goes on where it ended. Exit code 1 when a stream could not be copied as it is.
    """
    check_apart(source, target)
    given = None if model is None else find_model(model)
    totals = Counter[str]()
    with open_log(source, create=False) as from_log:
        for name in stream or ():
            if from_log.stream(name) is None:
                raise StreamNotFound(f"There is no stream {name!r} in the source", stream=name)
        with open_log(target) as to_log, showing("copying", unit="events") as progress:
            check_target(to_log)
            for name in _names(from_log, stream):
                progress.doing = f"copying {name}"
                try:
                    copied = copy_stream(from_log, to_log, name, progress.advance, model=given)
                except _ends_all:
                    raise
                except StreamNotFound:  # Deleted since it was listed; or its first append was never finished.
                    continue
                except RunstateError as error:  # One stream that cannot be copied does not keep the others from it.
                    if isinstance(error, NotWritable) and not totals["streams"]:
                        raise  # Nor can any other be written, as a rule: say it once.
                    totals["failed"] += 1
                    if as_json:
                        write_json({"stream": name, **error.as_data()})
                    else:
                        write_line(f"{name}: {error.code}: {error}".encode())
                else:
                    totals.update(streams=1, events=copied.events, adopted=copied.adopted)
                    totals.update(blobs=copied.blobs, unresolved=copied.unresolved)
                    if as_json:
                        write_json(copied)
    _report(totals)
    raise typer.Exit(1 if totals["failed"] else 0)


def _report(totals: Counter[str]) -> None:
    if not totals["streams"] and not totals["failed"]:
        words.print("nothing to copy: the source has no streams")
        return
    words.print(
        f"{counted(totals['streams'], 'stream')}: {counted(totals['adopted'], 'event')} copied, "
        f"{totals['events'] - totals['adopted']} there already, {counted(totals['blobs'], 'blob')}, all read back"
        + (f"; {counted(totals['failed'], 'stream')} could not be copied" if totals["failed"] else "")
    )
    if totals["unresolved"]:
        words.print(
            f"{counted(totals['unresolved'], 'string')} of the form of a reference: the source holds no such blob. "
            "'runstate verify' on the source says where"
        )


def _names(log: EventLog, streams: list[str] | None) -> Iterator[str]:
    if streams:
        yield from dict.fromkeys(streams)
        return
    for head in log.heads(versions=False):
        yield head.stream
