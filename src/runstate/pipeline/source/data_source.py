"""The data source `runstate`: `spark.read.format("runstate").option("url", …)`, over any log, and over event tables.

Options: `url` (a URL, or a JSON list of them), `view` (`events` by default), `model` (by default the one that goes with
the log), `shards` (about how many tasks; else as many as are worth it), `columns` (a name, or a JSON list of them; a
narrower `.schema(...)` does the same), those of a selection, and those of the view. With `spark.readStream` a log's
feed is followed, at most `events_per_batch` events at a time.

The source takes no filters from Spark: see `selection`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from runstate.errors import shown_url
from runstate.logs.log import now
from runstate.pipeline.source.census import Planned, check_any, counting
from runstate.pipeline.source.options import InvalidOption, names_in
from runstate.pipeline.source.origins import check_there, model_of
from runstate.pipeline.source.relative_urls import located, relative_to
from runstate.pipeline.source.selection import Selection, read_selection
from runstate.pipeline.source.shards import Shard, events_min
from runstate.pipeline.source.views import Request, Task, schema_of, view_named
from runstate.pipeline.spark.failures import told_to_driver
from runstate.pipeline.spark.shared_storage import check_shared

shards_default = 16
_streaming = frozenset({"events_per_batch"})
_of_catalog = frozenset({"provider", "owner", "location", "is_managed_location", "external", "comment", "collation"})
_kept_options = "runstate.options"
_general = _streaming | {"url", "view", "model", "shards", "shards_max", "path", "columns", "base", "marker", "planned"}


def register(spark: SparkSession) -> None:
    """Make the format `runstate` known to a session."""
    spark.dataSource.register(RunstateSource)


class RunstateSource(DataSource):
    """Logs and event tables as tables of Spark."""

    @classmethod
    def name(cls) -> str:
        return "runstate"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Spark's own map ignores case and cannot be pickled to where this one goes.
        given = {name.lower(): value for name, value in dict(options).items()}
        self._options = {name: value for name, value in given.items() if not _is_of_catalog(name)}
        self._is_of_catalog = len(self._options) < len(given)

    def schema(self) -> StructType:
        found = from_arrow_schema(schema_of(self.request()))
        if self._is_of_catalog:
            # Spark keeps the schema of a table in its catalog, and hands it back to read it; its options it does not.
            kept = {**self._options, "url": msgspec.json.encode([*map(shown_url, urls_of(self._url()))]).decode()}
            found.fields[0].metadata = {_kept_options: {"base": os.getcwd(), **kept}}
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        self._options = {**schema.fields[0].metadata.get(_kept_options, {}), **self._options}
        if alone := sorted(self._options.keys() & _streaming):
            raise InvalidOption(f"{alone[0]} is for spark.readStream; a query that ends reads all there is")
        return StreamsReader(self._narrowed(schema), self._count(), self._options.get("planned"))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from runstate.pipeline.live.feed_reader import FeedReader, events_per_batch_default

        request = self._narrowed(schema)
        if request.view != "events" or request.options or request.selection != Selection():
            raise InvalidOption("A stream gives the view 'events' as it is; every other one reads a whole log")
        events = self._number("events_per_batch", events_per_batch_default, 1_000_000_000)
        return FeedReader(
            request.urls, schema_of(request), events_per_batch=events, tasks=self._count(), base=request.base
        )

    def _narrowed(self, schema: StructType) -> Request:
        """What is asked for, with the columns that are wanted alone."""
        request = self.request()
        if schema.names != schema_of(request).names:
            request = msgspec.structs.replace(request, columns=tuple(schema.names))
        wanted = from_arrow_schema(schema_of(request))
        drifted = [f.name for f, ours in zip(schema, wanted, strict=True) if f.dataType != ours.dataType]
        if drifted:
            raise InvalidOption(f"The column {drifted[0]!r} has the type {wanted[drifted[0]].dataType.simpleString()}")
        return request

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from runstate.pipeline.source.sink import EventWriter

        if overwrite:
            raise InvalidOption("A log is only ever appended to: write with mode('append')")
        return EventWriter(located(self._url()), self._options, schema)

    def request(self) -> Request:
        """
        Raises:
            InvalidOption: there is no such option, or a value makes no sense.
        """
        request = self.check_options()
        with relative_to(request.base):
            return msgspec.structs.replace(request, model=model_of(request.urls, self._options.get("model")))

    def check_options(self) -> Request:
        """What is asked for, before any log is opened: the model is not known yet.

        Raises:
            InvalidOption: there is no such option, or a value makes no sense.
        """
        name = self._options.get("view", "events")
        view = view_named(name)
        if unknown := sorted(self._options.keys() - _general - view.options - view.selects):
            raise InvalidOption(f"The view {name!r} has no option {unknown[0]!r}")
        self._count()
        return Request(
            urls=urls_of(self._url()),
            view=name,
            model="",
            columns=names_in(self._options["columns"], "columns") if "columns" in self._options else (),
            options={name: value for name, value in self._options.items() if name in view.options},
            selection=read_selection(self._options),
            shard_weight_min=1 if "shards" in self._options else events_min,
            base=self._options.get("base", os.getcwd()),
            marker=self._options.get("marker", ""),
        )

    def planned(self) -> str:
        """The shards, as this process sees the logs: a value for the option `planned`.

        Raises:
            RunstateError: a log cannot be planned.
        """
        request, at = self.request(), now()
        with relative_to(request.base):
            shards = view_named(request.view).plan(request, self._count())
        return msgspec.json.encode(Planned(at, shards)).decode()

    def _url(self) -> str:
        url = self._options.get("url") or self._options.get("path")
        if not url:
            raise InvalidOption("Say where the log is: .option('url', 'sqlite:PATH')")
        return url

    def _count(self) -> int:
        return self._number("shards", self._number("shards_max", shards_default, 100_000), 100_000)

    def _number(self, name: str, default: int, most: int) -> int:
        text = self._options.get(name) or str(default)
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise InvalidOption(f"{name} is a number from 1 to {most}, not {text[:40]!r}")
        return int(text)


def _is_of_catalog(name: str) -> bool:
    """Whether Spark's catalog added a property to those that `CREATE TABLE … OPTIONS` gave."""
    return name in _of_catalog or name.startswith("option.")


