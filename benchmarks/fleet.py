"""A fleet of runs, the same one in every format, written fast: the formats' own bytes, without an fsync per append.

A run has about 50 events, as its engine or its orchestrator would write them: steps that start and complete, one in
twenty of which fails once and is tried again, every third with an artifact. One run in fifty is still going, so that
there is something to go on with. All follows from the run's number.

The bytes are those that the models and the logs write: each of a few shapes of a run is drafted and rendered once, with
marks where a run's own ids and times go, and every run is one of the shapes with its marks filled in. `check_fleet`
lets the logs themselves say whether they would have written that.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from hashlib import sha256
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from benchmarks.pipeline_shapes import (
    EngineEvent,
    RundirEvent,
    engine_shapes,
    id_mark,
    minute_mark,
    run_mark,
    rundir_shapes,
    shapes,
    tenant,
)
from runstate.logs.registry import open_log
from runstate.logs.sqlite import SqliteLog
from runstate.logs.sqlite.appends import insert_event
from runstate.logs.stored_rows import checksum
from runstate.models.registry import find_model

at_once = 64
"""Runs that write at the same time: their events stand interleaved in the SQLite file, as a live fleet's do."""
rows_per_insert = 50

# --- runs ------------------------------------------------------------------------------------------------------


class Slice(NamedTuple):
    """The events of one run from one place in its shape to another."""

    number: int
    begin: int = 0
    end: int | None = None


def run_id(number: int) -> str:
    return f"run-{number:08d}"


def _minute(number: int) -> str:
    hours, minute = divmod(number, 60)
    days, hour = divmod(hours, 24)
    months, day = divmod(days, 28)
    return f"{2026 + months // 12}-{months % 12 + 1:02d}-{day + 1:02d}T{hour:02d}:{minute:02d}"


def is_open(number: int) -> bool:
    """Whether the run is still going: one in fifty."""
    return number % 50 == 7


