"""The view `lines`: plain files of events, one a line. Every line is checked, and every line is a row.

`files:PATH` is a file, a directory (every *.ndjson and *.jsonl below it, also with .gz or .zst behind), or a glob. A
line is as a producer writes it or as a log has stored it. Only a newline ends a line; a carriage return before it
belongs to the ending, and a byte order mark at the very beginning belongs to the file. A row has the event's envelope
and its line, or a code and a reason, the number of the line, and the beginning of its bytes.

A task reads stretches of files, cut by their sizes alone: a line is read by the task in whose stretch it begins.
A compressed file is read by one task. Its offsets are those of what it unpacks to.
Executors see the files under the same paths as the driver.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from runstate.errors import EventTooLarge, InvalidUrl, LogNotFound, RunstateError
from runstate.models.canonical import is_text
from runstate.models.model import AnyModel
from runstate.pipeline.source.file_lines import (
    Line,
    LineNumbers,
    Part,
    Stretch,
    changed,
    content_bytes_max,
    fingerprint,
    opened,
    read_lines,
    whole,
)
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.packed_files import Unpackable, damaged, is_packed, packed_suffixes, unpacking
from runstate.pipeline.source.relative_urls import located
from runstate.pipeline.source.rows import event_schema, pack
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.source.views import Request, Task, View
from runstate.store_options import event_bytes_default

scheme = "files:"
no_stream = "/"
"""Stands for the stream of a quarantined line that names none. No stream's id has a slash, and none is empty either;
but the empty one comes before every shard."""
suffixes = tuple(name + packed for name in (".ndjson", ".jsonl") for packed in ("", *packed_suffixes))
_byte_order_mark = b"\xef\xbb\xbf"
_stretch_bytes_max = 64 << 20
_stretch_bytes_min = 4 << 20
_reason_chars_max = 2000

line_schema = pa.schema(
    [
        *event_schema,
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("line", pa.int64()),
        ("code", pa.string()),
        ("reason", pa.string()),
        ("content", pa.binary()),
    ]
)
"""`code`, `reason`, `line` (from 1) and `content` are of lines that are no events; the envelope is of those that are.

`seq` and `persisted_at` are null unless a log has stored the line, and `seq` also where the line does not tell.
"""


class FileShard(Shard, frozen=True):
    """The lines of any streams in some stretches of files."""

    stretches: tuple[Stretch, ...] = ()
    bounds: tuple[str, ...] = ()
    """The last streams of all ranges but the last, in order."""


class Plan(msgspec.Struct, frozen=True):
    """What an ingest reads, and the ranges of streams that its tasks write: the last stream of each but the last."""

    parts: list[Part]
    bounds: list[str]


# --- which files, and how much of them ------------------------------------------------------------------------


def find_files(url: str) -> list[str]:
    """The files that a URL names, each by its real path, in the order of their names.

    Raises:
        InvalidUrl: it names no path, or a file whose name is no text.
        LogNotFound: nothing is there.
    """
    path = url.removeprefix(scheme)
    if not path or "\0" in path:
        raise InvalidUrl("files: names nothing: write files:PATH, with a file, a directory or a glob")
    if os.path.isdir(path):
        found = [os.path.join(place, name) for place, _, names in os.walk(path) for name in names]
        found = [name for name in found if name.endswith(suffixes)]
    elif os.path.exists(path):
        found = [path]
    elif not (found := glob(path, recursive=True)):
        raise LogNotFound(f"There is no file at {path}", path=path)
    files = sorted({os.path.realpath(name) for name in found if os.path.isfile(name)})
    if nameless := [name for name in files if not is_text(name)]:
        raise InvalidUrl(f"The name of {nameless[0]!r} is no UTF-8; rename the file to have it read")
    return files


def cut_parts(parts: Sequence[Part], count: int, bounds: Sequence[str] = ()) -> list[Shard]:
    """Shards of about equal size: large files in stretches, small files together."""
    total = sum(part.end - part.start for part in parts)
    size = min(_stretch_bytes_max, max(_stretch_bytes_min, -(-total // count)))
    shards: list[Shard] = []
    gathered: list[Stretch] = []
    room = size
    for part in parts:
        start = part.start
        while start < part.end:
            # Nobody can begin in the middle of a compressed file.
            stop = part.end if is_packed(part.file) else min(part.end, start + room)
            gathered.append(Stretch(part, start, stop))
            room -= stop - start
            start = stop
            if room <= 0:
                shards.append(FileShard(stretches=tuple(gathered), bounds=tuple(bounds)))
                gathered, room = [], size
    if gathered:
        shards.append(FileShard(stretches=tuple(gathered), bounds=tuple(bounds)))
    return shards


def _plan(request: Request, count: int) -> list[Shard]:
    named = request.options.get("plan")
    if named is not None:
        plan = msgspec.json.decode(Path(named).read_bytes(), type=Plan)
        return cut_parts(plan.parts, count, plan.bounds)
    if other := [url for url in request.urls if not url.startswith(scheme)]:
        raise InvalidUrl(f"The view 'lines' reads files:PATH, not {other[0][:80]!r}")
    files = dict.fromkeys(file for url in request.urls for file in find_files(located(url)))
    return cut_parts([whole(file) for file in files], count)


# --- rows -----------------------------------------------------------------------------------------------------

Row = tuple[Any, ...]
_no_envelope = (None,) * len(event_schema)


def body_of(content: bytes, offset: int) -> bytes:
    """A line's event, without what belongs to its ending and to the file."""
    if offset == 0:
        content = content.removeprefix(_byte_order_mark)
    return content.removesuffix(b"\r")


