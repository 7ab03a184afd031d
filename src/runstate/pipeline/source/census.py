"""Whether tasks have seen all streams that were planned for them.

A directory that is not mounted on one machine looks like an empty log there, and a job that reads it would say that
all went well. So shards are planned with the number of streams in them, tasks count those they meet, and the driver
compares. Fewer is right where streams were deleted meanwhile; the driver looks at the logs again to tell.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from runstate.errors import RunstateError, shown_url
from runstate.logs.registry import open_log
from runstate.pipeline.source.relative_urls import located
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.spark.failures import PipelineFailed

_page = 1000


class SourceNotShared(RunstateError):
    """A machine of the cluster does not see the streams of a log that the driver sees."""

    code = "pipeline.source_not_shared"


class Planned(msgspec.Struct, frozen=True):
    """What the driver has planned, and when."""

    at: str
    shards: list[Shard]


class Seen(msgspec.Struct, frozen=True):
    """How many streams a task has met in its shard."""

    host: str
    after: str
    until: str | None
    planned: int
    seen: int
    planned_at: str

    @property
    def is_short(self) -> bool:
        return self.seen < self.planned


class _Census:
    def __init__(self, shard: Shard, planned_at: str) -> None:
        self.shard, self.planned_at, self.seen, self.is_excused = shard, planned_at, 0, False


_open: list[_Census] = []
"""Of the task at hand. A worker of Spark has one at a time."""


# --- in a task -----------------------------------------------------------------------------------------------------


@contextmanager
def counting(shard: Shard, planned_at: str) -> Iterator[_Census]:
    """Count the streams of a shard that are met in the block."""
    census = _Census(shard, planned_at)
    _open.append(census)
    try:
        yield census
    finally:
        _open.pop()


def count_streams(shard: Shard, streams: int) -> None:
    """Tell that a log was walked through to the end of a shard. Walks of other shards do not count."""
    if _open and _open[-1].shard == shard:
        _open[-1].seen += streams


def excuse() -> None:
    """Tell that a walk was cut short, and that this is reported in another way."""
    if _open:
        _open[-1].is_excused = True


def counted() -> Seen | None:
    """What the task at hand has counted; None where nothing is to be compared."""
    if not _open or _open[-1].is_excused:
        return None
    census = _open[-1]
    shard, host = census.shard, socket.gethostname()
    return Seen(host, shard.after, shard.until, shard.streams, census.seen, census.planned_at)


def check_any(urls: Sequence[str], census: _Census) -> None:
    """For a task without a driver that compares: none of the streams that were planned, and none of any others.

    Raises:
        SourceNotShared: the logs are empty here.
    """
    if census.seen or not census.shard.streams or census.is_excused or not all(_is_empty(url) for url in urls):
        return
    host = socket.gethostname()
    raise SourceNotShared(
        f"{host} finds no stream in {_names(urls)}, where there were {census.shard.streams} in this task's range alone "
        f"when the query was planned. {_advice}. If they were deleted meanwhile, load() again",
        host=host,
    )


def _is_empty(url: str) -> bool:
    if url.startswith("table:"):
        return True  # Its streams are not counted.
    with open_log(located(url), create=False) as log:
        return next(iter(log.heads(versions=False)), None) is None


# --- on the driver -------------------------------------------------------------------------------------------------


def check_seen(stage: str, urls: Sequence[str], told: Iterable[Seen | None]) -> None:
    """
    Raises:
        PipelineFailed: a task has not seen streams that the driver still sees; names the stage and the machine.
    """
    for seen in told:
        if seen is not None and seen.is_short and (there := _began_before(urls, seen)) > seen.seen:
            cause = SourceNotShared(
                f"{seen.host} sees {seen.seen} streams of {_names(urls)} {_range(seen)}, the driver sees {there}. "
                f"{_advice}. Nothing was written or deleted",
                host=seen.host,
                seen=seen.seen,
                planned=seen.planned,
            )
            raise PipelineFailed(f"The stage {stage} failed: {cause}", stage=stage, cause=cause.as_data())


def _began_before(urls: Sequence[str], seen: Seen) -> int:
    """How many streams of the shard the driver sees now that were there when it planned.

    Those that began later are left out: that a task has not met them says nothing.
    """
    found = 0
    for url in urls:
        if url.startswith("table:"):
            continue
        with open_log(located(url), create=False) as log:
            after = seen.after
            while page := log.streams(after=after, limit=_page):
                inside = [info for info in page if seen.until is None or info.stream <= seen.until]
                found += sum(info.first_persisted_at < seen.planned_at for info in inside)
                after = page[-1].stream
                if len(inside) < len(page):
                    break
    return found


_advice = "Give a URL that leads to the same files on every machine, or a database"


def _names(urls: Sequence[str]) -> str:
    shown = [shown_url(url) for url in urls]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def _range(seen: Seen) -> str:
    if not seen.after and seen.until is None:
        return "in all"
    return f"after {seen.after[:80]!r}" + ("" if seen.until is None else f" up to {seen.until[:80]!r}")