def first_part(number: int, length: int) -> Slice:
    """What there is of a run at first."""
    return Slice(number, 0, length * 3 // 5 if is_open(number) else None)


def rest_of(number: int, length: int) -> Slice:
    """What an open run goes on with."""
    return Slice(number, length * 3 // 5)


Shapes = Callable[[], list[list[EngineEvent]]] | Callable[[], list[list[RundirEvent]]]


def length_of(of: Shapes, part: Slice) -> int:
    whole = len(of()[part.number % shapes])
    return (whole if part.end is None else part.end) - part.begin


def fleet(of: Shapes, runs: int, first: int = 0) -> list[Slice]:
    return [first_part(number, len(of()[number % shapes])) for number in range(first, first + runs)]


def events_in(of: Shapes, parts: Iterable[Slice]) -> int:
    return sum(length_of(of, part) for part in parts)


def runs_for(of: Shapes, events: int) -> int:
    """How many runs have about so many events."""
    sample = fleet(of, 50 * shapes)
    return max(1, round(events * len(sample) / events_in(of, sample)))


# --- writing -----------------------------------------------------------------------------------------------------

Row = tuple[object, ...]
Line = tuple[EngineEvent, str, str, bytes]
"""An event of a shape, its id and its key in this run, and its line."""


def _engine_lines(part: Slice) -> Iterator[Line]:
    run, minute = run_id(part.number).encode(), _minute(part.number).encode()
    for event in engine_shapes()[part.number % shapes][part.begin : part.end]:
        key = sha256(run + event.key_rest).hexdigest()
        event_id = f"{key[:8]}-{key[8:12]}-4{key[13:16]}-8{key[17:20]}-{key[20:32]}"
        values = (minute, event_id.encode(), minute, run, key.encode())
        yield event, event_id, key, event.line.text % ((*values, run) if event.has_artifact else values)


def write_sqlite(path: Path, parts: Iterable[Slice]) -> None:
    """Add runs, or parts of them, to a SQLite log, in one transaction."""
    SqliteLog(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -262144")
        connection.execute("BEGIN EXCLUSIVE")
        waiting = iter(parts)
        while together := list(islice(waiting, at_once)):
            turns = zip_longest(*[_rows(_head(connection, part), part) for part in together])
            _insert(connection, [row for turn in turns for row in turn if row is not None])
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _insert(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Many rows with each statement, since each statement also notes the last position."""
    many = insert_event + ", (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)" * (rows_per_insert - 1)
    whole = len(rows) // rows_per_insert * rows_per_insert
    for place in range(0, whole, rows_per_insert):
        connection.execute(many, list(chain.from_iterable(rows[place : place + rows_per_insert])))
    connection.executemany(insert_event, rows[whole:])


_insert_head = "INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_move_head = "UPDATE streams SET last_seq = ?, events = ?, last_persisted_at = ? WHERE id = ?"


def _head(connection: sqlite3.Connection, part: Slice) -> int:
    """Put a stream's head to where the part ends. Returns the stream's number."""
    shape, minute = engine_shapes()[part.number % shapes], _minute(part.number)
    last, first = shape[: part.end][-1], shape[0]
    stream_id, last_at = part.number + 1, minute + last.clock
    if part.begin:
        connection.execute(_move_head, (last.seq, last.seq, last_at, stream_id))
    else:
        opening = (stream_id, run_id(part.number), tenant, last.seq, last.seq, minute + first.clock, last_at, "engine")
        connection.execute(_insert_head, opening)
    return stream_id


def _rows(stream_id: int, part: Slice) -> Iterator[Row]:
    minute = _minute(part.number)
    for event, event_id, key, body in _engine_lines(part):
        at = minute + event.clock
        crc = checksum(run_id(part.number), event.seq, event_id, event.kind, key, tenant, at, at, body)
        yield stream_id, event.seq, event_id, event.kind, key, tenant, at, at, crc, body


def write_framed(root: Path, parts: Iterable[Slice]) -> None:
    """Add an engine's runs to an NDJSON log: every line stands in the log's frame."""
    root.mkdir(mode=0o700, exist_ok=True)
    for part in parts:
        minute, text = _minute(part.number).encode(), []
        for event, event_id, key, body in _engine_lines(part):
            head = event.frame.text % (event_id.encode(), key.encode(), minute, minute)
            text.append(b'%b,"crc":"%08x","event":%b}\n' % (head, crc32(body, crc32(head)), body))
        _append(root / run_id(part.number), b"".join(text))


def write_rundir(root: Path, parts: Iterable[Slice]) -> None:
    """Make run directories, every line linked to the one before it. Whole runs only: a rest would need its link."""
    root.mkdir(mode=0o700, exist_ok=True)
    for part in parts:
        run = run_id(part.number).encode()
        values = {
            run_mark: run,
            minute_mark: _minute(part.number).encode(),
            id_mark: sha256(run).hexdigest()[:26].encode(),
        }
        text, previous = [], b""
        for line, hashed in rundir_shapes()[part.number % shapes][: part.end]:
            content = hashed.text % tuple([values[name] for name in hashed.names])
            this = sha256(content + previous).hexdigest().encode()
            bare = line.text % tuple([values[name] for name in line.names])
            text.append(b'%b,"prev_hash":"%b","event_hash":"%b"}\n' % (bare, previous, this))
            previous = this
        _append(root / run_id(part.number), b"".join(text))


def _append(home: Path, text: bytes) -> None:
    with suppress(FileExistsError):
        os.mkdir(home, 0o700)
    file = os.open(f"{home}/events.ndjson", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(file, text)
    os.close(file)


# --- what a benchmark asks for ------------------------------------------------------------------------------------


class Format(NamedTuple):
    """A way to keep a fleet."""

    scheme: str
    model: str
    shapes: Shapes
    write: Callable[[Path, Iterable[Slice]], None]


formats = {
    "rundir": Format("ndjson", "rundir", rundir_shapes, write_rundir),
    "framed": Format("ndjson", "engine", engine_shapes, write_framed),
    "sqlite": Format("sqlite", "engine", engine_shapes, write_sqlite),
}


class Fleet(NamedTuple):
    """A fleet on disk."""

    name: str
    path: Path
    runs: int
    events: int

    @property
    def format(self) -> Format:
        return formats[self.name]

    @property
    def url(self) -> str:
        return f"{self.format.scheme}:{self.path}"

    def bytes(self) -> int:
        if self.path.is_file():
            return self.path.stat().st_size
        return sum(entry.stat().st_size for entry in self.path.glob("*/events.ndjson"))

    def remove(self) -> None:
        _remove(self.path)


def made_fleet(directory: Path, name: str, events: int, *, purpose: str = "") -> Fleet:
    """A fleet of about so many events; one that an earlier run has finished is taken as it is."""
    form = formats[name]
    runs = runs_for(form.shapes, events)
    parts = fleet(form.shapes, runs)
    path, done = directory / f"{name}{purpose}-{runs}", directory / f"{name}{purpose}-{runs}.done"
    if not done.exists():
        _remove(path)
        form.write(path, parts)
        done.touch()
    return Fleet(name, path, runs, events_in(form.shapes, parts))


def _remove(path: Path) -> None:
    path.with_name(path.name + ".done").unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def check_fleet(made: Fleet, every: int = 997) -> None:
    """Let the log verify some of the runs, and the model read their lines.

    Raises:
        RuntimeError: the bytes are not those that the log would have written.
    """
    model = find_model(made.format.model)
    events = 0
    with open_log(made.url, create=False) as log:
        heads = {head.stream: head for head in log.heads()}
        sample = chain(range(0, made.runs, every), (7, made.runs - 1))
        for number in sample:
            stream = run_id(number)
            found = list(log.verify(stream))
            lines = list(log.lines(stream))
            for line in lines:
                model.decode(line)
            expected = length_of(made.format.shapes, fleet(made.format.shapes, 1, number)[0])
            if found or len(lines) != expected or stream not in heads:
                raise RuntimeError(f"{made.url} is not what a log would have written: {stream}, {found[:1]}")
            events += len(lines)
    if len(heads) != made.runs or not events:
        raise RuntimeError(f"{made.url} holds {len(heads)} runs, not {made.runs}")