def row_of(line: Line, file: str, model: AnyModel, bytes_max: int) -> Row:
    """A line's row; the number of a line that is no event is still to be filled in."""
    body = body_of(line.content, line.offset)
    try:
        if line.size > bytes_max:
            raise EventTooLarge(f"The line has {line.size} bytes, the limit is {bytes_max}; raise event_bytes_max")
        if not body.strip(b" \t\r") and line.is_ended:
            return _bad(line, file, "line.empty", "The line is blank")
        model.check_line(body)
        said = model.envelope(body)
    except EventTooLarge as error:
        return _bad(line, file, error.code, str(error))
    except Exception as error:  # noqa: BLE001 - whatever a model raises, it is about this line alone
        return _refused(line, file, error)
    envelope = (said.stream, said.seq, said.event_id, said.type, said.key, said.tenant, said.emitted_at)
    return (*envelope, said.persisted_at, body, file, line.offset, None, None, None, None)


def _refused(line: Line, file: str, error: Exception) -> Row:
    code = error.code if isinstance(error, RunstateError) else "model.failed"
    reason = str(error) if isinstance(error, RunstateError) else f"The model cannot read it: {error!r}"
    if zeros := line.content.count(b"\0"):
        reason += f"; it holds {zeros} NUL bytes, as a file does where data was never written"
    if not line.is_ended:
        code, reason = "line.unfinished", f"The file ends before the line does: {reason}"
    return _bad(line, file, code, reason)


def _bad(line: Line, file: str, code: str, reason: str) -> Row:
    # A model may quote what cannot be written as UTF-8.
    told = reason[:_reason_chars_max].encode("utf-8", "backslashreplace").decode()
    return (*_no_envelope, file, line.offset, None, code, told, line.content[:content_bytes_max])


def bad_line(row: Row) -> tuple[str, str] | None:
    """The code and the reason of a row that is no event."""
    return None if row[_code_at] is None else (row[_code_at], row[_code_at + 1])


def _with_task(row: Row, bounds: Sequence[str]) -> Row:
    # Lines that are no events have no stream; they are spread, so that no task has to write all of them.
    task = row[_offset_at] % (len(bounds) + 1) if row[0] is None else bisect_left(bounds, row[0])
    return (*row, task)


_number_at = line_schema.get_field_index("line")
_offset_at = line_schema.get_field_index("offset")
_code_at = line_schema.get_field_index("code")


def _numbered(rows: Iterable[Row], file: str, is_first: bool) -> Iterator[Row]:
    """Rows of one stretch. What is before it is counted only if a line needs its number."""
    known: tuple[int, int] | None = None
    for index, row in enumerate(rows):
        if row[_code_at] is None:
            yield row
            continue
        if known is None:
            known = index, index + 1 if is_first else LineNumbers().of(file, row[_offset_at])
        yield (*row[:_number_at], known[1] + index - known[0], *row[_number_at + 1 :])


def _stretch_rows(stretch: Stretch, model: AnyModel, bytes_max: int) -> Iterator[Row]:
    part = stretch.part
    count = 0
    try:
        with unpacking(part.file) if is_packed(part.file) else opened(part.file) as file:
            lines = read_lines(file, stretch, bytes_max)
            rows = (row_of(line, part.file, model, bytes_max) for line in lines)
            for count, row in enumerate(_numbered(rows, part.file, stretch.start == 0), 1):  # noqa: B007 - told below
                yield row
    except Unpackable as error:
        raise damaged(part.file, count + 1, error) from error
    with opened(part.file) as file:
        if fingerprint(file, part.end) != part.tail:
            raise changed(part, "was changed while it was read")


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    if not isinstance(task.shard, FileShard):
        raise InvalidOption("The view 'lines' reads stretches of files, not streams")
    model, names, bytes_max = task.model, task.schema.names, event_bytes_max(task.request.options)
    rows = (row for stretch in task.shard.stretches for row in _stretch_rows(stretch, model, bytes_max))
    bounds = task.shard.bounds
    for batch in pack(_planned_schema, (_with_task(row, bounds) for row in rows)):
        yield batch.select(names)


def event_bytes_max(options: dict[str, str]) -> int:
    """The option of that name: the size beyond which a line is no event.

    Raises:
        InvalidOption: it is no number of bytes.
    """
    given = options.get("event_bytes_max", str(event_bytes_default))
    if not given.isdecimal() or not 1 <= int(given) <= 1 << 30:
        raise InvalidOption(f"event_bytes_max is a number of bytes up to 2^30, not {given[:40]!r}")
    return int(given)


_planned_schema = line_schema.append(pa.field("task", pa.int32()))


def _schema(request: Request) -> pa.Schema:
    """With the task that is to write the line, where there is a plan."""
    return _planned_schema if "plan" in request.options else line_schema


view = View(_schema, _rows, _plan, frozenset({"plan", "event_bytes_max"}))
