"""What happened when, by each clock, in bins that fit how long it took. Spark counts; the driver chooses the bins."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from runstate.pipeline.report.page_report import BinRow, Clock, Throughput, clocks
from runstate.pipeline.report.time_bins import bin_offset_ms, bin_width_ms, ms_max, ms_min, time_text


def milliseconds(column: str) -> Column:
    """A time as milliseconds since 1970; null for what is no time, or of no year that can be written."""
    # `t` and `z` may be lower case in RFC 3339, but not in Spark.
    at = F.unix_millis(F.upper(F.col(column)).try_cast("timestamp_ltz"))
    return F.when(at.between(ms_min, ms_max), at)


def times(emitted: str, persisted: str) -> list[Column]:
    """The columns `emitted_ms` and `persisted_ms`. Neither stands in for the other: that would mix the clocks."""
    return [milliseconds(emitted).alias("emitted_ms"), milliseconds(persisted).alias("persisted_ms")]


def throughput(stored: DataFrame, spans: DataFrame) -> list[Throughput]:
    """Events and ends of runs by each clock. `stored` are events with their `times`."""
    ended = spans.where("kind = 'run' AND outcome IN ('finished', 'failed')")
    ends = ended.select(F.col("outcome").alias("what"), *times("end_emitted_at", "end_persisted_at"))
    happened = stored.select(F.lit("event").alias("what"), "emitted_ms", "persisted_ms").unionByName(ends)
    kinds = (F.min, F.max, F.count)
    bounds = [kind(f"{clock}_ms").alias(f"{kind.__name__}_{clock}") for clock in clocks for kind in kinds]
    by_kind = happened.groupBy((F.col("what") == "event").alias("is_event")).agg(F.count("*").alias("all"), *bounds)
    found = {row["is_event"]: row for row in by_kind.collect()}
    return [_by_clock(happened, clock, found) for clock in clocks]


def prevailing_clock(found: Sequence[Throughput]) -> Clock:
    """`emitted`, unless most events do not say when that was."""
    emitted = next(each for each in found if each.clock == "emitted")
    return "emitted" if sum(row.events for row in emitted.bins) >= emitted.events_without_time else "persisted"


def _by_clock(happened: DataFrame, clock: Clock, bounds: dict[bool, Row]) -> Throughput:
    events = bounds.get(True)
    without_time = 0 if events is None else events["all"] - events[f"count_{clock}"]
    firsts, lasts = ([row[f"{name}_{clock}"] for row in bounds.values()] for name in ("min", "max"))
    first, last = min(filter(_is_known, firsts), default=None), max(filter(_is_known, lasts), default=None)
    if first is None or last is None:
        return Throughput(clock, events_without_time=without_time)
    width, at = bin_width_ms(first, last), F.col(f"{clock}_ms")
    start = (at - F.pmod(at - bin_offset_ms(width), F.lit(width))).alias("start")
    counts: dict[int, dict[str, int]] = {}
    for row in happened.where(at.isNotNull()).groupBy(start, "what").count().collect():
        counts.setdefault(row["start"], {})[row["what"]] = row["count"]
    bins = [
        BinRow(time_text(ms), each.get("event", 0), each.get("finished", 0), each.get("failed", 0))
        for ms, each in sorted(counts.items())
    ]
    earliest, latest = (
        None if events is None or events[name] is None else time_text(events[name])
        for name in (f"min_{clock}", f"max_{clock}")
    )
    return Throughput(clock, width, bins, earliest, latest, without_time)


def _is_known(value: int | None) -> bool:
    return value is not None
