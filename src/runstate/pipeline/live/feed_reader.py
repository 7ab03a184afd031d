"""The feed of logs as a stream of Spark: `spark.readStream.format("runstate").option("url", …)`.

Where a query is stands in its checkpoint alone: for each log the feed's position, and how many events were read up to
it. Positions cannot be compared, but no event can ever commit behind one that was handed out; so a task that
reads as many events as were counted has read just the events of its batch. Where a stream was deleted in between, it
looks for the first event beyond the batch instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from runstate.errors import InvalidPosition, LogBusy, Unsupported, shown_url
from runstate.following import check_feed
from runstate.logs.log import Capability, EventLog, Position, Record
from runstate.logs.registry import open_log
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.relative_urls import located, relative_to
from runstate.pipeline.source.rows import pack_records, rows_max
from runstate.pipeline.spark.failures import told_to_driver

events_per_batch_default = 10_000
"""A backlog is worked off in batches of so many events, all logs together."""
part_events_min = 2000
"""A log's share of a batch is divided among tasks if each gets at least so many events."""
_page = 2000
_looks_max = 100


class Place(msgspec.Struct, frozen=True):
    """How far one log has been read: what a checkpoint says of it."""

    position: Position | None = None
    events: int = 0


Offset = dict[str, dict[str, Any]]
"""A `Place` for each log, by its URL without secrets."""


class Part(msgspec.Struct, frozen=True):
    """One task: those events of a log between two places whose streams fall to it."""

    url: str
    after: Place
    until: Place
    number: int = 0
    parts: int = 1

    @property
    def events(self) -> int:
        """Of all parts together."""
        return self.until.events - self.after.events

    def has(self, record: Record) -> bool:
        return self.parts == 1 or crc32(record.stream.encode()) % self.parts == self.number


class Found(NamedTuple):
    """What a task has read."""

    records: list[Record]
    vanished: int
    """Events of all parts that were counted, and are gone: their streams were deleted since."""


def open_feed(url: str) -> EventLog:
    """Open a log that can be followed from several processes.

    Raises:
        Unsupported: it has no feed, or lives in the memory of one process.
        InvalidUrl, LogNotFound, NotALog, LogTooNew: as `open_log` does; nothing is ever made.
    """
    if url.startswith("table:"):
        raise Unsupported("A table has no feed: read it with spark.read")
    log = open_log(located(url), create=False)
    if Capability.FEED in log.capabilities and Capability.DURABLE in log.capabilities:
        return log
    log.close()
    check_feed(url, log)
    raise Unsupported(f"{url[:80]!r} lives in the memory of one process; Spark's executors cannot read it")


def read_part(log: EventLog, part: Part) -> Found:
    """The events of a part, in the feed's order: exactly those, whenever and however often it is read.

    Raises:
        LogBusy: streams are deleted faster than they can be read around.
    """
    stop: Record | None = None
    for _ in range(_looks_max):
        found, seen, is_exact = _gathered(log, part, stop)
        beyond = [] if is_exact else log.feed(after=part.until.position, limit=1).records
        if not beyond:
            # Should something have been read that is beyond the part, it was deleted since, and will not come again.
            return Found(found, max(0, part.events - seen))
        (stop,) = beyond
    raise LogBusy(f"While a part of {shown_url(part.url)} is read, its streams are deleted again and again")


