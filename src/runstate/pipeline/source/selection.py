"""What a reader asks for of a log or a table, by the options of the data source.

These are options and not filters that Spark hands down: Spark keeps those with the frame, and a second query of the
same frame would get the first one's rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from runstate.logs.log import Record
from runstate.pipeline.source.options import InvalidOption, names_in
from runstate.pipeline.source.shards import Shard, place_before

stream_options = frozenset({"streams", "stream_from", "stream_to"})
event_options = stream_options | {"types", "tenant", "after_time"}


class Selection(msgspec.Struct, frozen=True):
    """All of it must hold; what is None is not asked for."""

    streams: tuple[str, ...] | None = None
    stream_from: str | None = None
    stream_to: str | None = None
    types: tuple[str, ...] | None = None
    tenant: str | None = None
    after_time: datetime | None = None

    def within(self, shards: list[Shard]) -> list[Shard]:
        """The parts of shards whose streams are asked for."""
        after = place_before(self.stream_from) if self.stream_from else ""
        found = [shard.between(after, self.stream_to) for shard in shards]
        return [shard for shard in found if shard is not None]

    @property
    def takes_all_events(self) -> bool:
        """Whether every event of a stream is asked for, if the stream is."""
        return self.types is None and self.tenant is None and self.after_time is None

    def takes(self, record: Record) -> bool:
        return (
            (self.types is None or record.type in self.types)
            and (self.tenant is None or record.tenant == self.tenant)
            and (self.after_time is None or datetime.fromisoformat(record.persisted_at) > self.after_time)
        )


def read_selection(options: Mapping[str, str]) -> Selection:
    """
    Raises:
        InvalidOption: a value makes no sense.
    """
    named: dict[str, tuple[str, ...] | None] = {
        name: names_in(options[name], name) if name in options else None for name in ("streams", "types")
    }
    return Selection(
        streams=None if named["streams"] is None else tuple(sorted(set(named["streams"]))),
        stream_from=options.get("stream_from"),
        stream_to=options.get("stream_to"),
        types=named["types"],
        tenant=options.get("tenant"),
        after_time=_time(options["after_time"]) if "after_time" in options else None,
    )


def _time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOption(f"after_time is a time like 2026-11-15T09:30:00Z, not {text[:40]!r}") from error
    if moment.tzinfo is None:
        raise InvalidOption(f"after_time: {text[:40]!r} has no zone; write it like 2026-11-15T09:30:00Z")
    return moment
