"""append, fetch, tail, validate: events in and out."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from runstate.cli.event_rows import record_writer
from runstate.cli.options import AsJson, BytesMax, Limit, ModelName, Stream, Url, bytes_max_default
from runstate.cli.output import Overlong, numbered_lines, words, write_json, write_line
from runstate.cli.progress_display import track
from runstate.cli.stream_stores import open_streams
from runstate.errors import EventTooLarge, InvalidEvent, ModelFailed, RunstateError
from runstate.logs.log import AppendResult, Position, Record
from runstate.logs.pairing import model_to_append
from runstate.logs.record_json import event_in_record
from runstate.logs.stream_models import check_model
from runstate.logs.waiting import wait_for_more
from runstate.models.model import AnyModel
from runstate.models.registry import find_model, installed_models
from runstate.store import Store
from runstate.store import open as open_store
from runstate.store_options import StoreOptions

_batch_events = 1000
_reported_max = 20
_spool_bytes = 64 * 1024 * 1024
_wait_max_s = 2.0
"""How long a log that wakes its followers is trusted to do so."""


def append(
    url: Url,
    file: Annotated[
        Path | None,
        typer.Argument(help="A file of events, one JSON object a line. Default: standard input.", show_default=False),
    ] = None,
    model: ModelName = None,
    strict_keys: Annotated[
        bool, typer.Option("--strict-keys", help="Refuse an event whose key its own fields don't give.")
    ] = False,
    check_transitions: Annotated[
        bool, typer.Option("--check-transitions", help="Refuse an event that is impossible in the run's state.")
    ] = False,
    event_bytes_max: BytesMax = bytes_max_default,
    as_json: AsJson = False,
) -> None:
    """Append events from a file or standard input; prints one result a line, in the order of the input.

    Every line is checked before the first is written. Running it again changes nothing: known keys are
    answered with their first result.
    """
    options: StoreOptions = {
        "strict_keys": strict_keys,
        "check_transitions": check_transitions,
        "event_bytes_max": event_bytes_max,
    }
    persisted = 0
    with _seekable(file) as lines:
        # Checked in a store of no consequence, so that bad input does not even leave an empty log behind.
        found = model_to_append(url, model)
        with open_store("memory:", found, **options) as checker:
            count, streams = _check_all(checker, lines, event_bytes_max)
        lines.seek(0)
        with open_store(url, found, **options) as store:
            for stream in sorted(streams):
                info = store.log.stream(stream)
                if info is None:
                    continue
                check_model(stream, info.model, store.model.name)
                if not info.model:
                    for first in store.log.read(stream, limit=1):  # An older version wrote it, and recorded no model.
                        _refuse_other_model(store.model, first)
            for number, result in track(_append_all(store, lines, event_bytes_max), "appending", count):
                persisted += result.persisted
                write_json(_result(store.model, result))
                if result.mismatch:
                    words.print(f"line {number}: the store holds other content under this key; the first stays")
    words.print(f"{persisted} appended, {count - persisted} known already")


def fetch(
    url: Url,
    stream: Stream,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events with a higher seq.")] = 0,
    limit: Limit = 1000,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """Print the events of one stream in order, as rows on a terminal, else as JSON records."""
    with open_streams(url, model) as streams:
        found = streams.model_of(streams.find(stream))
        records = streams.log.read(stream, after_seq=after, limit=limit)
        record_writer(lambda _: found, as_json, with_stream=False)(records)
        if len(records) == limit:
            words.print(f"stopped at --limit {limit}; continue with --after {records[-1].seq}")


def tail(
    url: Url,
    stream: Annotated[str | None, typer.Option("--stream", "-s", help="Only this stream.")] = None,
    after: Annotated[str | None, typer.Option("--after", help="Go on after this position.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until interrupted.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Stop after this many events.")] = None,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """Print the feed: the events of all streams in commit order, as rows on a terminal, else as JSON records."""
    with open_streams(url, model) as streams:
        log, written = streams.log, 0
        write_records = record_writer(streams.describing_model, as_json, with_stream=stream is None)
        if stream is not None and not follow:
            streams.model_of(streams.find(stream))
        position = Position(after) if after is not None else None
        left = limit
        try:
            while left is None or left > 0:
                page = log.feed(after=position, limit=min(1000, left or 1000) if stream is None else 1000)
                of_stream = (record for record in page.records if stream is None or record.stream == stream)
                wanted = [record for record in of_stream if streams.includes(record.stream)][:left]
                if wanted:
                    write_records(wanted)
                written += len(wanted)
                left = None if left is None else left - len(wanted)
                position = page.next
                if not page.records:
                    if not follow:
                        break
                    sys.stdout.flush()
                    wait_for_more(log, position, _wait_max_s)
        except KeyboardInterrupt:
            words.print()
        if not written:
            streams.refuse_others()
        streams.report_left_out()
        if stream is None or left is None:
            words.print(f"continue with --after {position or 0}")


def validate(
    file: Annotated[Path, typer.Argument(help="A file of events, one a line; - for standard input.")],
    model: ModelName = None,
    event_bytes_max: BytesMax = bytes_max_default,
    as_json: AsJson = False,
) -> None:
    """Check every line against its schema, and its key against its fields. Exit code 1 when one is wrong."""
    found = find_model(model or "engine")
    good = bad = 0
    with _opened(file) as lines:
        for number, line in track(numbered_lines(lines, event_bytes_max), "checking"):
            try:
                _refuse_overlong(line, event_bytes_max)
                found.check_line(event_in_record(line) or line)
                good += 1
            except RunstateError as error:
                bad += 1
                if as_json:
                    write_json({"file": str(file), "line": number, **error.as_data()})
                else:
                    write_line(f"{file}:{number}: {error.code}: {error}".encode())
    words.print(f"{good} good, {bad} bad")
    raise typer.Exit(1 if bad else 0)


def _check_all(store: Store[Any, Any, Any], lines: BinaryIO, bytes_max: int) -> tuple[int, set[str]]:
    """Check every line before any is written. Returns how many there are, and their streams.

    Raises:
        RunstateError: the first problem, with its line; up to twenty are told about.
    """
    count, streams, problems = 0, set[str](), list[RunstateError]()
    for number, line in track(numbered_lines(lines, bytes_max), "checking"):
        try:
            _refuse_overlong(line, bytes_max)
            streams.add(store.check_event(_parse(store.model, line)))
            count += 1
        except RunstateError as error:
            error.details["line"] = number
            problems.append(error if problems else _with_fitting_model(error, store.model, line))
            if len(problems) == _reported_max:
                break
    for problem in problems[1:]:
        words.print(f"line {problem.details['line']}: {problem.code}: {problem}")
    if problems:
        words.print(f"nothing was written; the lines were read as events of the model {store.model.name!r}")
        raise problems[0]
    return count, streams


def _with_fitting_model(error: RunstateError, model: AnyModel, line: bytes) -> RunstateError:
    """The error about a line; if the line is an event of another model, it says of which."""
    fitting = _fitting_model(lambda other: other.parse(line), model)
    if fitting is None or not isinstance(error, InvalidEvent):
        return error
    hint = f"it is no event of the model {model.name!r}, but one of {fitting!r}: append it with --model {fitting}"
    return InvalidEvent(f"{error}; {hint}", **error.details)


def _refuse_other_model(model: AnyModel, stored: Record) -> None:
    """
    Raises:
        ModelFailed: the stream holds events of another model. With some of both, no model could fold it any more.
    """
    try:
        model.decode(stored.body)
    except Exception as error:
        fitting = _fitting_model(lambda other: other.decode(stored.body), model)
        theirs = "another model" if fitting is None else f"the model {fitting!r}"
        raise ModelFailed(
            f"The stream {stored.stream!r} holds events of {theirs}, which {model.name!r} cannot read; nothing was "
            f"written. Append to another stream, or append events of that model with --model {fitting or 'MODEL'}",
            stream=stored.stream,
        ) from error


def _fitting_model(understands: Callable[[AnyModel], object], unfit: AnyModel) -> str | None:
    """The name of an installed model that understands what another does not."""
    for name in installed_models():
        with suppress(RunstateError, msgspec.MsgspecError):
            if name != unfit.name:
                understands(find_model(name))
                return name
    return None


def _append_all(store: Store[Any, Any, Any], lines: BinaryIO, bytes_max: int) -> Iterator[tuple[int, AppendResult]]:
    numbered = numbered_lines(lines, bytes_max)
    while batch := list(islice(numbered, _batch_events)):
        try:
            results = store.append_events([_parse(store.model, line) for _, line in batch])
        except RunstateError as error:
            if "index" in error.details:
                error.details["line"] = batch[error.details["index"]][0]
            raise
        for (number, _), result in zip(batch, results, strict=True):
            yield number, result


def _refuse_overlong(line: bytes, bytes_max: int) -> None:
    if isinstance(line, Overlong):
        raise EventTooLarge(
            f"The line is longer than {bytes_max} bytes; raise --event-bytes-max, or keep the payload out"
        )


def _result(model: AnyModel, result: AppendResult) -> dict[str, Any]:
    """An AppendResult as the model's contract writes it."""
    return {
        "eventId": result.event_id,
        model.seq_name: result.seq,
        "persistedAt": result.persisted_at,
        "idempotent": result.idempotent,
        "persisted": result.persisted,
    }


def _parse(model: AnyModel, line: bytes) -> Any:
    """An event to append: as its producer wrote it, or out of a record that `fetch` or `tail` printed."""
    stored = event_in_record(line)
    return model.parse(line) if stored is None else model.parse_stored(stored)


def _opened(file: Path | None) -> BinaryIO:
    if file is None or str(file) == "-":
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}") from error


def _seekable(file: Path | None) -> BinaryIO:
    """The input, in a form that can be read twice: what comes through a pipe is kept aside."""
    opened = _opened(file)
    if opened.seekable():
        return opened
    spool = tempfile.SpooledTemporaryFile(max_size=_spool_bytes)  # noqa: SIM115 - the caller closes it
    while chunk := opened.read(1024 * 1024):
        spool.write(chunk)
    spool.seek(0)
    return spool  # type: ignore[return-value]
