"""What the pipeline reads: any log by its URL, and event tables. Executors open them for themselves.

An origin gives the streams of a shard in the order of their ids, each with a reader of its own, so that several
origins can be gone through side by side like one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from heapq import merge
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol, Self

from runstate.errors import (
    InvalidStream,
    LogDamaged,
    LogNotFound,
    ModelMismatch,
    RunstateError,
    Unsupported,
    shown_url,
)
from runstate.logs.log import Capability, EventLog, Finding, Head, Record, StoredSnapshot, begins_after
from runstate.logs.pairing import default_model, holder, recorded_model, recorded_names
from runstate.logs.registry import open_log
from runstate.models.registry import find_model, resolve_model
from runstate.pipeline.source.census import count_streams
from runstate.pipeline.source.relative_urls import located
from runstate.pipeline.source.shards import Shard, cut_counted

if TYPE_CHECKING:
    from runstate.pipeline.tables.event_table import TableOrigin

_page = 1000
gathered_max = 10_000
"""Events of a stream that are held in memory at once, as lines."""


class Lines:
    """A stream's lines on their way into a fold. Once they are through, it knows where they have ended."""

    def __init__(self, lines: Iterable[bytes], after_seq: int = 0, last_seq: int | None = None) -> None:
        self._lines, self._last_seq = lines, last_seq
        self.seq, self.last = after_seq, b""
        """The last line's seq, and the line."""

    def __iter__(self) -> Iterator[bytes]:
        if isinstance(self._lines, list):
            if self._lines:
                self.seq, self.last = self._last_seq or self.seq + len(self._lines), self._lines[-1]
            return iter(self._lines)
        return self._counted(self._lines)

    def _counted(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        count, line = 0, b""
        for count, line in enumerate(lines, 1):  # noqa: B007 - both are wanted after the loop
            yield line
        if count:
            self.seq, self.last = self._last_seq or self.seq + count, line


class NumberedLines(Lines):
    """Lines that come with their seqs."""

    def __init__(self, numbered: Iterable[tuple[int, bytes]], after_seq: int = 0) -> None:
        super().__init__((), after_seq)
        self._numbered, self._after_seq = numbered, after_seq

    def __iter__(self) -> Iterator[bytes]:
        for seq, line in self._numbered:
            if seq > self._after_seq:
                self.seq, self.last = seq, line
                yield line


class StreamReader(Protocol):
    """One stream of an origin. It is read before the next one is asked for."""

    url: str
    head: Head

    def lines(self, after_seq: int = 0) -> Lines:
        """The models' lines after a seq.

        Raises:
            LogDamaged: the walk met damage. What was before it has been yielded.
        """
        ...

    def records(self, after_seq: int = 0) -> Iterator[Record]:
        """The same with their envelopes, and with every check that the origin knows."""
        ...

    def begins_after(self) -> int:
        """The seq behind which the origin has all of the stream: 0, but for a log that was compacted."""
        ...

    def snapshot(self, model: str) -> StoredSnapshot | None:
        """What the origin itself keeps of the stream's state."""
        ...

    def verify(self) -> Iterator[Finding]:
        """Everything about the stream that no append wrote."""
        ...


class Origin(Protocol):
    url: str
    """Without its secrets: it names the origin in everything that is stored."""
    model_name: str | None
    """The model whose events it is known to hold."""

    def weights(self) -> Iterator[tuple[str, int]]:
        """All streams in order, or the bounds of groups of them, with how much there is to read up to each."""
        ...

    def versions(self) -> Iterator[tuple[str, str]]:
        """What the origin consists of, with something that changes whenever that part does."""
        ...

    def streams(self, shard: Shard) -> Iterator[StreamReader]: ...

    def verify_rest(self) -> Iterator[Finding]:
        """Everything that is wrong beyond single streams."""
        ...

    def close(self) -> None: ...


class LogStream:
    """A stream of a log."""

    def __init__(self, url: str, log: EventLog, head: Head) -> None:
        self.url, self.head, self._log = url, head, log

    def lines(self, after_seq: int = 0) -> Lines:
        # Up to the head alone: what is appended meanwhile belongs to the next head.
        last_seq = self.head.last_seq
        found = self._log.lines(self.head.stream, after_seq=after_seq, until_seq=last_seq)
        # A list is folded faster than what comes line by line through several hands, but not every stream fits.
        return Lines(list(found) if self.head.weight <= gathered_max else found, after_seq, last_seq)

    def records(self, after_seq: int = 0) -> Iterator[Record]:
        last = self.head.last_seq
        while True:
            try:
                page = self._log.read(self.head.stream, after_seq=after_seq, limit=_page)
            except LogDamaged as damage:
                # A page is read as a whole or not at all; what is intact before the damage is a page of its own.
                intact = int(damage.details.get("seq", 0)) - 1 - after_seq
                yield from self._log.read(self.head.stream, after_seq=after_seq, limit=intact) if intact > 0 else ()
                raise
            yield from page if last is None else takewhile(lambda record: record.seq <= last, page)
            if len(page) < _page or (last is not None and page[-1].seq >= last):
                return
            after_seq = page[-1].seq

    def begins_after(self) -> int:
        return begins_after(self._log, self.head.stream)

    def snapshot(self, model: str) -> StoredSnapshot | None:
        return self._log.load_snapshot(self.head.stream, model)

    def verify(self) -> Iterator[Finding]:
        return self._log.verify(self.head.stream)


class LogOrigin:
    """A log, opened by its URL."""

    model_name: str | None = None

    def __init__(self, url: str) -> None:
        self.url = shown_url(url)
        self._log = open_log(located(url), create=False)
        if Capability.DURABLE not in self._log.capabilities:
            raise Unsupported(f"{url[:80]!r} lives in the memory of one process; Spark's executors cannot read it")

    def weights(self) -> Iterator[tuple[str, int]]:
        return ((head.stream, head.weight) for head in self._log.heads(versions=False))

    def versions(self) -> Iterator[tuple[str, str]]:
        return ((head.stream, head.version) for head in self._log.heads())

    def streams(self, shard: Shard) -> Iterator[StreamReader]:
        count = 0
        for head in self._log.heads(after=shard.after, until=shard.until) if shard.only is None else self._some(shard):
            count += 1
            yield LogStream(self.url, self._log, head)
        count_streams(shard, count)

    def verify_rest(self) -> Iterator[Finding]:
        return self._log.verify_rest()

    def _some(self, shard: Shard) -> Iterator[Head]:
        for stream in sorted(shard.only or ()):
            info = None
            with suppress(InvalidStream):  # Somebody asks for what no log can hold.
                info = self._log.stream(stream)
            if info is not None:
                # No last seq: of a damaged stream, that of the intact part would keep readers from the damage.
                yield Head(stream, info.events, f"{info.first_persisted_at}.{info.last_seq}")

    def close(self) -> None:
        self._log.close()


def open_origin(url: str) -> Origin:
    """
    Raises:
        InvalidUrl, LogNotFound, NotALog, LogTooNew, Unsupported: as `open_log` does; nothing is ever made.
    """
    if url.startswith("table:"):
        from runstate.pipeline.tables.event_table import TableOrigin  # It needs what is defined here.

        return TableOrigin(url)
    return LogOrigin(url)


def check_there(urls: Sequence[str]) -> None:
    """
    Raises:
        LogNotFound: one is not there any more, or not here. What else is wrong with it, its readers report.
    """
    for url in urls:
        try:
            open_origin(url).close()
        except LogNotFound:
            raise
        except RunstateError:
            continue


def model_of(urls: Sequence[str], given: str | None) -> str:
    """What to load the model with, here and on executors: `given` by the caller, or the name of an installed model.

    Without `given`, it is the model that the first URL records, or the one that goes with the first log.

    Raises:
        UnknownModel: there is no such model, or the recorded one is not installed.
        ModelMismatch: one of the URLs records another model, or a log holds streams of several.
        LogNotFound, NotALog: there is no such table.
    """
    if given is None:
        recorded = _recorded_model(urls[0])
        given = (
            default_model(located(urls[0])) if recorded is None else resolve_model(recorded, None, urls[0][:200]).name
        )
    find_model(given)
    for url in urls:
        try:
            recorded = _recorded_model(url)
        except ModelMismatch:
            raise
        except RunstateError:  # Its reader reports what cannot be read; to an audit, that is a finding.
            continue
        if recorded is not None:
            resolve_model(recorded, given, url[:200])
    return given


def _recorded_model(url: str) -> str | None:
    """The model that a URL records; None where it records none: an older version wrote it, it is empty, or it is a log
    that cannot be read or is yet to be created.

    Of a log, the first streams are looked at. One of another model that comes later is a finding.

    Raises:
        ModelMismatch: a log holds streams of several models.
        LogNotFound, NotALog: there is no such table or archive.
    """
    url = located(url)
    if url.startswith("table:"):
        return open_origin(url).model_name
    if url.startswith(("archive:", "files:")):
        return recorded_model(url)
    names: list[str] = []
    with suppress(RunstateError), open_log(url, create=False) as log:
        names = recorded_names(log)
    if len(names) > 1:
        raise ModelMismatch(
            f"{holder(url)} holds streams of the models {', '.join(map(repr, names))}. The pipeline reads logs of one "
            "model: copy the streams of each to a log of its own with 'runstate copy --stream'",
            recorded=names,
        )
    return names[0] if names else None


def counted_weights(origin: Origin) -> Iterator[tuple[str, int, int]]:
    """An origin's weights, each with how many streams of a log it stands for."""
    streams = 1 if isinstance(origin, LogOrigin) else 0
    return ((stream, weight, streams) for stream, weight in origin.weights())


class Origins:
    """Several origins as one. Close it, or use it in a `with`."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._stack = ExitStack()
        self._origins: list[Origin] = []
        with self._stack:
            for url in urls:
                origin = open_origin(url)
                self._stack.callback(origin.close)
                self._origins.append(origin)
            self._stack = self._stack.pop_all()

    def shards(self, count: int, weight_min: int = 1) -> list[Shard]:
        """How to divide everything that is there into about so many tasks."""
        return cut_counted(self.weights(), count, weight_min)

    def weights(self) -> Iterator[tuple[str, int, int]]:
        """Streams in order, or places between them, as `cut_counted` takes them."""
        return merge(*map(counted_weights, self._origins))

    def streams(self, shard: Shard) -> Iterator[StreamReader]:
        """By id; a stream that is in several origins comes once for each, in the order of the URLs."""
        return merge(*(origin.streams(shard) for origin in self._origins), key=lambda reader: reader.head.stream)

    def streams_in_logs(self, only: tuple[str, ...]) -> int:
        """How many of these streams the logs have, tables left out."""
        logs = [origin for origin in self._origins if isinstance(origin, LogOrigin)]
        return sum(1 for log in logs for _ in log.streams(Shard(only=only)))

    def table(self) -> TableOrigin | None:
        """The event table, if that is all there is: it can be read by the column."""
        from runstate.pipeline.tables.event_table import TableOrigin

        first = self._origins[0]
        return first if len(self._origins) == 1 and isinstance(first, TableOrigin) else None

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def finding_of(stream: str, error: LogDamaged) -> Finding:
    """What a damaged stream is reported as."""
    details = {name: value for name, value in error.details.items() if name not in ("stream", "seq")}
    return Finding(code=error.code, message=str(error), stream=stream, seq=error.details.get("seq"), details=details)
