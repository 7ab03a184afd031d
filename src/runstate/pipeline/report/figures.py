"""A fleet in figures: durations, failures and retries by step, throughput, waits, calls and their cost.

Spark does the counting, and only the few rows that a reader can look at reach the driver.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce

import msgspec
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from runstate.errors import shown_url
from runstate.models.registry import find_model
from runstate.pipeline.jobs import read_view
from runstate.pipeline.report.page_report import (
    CallRow,
    Clock,
    FindingRow,
    Quarantine,
    Report,
    RetriedRow,
    SlowRow,
    StepRow,
    TenantRow,
    Totals,
)
from runstate.pipeline.report.runs import join_runs, newest, statuses
from runstate.pipeline.report.times import prevailing_clock, throughput, times
from runstate.pipeline.spark.failures import readable

_accuracy = 10_000
"""Of percentiles: their rank is off by at most one part in so many."""
_worst = 20
_steps_max = 500
_event_columns = ["stream", "tenant", "emitted_at", "persisted_at", "finding"]
_state_columns = ["stream", "status"]
_span_columns = [
    *("stream", "tenant", "kind", "name", "attempt", "outcome", "end_emitted_at", "end_persisted_at"),
    *("wait_ms", "duration_ms", "cost", "tokens_in", "tokens_out"),
]
"""What crosses into Spark, of each view: above all no line and no state."""


class Part(msgspec.Struct, frozen=True):
    """Logs, or an event table, of one model."""

    urls: list[str]
    model: str


def report(
    spark: SparkSession,
    parts: Sequence[Part],
    *,
    findings: list[FindingRow] | None = None,
    quarantine: Quarantine | None = None,
    generated_from: Sequence[str] = (),
    clock: Clock | None = None,
) -> Report:
    """The figures of a fleet. A stream that several logs of a part hold is taken from the first that has events of it.

    `clock` is the one that the page shows until its reader chooses the other; by default it is `emitted`, unless most
    events do not say when they were.

    Raises:
        PipelineFailed: a log or a table cannot be read.
    """
    with readable("report"):
        read = [_read(spark, part, number) for number, part in enumerate(parts)]
        stored, spans = (_union([frames[n] for frames in read]).persist(StorageLevel.DISK_ONLY) for n in (0, 1))
        states = _union([_states(spark, part, number) for number, part in enumerate(parts)])
        runs = join_runs(stored, states, spans, [find_model(part.model) for part in parts])
        # Every figure below comes from these three; each would read the logs again otherwise.
        runs = runs._replace(frame=runs.frame.persist(StorageLevel.DISK_ONLY))
        try:
            by_clock, by_status = throughput(stored, spans), statuses(runs)
            return Report(
                generated_from=[shown_url(url) for url in generated_from or (url for p in parts for url in p.urls)],
                as_of=next((each.last_event_at or "" for each in by_clock if each.clock == "persisted"), ""),
                totals=Totals(sum(row.runs for row in by_status), stored.count(), by_status),
                clock=clock or prevailing_clock(by_clock),
                throughput=by_clock,
                runs=newest(runs, by_status),
                steps=_steps(spans),
                slowest=_slowest(spans),
                most_retried=_most_retried(spans),
                calls=_calls(spans),
                tenants=_tenants(stored, spans),
                findings=findings,
                quarantine=quarantine or Quarantine(),
            )
        finally:
            for frame in (runs.frame, stored, spans):
                frame.unpersist()


def _read(spark: SparkSession, part: Part, number: int) -> tuple[DataFrame, DataFrame]:
    """The events of a part, and its spans, each stream from one log."""

    def numbered(view: str, columns: list[str], **options: str) -> DataFrame:
        options["columns"] = json.dumps(columns)
        frames = [read_view(spark, url, view, model=part.model, shards=None, **options) for url in part.urls]
        return _union([frame.withColumn("log", F.lit(number)) for number, frame in enumerate(frames)])

    events = numbered("events", _event_columns, damage="report").where("finding IS NULL")
    events = events.select("stream", "tenant", "log", *times("emitted_at", "persisted_at"))
    spans = numbered("spans", _span_columns)
    if len(part.urls) > 1:
        first = events.groupBy("stream").agg(F.min("log").alias("log"))
        events, spans = (frame.join(first, ["stream", "log"]) for frame in (events, spans))
    return events.drop("log").withColumn("part", F.lit(number)), spans.drop("log").withColumn("part", F.lit(number))


def _states(spark: SparkSession, part: Part, number: int) -> DataFrame:
    frame = read_view(spark, part.urls, "snapshots", model=part.model, columns=json.dumps(_state_columns))
    return frame.withColumn("part", F.lit(number))


def _union(frames: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _share(condition: Column) -> Column:
    return F.avg(condition.cast("double"))


def _percentiles(column: str, *shares: float) -> list[Column]:
    names = [f"{column}_p{round(share * 100)}" for share in shares]
    return [F.percentile_approx(column, s, _accuracy).alias(n) for s, n in zip(shares, names, strict=True)]


def _steps(spans: DataFrame) -> list[StepRow]:
    ended = F.col("outcome").isin("finished", "failed")
    rows = (
        spans.where("kind = 'step'")
        .groupBy("name")
        .agg(
            F.count("*").alias("count"),
            F.sum((F.col("outcome") == "failed").cast("long")).alias("failed"),
            F.sum((F.col("attempt") > 1).cast("long")).alias("retried"),
            F.try_divide(F.sum((F.col("outcome") == "failed").cast("long")), F.sum(ended.cast("long"))).alias(
                "failure_rate"
            ),
            _share(F.col("attempt") > 1).alias("retry_rate"),
            *_percentiles("duration_ms", 0.5, 0.95, 0.99),
            *_percentiles("wait_ms", 0.5, 0.95),
        )
        .orderBy(F.desc("count"), "name")
        .limit(_steps_max)
        .collect()
    )
    return [
        StepRow(
            row["name"],
            row["count"],
            row["failed"],
            row["retried"],
            row["failure_rate"],
            row["retry_rate"],
            row["duration_ms_p50"],
            row["duration_ms_p95"],
            row["duration_ms_p99"],
            row["wait_ms_p50"],
            row["wait_ms_p95"],
        )
        for row in rows
    ]


def _slowest(spans: DataFrame) -> list[SlowRow]:
    steps = spans.where("kind = 'step' AND duration_ms IS NOT NULL")
    rows = steps.orderBy(F.desc("duration_ms"), "stream", "name", "attempt").limit(_worst).collect()
    return [SlowRow(row["stream"], row["name"], row["attempt"], row["duration_ms"]) for row in rows]


def _most_retried(spans: DataFrame) -> list[RetriedRow]:
    rows = (
        spans.where("kind = 'step'")
        .groupBy("stream", "name")
        .agg(F.max("attempt").alias("attempts"), F.sum((F.col("outcome") == "failed").cast("long")).alias("failed"))
        .where("attempts > 1")
        .orderBy(F.desc("attempts"), F.desc("failed"), "stream", "name")
        .limit(_worst)
        .collect()
    )
    return [RetriedRow(row["stream"], row["name"], row["attempts"], row["failed"]) for row in rows]


def _calls(spans: DataFrame) -> list[CallRow]:
    rows = (
        spans.where("kind = 'call'")
        .groupBy("name")
        .agg(
            F.count("*").alias("count"),
            F.sum((F.col("outcome") == "failed").cast("long")).alias("failed"),
            *(F.sum(name).alias(name) for name in ("tokens_in", "tokens_out", "cost")),
            *_percentiles("duration_ms", 0.5, 0.95),
        )
        .orderBy(F.desc_nulls_last("cost"), F.desc("count"), "name")
        .limit(_steps_max)
        .collect()
    )
    return [CallRow(*row) for row in rows]


def _tenants(stored: DataFrame, spans: DataFrame) -> list[TenantRow]:
    events = stored.groupBy("tenant").agg(F.count("*").alias("events"), F.count_distinct("stream").alias("runs"))
    ends = spans.groupBy("tenant").agg(
        F.sum(((F.col("kind") == "run") & (F.col("outcome") == "failed")).cast("long")).alias("failed"),
        F.sum("cost").alias("cost"),
    )
    rows = events.join(ends, "tenant", "left").orderBy(F.desc("events"), "tenant").limit(_steps_max).collect()
    return [TenantRow(row["tenant"], row["runs"], row["failed"] or 0, row["events"], row["cost"]) for row in rows]