def _gathered(log: EventLog, part: Part, stop: Record | None) -> tuple[list[Record], int, bool]:
    """What falls to the part, how many events all parts have together, and whether that is sure to be all of it."""
    found: list[Record] = []
    seen, position = 0, part.after.position
    while seen < part.events:
        page = log.feed(after=position, limit=min(_page, part.events - seen))
        if not page.records:
            break
        for record in page.records:
            if record == stop:
                return found, seen, True
            seen += 1
            if part.has(record):
                found.append(record)
        position = page.next
    return found, seen, position == part.until.position


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the feeds of one or several logs. What makes rows of a part can be replaced by a subclass."""

    def __init__(
        self, urls: Sequence[str], schema: pa.Schema, *, events_per_batch: int, tasks: int, base: str = ""
    ) -> None:
        """Relative URLs begin at `base`, by default the working directory. A checkpoint names them as they are.

        Raises:
            InvalidOption: two URLs differ in their secrets alone, so that a checkpoint could not tell them apart;
                or a batch could not hold an event of each log.
        """
        self._urls = {shown_url(url): url for url in urls}
        if len(self._urls) != len(urls):
            raise InvalidOption("Two of the URLs look alike without their secrets; name each log once")
        if events_per_batch < len(urls):
            raise InvalidOption(f"events_per_batch is at least one for each of the {len(urls)} logs")
        self.schema, self._events_per_batch, self._tasks = schema, events_per_batch, tasks
        self._base = base or os.getcwd()
        self._logs: dict[str, EventLog] = {}
        self._opened = ExitStack()
        self._ending: set[str] | None = None
        """With `availableNow`: the logs whose end was seen. What comes later is for the next query."""

    # --- on the driver -------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        for url in self._urls:
            self._log(url)
        return _offset(dict.fromkeys(self._urls, Place()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._events_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._ending = set()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """As far as the limit goes, of which every log that has so much gets the same share.

        Raises:
            InvalidPosition: the checkpoint is that of other logs.
        """
        with told_to_driver():
            places = self._places(start)
            left = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            open_ended = [url for url in places if self._ending is None or url not in self._ending]
            while open_ended and (left is None or left > 0):
                share = None if left is None else max(1, left // len(open_ended))
                having_more = []
                for url in open_ended if left is None else open_ended[:left]:
                    before = places[url].events
                    places[url], is_end = self._ahead(url, places[url], share)
                    left = None if left is None else left - (places[url].events - before)
                    if not is_end:
                        having_more.append(url)
                    elif self._ending is not None:
                        self._ending.add(url)
                open_ended = having_more
            return _offset(places)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with told_to_driver():
            before, until = self._places(start), self._places(end)
            planned = []
            for shown, url in self._urls.items():
                events = until[shown].events - before[shown].events
                parts = max(1, min(self._tasks, events // part_events_min)) if events else 0
                planned += [Part(url, before[shown], until[shown], number, parts) for number in range(parts)]
            return [InputPartition(part) for part in planned]

    def stop(self) -> None:
        self._opened.close()
        if isinstance(sys.exc_info()[1], EOFError):
            # Spark has hung up, which is how a query ends. Its process would print that as an error.
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives

    def _places(self, offset: Offset) -> dict[str, Place]:
        # Earlier versions wrote … in the place of a password.
        offset = {shown_url(url): place for url, place in offset.items()}
        if offset.keys() != self._urls.keys():
            raise InvalidPosition(
                f"The checkpoint is that of {', '.join(sorted(offset))}, and not of {', '.join(sorted(self._urls))}; "
                "give this query a checkpoint of its own"
            )
        return msgspec.convert(offset, dict[str, Place])

    def _ahead(self, url: str, place: Place, events_max: int | None) -> tuple[Place, bool]:
        """The place so many events further on, or at the feed's end; and whether that is the end."""
        log, left = self._log(url), events_max
        while left is None or left > 0:
            limit = _page if left is None else min(_page, left)
            try:
                page = log.feed(after=place.position, limit=limit)
            except InvalidPosition as error:
                raise InvalidPosition(
                    f"The checkpoint says that {url} was read up to {place.position!r}, but {error}; is it another log "
                    "now, or an older backup? Begin again with a checkpoint of its own",
                    **error.details,
                ) from error
            place = Place(page.next, place.events + len(page.records))
            left = None if left is None else left - len(page.records)
            if len(page.records) < limit:
                return place, True
        return place, False

    def _log(self, url: str) -> EventLog:
        if url not in self._logs:
            with relative_to(self._base):
                self._logs[url] = self._opened.enter_context(open_feed(self._urls[url]))
        return self._logs[url]

    # --- on an executor ------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with told_to_driver(), relative_to(self._base):
            yield from self.rows(partition.value)

    def rows(self, part: Part) -> Iterator[pa.RecordBatch]:
        """What becomes of a part: here, its events as they are."""
        with open_feed(part.url) as log:
            records = read_part(log, part).records
        for start in range(0, len(records), rows_max):
            yield pack_records(records[start : start + rows_max], self.schema)


def _offset(places: dict[str, Place]) -> Offset:
    return {url: msgspec.to_builtins(place) for url, place in places.items()}
