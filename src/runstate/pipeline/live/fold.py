"""What a task of the live projection does: fold its part of a batch, on from the rows that the sink has.

It writes nothing. Rows, alerts and how far it came are sent to the driver as data; should the batch be done a second
time, they are sent a second time, and change nothing there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from runstate.errors import InvalidUrl, shown_url
from runstate.logs.log import EventLog, Position, Record
from runstate.models.model import Alert, AnyModel
from runstate.models.registry import find_model
from runstate.pipeline.live.feed_reader import FeedReader, Part, open_feed, read_part
from runstate.pipeline.live.parquet_manifest import manifest_paths
from runstate.pipeline.live.parquet_sink import ParquetSink
from runstate.pipeline.source.rows import pack
from runstate.projector import Projector
from runstate.sinks import Projected, Sink, StoreSink
from runstate.store import Store

schema = pa.schema([("log", pa.string()), ("kind", pa.string()), ("told", pa.string()), ("body", pa.binary())])
"""`told` is the JSON of a `Projected` without its body, of an `Alert`, of a `Progress`, or the name of a stream."""


class Target(msgspec.Struct, frozen=True):
    """Where the rows go; it travels to the executors."""

    to: str
    model: str
    state: str
    """The projector's own directory."""
    asides: dict[str, str] = {}
    """By log, the name under which its rows are kept aside."""
    base: str = ""
    """The driver's working directory, which relative URLs and directories begin at."""

    def sink(self, url: str, log: EventLog, model: AnyModel) -> Sink:
        """
        Raises:
            InvalidUrl: there is no such sink.
        """
        aside = self.asides.get(shown_url(url), "")
        if self.to == "store":
            return StoreSink(log, model.name, aside=aside)
        if self.to == "console":
            # A task can only go on from rows that are somewhere.
            return ParquetSink(Path(self.state) / "rows", model, aside=aside)
        if self.to.startswith("parquet:") and self.to != "parquet:":
            return ParquetSink(self._directory(), model, aside=aside)
        raise InvalidUrl(f"{self.to[:80]!r} is no sink: write store, console or parquet:DIR")

    def is_there(self) -> bool:
        """Whether the sink can have any rows yet, or still."""
        directory = Path(self.state) / "rows" if self.to == "console" else self._directory()
        return self.to == "store" or any(manifest_paths(directory))

    def _directory(self) -> Path:
        return Path(self.base, self.to.removeprefix("parquet:"))


class Progress(msgspec.Struct, frozen=True):
    """How far a task has come."""

    until: Position | None
    events: int = 0
    resyncs: int = 0
    vanished: int = 0


class Gathering:
    """A sink that shows what another one has, and gathers what should be put there."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._known: dict[str, Projected] = {}
        self.rows: dict[str, Projected] = {}
        self.dropped: dict[str, None] = {}

    def expect(self, streams: Sequence[str]) -> None:
        """These will be asked for: where it costs less to look for all at once, this is the moment."""
        if isinstance(self._sink, ParquetSink):
            self._known = self._sink.load_all(streams)

    def load(self, stream: str) -> Projected | None:
        if stream in self.dropped:
            return None
        return self.rows.get(stream) or self._known.get(stream) or self._sink.load(stream)

    def keep(self, rows: Sequence[Projected]) -> None:
        for row in rows:
            self.rows[row.stream] = row
            self.dropped.pop(row.stream, None)

    def drop(self, stream: str) -> None:
        self.rows.pop(stream, None)
        self.dropped[stream] = None

    def switch(self) -> None:
        """Nothing is switched from here."""


class ProjectionReader(FeedReader):
    """Reads feeds, and gives what became of the streams instead of their events."""

    def __init__(self, urls: Sequence[str], target: Target, *, events_per_batch: int, tasks: int) -> None:
        super().__init__(urls, schema, events_per_batch=events_per_batch, tasks=tasks, base=target.base)
        self._target = target

    def rows(self, part: Part) -> Iterator[pa.RecordBatch]:
        with open_feed(part.url) as log:
            found = read_part(log, part)
            yield from pack(schema, _folded(log, part, found.records, found.vanished, self._target))


def _folded(
    log: EventLog, part: Part, records: list[Record], vanished: int, target: Target
) -> Iterator[tuple[str, str, str, bytes]]:
    shown, alerts = shown_url(part.url), list[Alert]()
    store = Store(log, find_model(target.model), snapshot_every=0, on_alert=alerts.append)
    gathering = Gathering(target.sink(part.url, log, store.model))
    gathering.expect([record.stream for record in records])
    projector = Projector(store, sink=gathering, name=shown)
    projector.project(records)
    for row in gathering.rows.values():
        yield shown, "row", _json(msgspec.structs.replace(row, body=b"")), row.body
    for stream in gathering.dropped:
        yield shown, "dropped", stream, b""
    for alert in alerts:
        yield shown, "alert", _json(alert), b""
    # What is missing is missing for all parts, and is told by one of them.
    gone = vanished if part.number == 0 else 0
    progress = Progress(part.until.position, len(records), projector.resyncs, gone)
    yield shown, "progress", _json(progress), b""


class ProjectionSource(DataSource):
    """The source of the live projection's query. It is no table of anybody's: see `runstate.pipeline.live.stream`."""

    @classmethod
    def name(cls) -> str:
        return "runstate_projection"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._settings = msgspec.json.decode(dict(options)["settings"], type=Settings)

    def schema(self) -> StructType:
        return from_arrow_schema(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        settings = self._settings
        return ProjectionReader(
            settings.urls, settings.target, events_per_batch=settings.events_per_batch, tasks=settings.tasks
        )


class Settings(msgspec.Struct, frozen=True):
    """All that the source is told, as one option."""

    urls: tuple[str, ...]
    target: Target
    events_per_batch: int
    tasks: int


class Folded(msgspec.Struct):
    """What the tasks of a batch have sent of one log."""

    rows: list[Projected] = []
    dropped: list[str] = []
    alerts: list[Alert] = []
    progress: list[Progress] = []


def received(table: pa.Table) -> Mapping[str, Folded]:
    """What a batch has sent, by log."""
    found: dict[str, Folded] = {}
    for log, kind, told, body in zip(*(table[name].to_pylist() for name in schema.names), strict=True):
        of = found.setdefault(log, Folded())
        if kind == "row":
            of.rows.append(msgspec.structs.replace(msgspec.json.decode(told, type=Projected), body=body))
        elif kind == "dropped":
            of.dropped.append(told)
        elif kind == "alert":
            of.alerts.append(msgspec.json.decode(told, type=Alert))
        else:
            of.progress.append(msgspec.json.decode(told, type=Progress))
    return found


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