class StreamsReader(DataSourceReader):
    """Reads one view, a task for each shard. `planned` is the driver's own plan, where it has made one."""

    def __init__(self, request: Request, count: int, planned: str | None = None) -> None:
        self._request, self._count = request, count
        self._planned = None if planned is None else msgspec.json.decode(planned, type=Planned)

    @contextmanager
    def _working(self) -> Iterator[None]:
        if self._request.marker:
            check_shared(self._request.marker)
        with relative_to(self._request.base):
            yield

    def partitions(self) -> Sequence[InputPartition]:
        with told_to_driver(), self._working():
            if self._planned is not None:
                shards = self._planned.shards
                check_there(self._request.urls)
            else:
                shards = view_named(self._request.view).plan(self._request, self._count)
        return [InputPartition(shard) for shard in shards]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        shard: Shard | None = partition.value
        if shard is not None:  # Spark asks for one partition even where there is none.
            view, columns = view_named(self._request.view), list(self._request.columns)
            # A worker has more objects from its imports than a task ever holds: the collector need not go over them.
            gc.freeze()
            planned_at = "" if self._planned is None else self._planned.at
            with told_to_driver(), self._working(), counting(shard, planned_at) as census:
                for batch in view.rows(Task(self._request, shard)):
                    yield batch.select(columns) if columns and not view.narrows else batch
                if self._planned is None:
                    check_any(self._request.urls, census)


def urls_of(text: str) -> tuple[str, ...]:
    """One URL, or a JSON list of them.

    Raises:
        InvalidOption: it begins like a list, and is none of texts.
    """
    found = names_in(text, "url")
    if not found:
        raise InvalidOption("The list of URLs is empty")
    return found
