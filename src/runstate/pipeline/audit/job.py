"""The audit of a fleet: the view `findings`, and the jobs that a driver makes of it.

Every stream is verified by its own log, walked through once, folded, and held against the snapshots that are kept of
it. What cannot be read is told and gone around. The last row of every task, `audit.covered`, says how many streams and
events it has seen: an audit that has nothing else to say has looked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from heapq import merge
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that users of Spark know

from runstate.errors import InvalidUrl, LogDamaged, LogNotFound, LogTooNew, Unsupported
from runstate.logs.log import Finding, now
from runstate.models.model import AnyModel
from runstate.models.registry import resolve_model
from runstate.pipeline.audit.checks import Audited, Bounds, Kept, audit_stream, conflicts, parse_time
from runstate.pipeline.audit.coverage import check_all_seen, remember, unseen, unseen_texts
from runstate.pipeline.audit.stream_findings import Told
from runstate.pipeline.audit.walk import KeptSnapshots, Source, side_by_side
from runstate.pipeline.jobs import planned_view
from runstate.pipeline.replay.snapshot_table import open_snapshot_table
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.origins import StreamReader, counted_weights, open_origin
from runstate.pipeline.source.rows import pack
from runstate.pipeline.source.shards import Shard, cut_counted
from runstate.pipeline.source.views import Request, Task, View
from runstate.pipeline.spark.failures import readable

finding_schema = pa.schema(
    [
        ("url", pa.string()),
        ("stream", pa.string()),
        ("seq", pa.int64()),
        ("severity", pa.string()),
        ("code", pa.string()),
        ("message", pa.string()),
        ("details", pa.string()),
    ]
)
"""`severity` is `damage`, `warning`, or `info` for the rows of `audit.covered`; `details` is JSON."""

COVERED = "audit.covered"
_asked_wrongly = (InvalidUrl, LogNotFound, LogTooNew, Unsupported)
"""What the asker must mend. Everything else that is wrong with a log is a finding about it."""
_codes_max = 1000

Row = tuple[str | None, str | None, int | None, str, str, str, str]


# --- the tasks -----------------------------------------------------------------------------------------------------


def _plan(request: Request, count: int) -> list[Shard]:
    """Shards over all that can be listed; at least one, which tells of what cannot."""
    if directory := request.options.get("snapshots"):
        resolve_model(open_snapshot_table(Path(directory)).info.model, request.model, directory)
    weights = merge(*(_weights(url) for url in dict.fromkeys(request.urls)))
    return cut_counted(weights, count, request.shard_weight_min) or [Shard()]


def _weights(url: str) -> Iterator[tuple[str, int, int]]:
    try:
        origin = open_origin(url)
        try:
            yield from counted_weights(origin)
        finally:
            origin.close()
    except _asked_wrongly:
        raise
    except Exception:  # noqa: BLE001 - the tasks meet it too, and tell of it beside everything else
        return


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    for batch in pack(finding_schema, _audited(task)):
        yield batch.select(task.schema.names)


def _audited(task: Task) -> Iterator[Row]:
    """All that is to be told about a shard. Never raises for anything that is wrong with the logs."""
    model, bounds = task.model, _bounds(task.request.options)
    streams = events = empty = 0
    sources = [Source(url, task.shard) for url in dict.fromkeys(task.request.urls)]
    kept = KeptSnapshots(task.request.options.get("snapshots"), task.shard)
    for stream, group in side_by_side(sources):
        yield from (_row(None, finding) for finding in kept.passed_over(stream))
        expected = kept.of(stream)
        copies: list[tuple[str, Audited]] = []
        for source, reader in group:
            told = Told(stream)
            audited = _audit_one(source, reader, model, bounds, told, expected)
            if audited is None:
                continue
            yield from (_row(source.url, finding) for finding in told.findings())
            streams, empty = streams + bool(audited.events), empty + (not audited.events)
            events += audited.events
            copies.append((source.url, audited))
            expected = None  # A replay over several logs takes a stream from the first that has it.
        yield from _copies(stream, copies)
    yield from (_row(None, finding) for finding in kept.passed_over(None))
    for source in sources:
        yield from (_row(source.url, finding) for finding in (*source.findings, *source.column_findings(model)))
        if not task.shard.after:  # One task for all: it is no matter of a range of streams.
            yield from (_row(source.url, finding) for finding in source.rest())
    counts = {"streams": streams, "events": events, "empty": empty}
    details = {**counts, "after": task.shard.after, "until": task.shard.until, **unseen(task.request.urls)}
    told_counts = f"{streams} streams, {events} events"
    yield None, None, None, "info", COVERED, told_counts, msgspec.json.encode(details).decode()


_snapshot_codes = ("snapshot.digest_mismatch", "snapshot.beyond_end")
"""What a log finds in a snapshot that is then not compared."""


def _audit_one(
    source: Source, reader: StreamReader, model: AnyModel, bounds: Bounds, told: Told, expected: Kept | None
) -> Audited | None:
    """One copy of a stream; None where it will come again, without the file that was in the way."""
    stream, kept = reader.head.stream, [] if expected is None else [expected]
    try:
        for finding in reader.verify():
            told.pass_on(finding)
        stored = reader.snapshot(model.name)
    except Exception as error:  # noqa: BLE001 - what stops the log's own check need not stop ours
        told.failed(error)
        stored = None
    if stored is not None and not any(told.log_told(code, stored.seq) for code in _snapshot_codes):
        kept.append(Kept("the log", stored.seq, stored.version, stored.digest, stored.body))
        if reader.head.last_seq is not None and stored.seq > reader.head.last_seq:
            # Somebody has appended since the streams were listed, or the snapshot is ahead: a newer head tells.
            reader = source.fresh(stream) or reader
    after_seq = 0
    with suppress(LogDamaged):  # The walk below meets it again, and tells it.
        after_seq = reader.begins_after()
    if after_seq:
        message = f"The log was compacted: what was before seq {after_seq + 1} is in its snapshot, and was not audited"
        told.warn("audit.compacted", message, after_seq + 1)
    whole = source.has_all_of(stream) and not after_seq
    audited = audit_stream(stream, reader.records(after_seq), model, bounds, told, kept=kept, whole=whole)
    return None if audited.error is not None and source.goes_around(audited.error) else audited


def _copies(stream: str, copies: Sequence[tuple[str, Audited]]) -> Iterator[Row]:
    """What is to be said about a stream that several origins have."""
    for (first, one), (second, other) in combinations(copies, 2):
        severity: Literal["damage", "warning"] = "warning"
        seqs, urls = conflicts(one, other), [first, second]
        if seqs:
            severity, message = "damage", f"{first} and {second} hold different events of this stream"
        elif any(url.startswith("table:") for url in urls):
            continue  # A table is a copy, and is meant to be.
        else:
            message = f"{first} and {second} both hold this stream"
        details = {"urls": urls, "conflicts": len(seqs)}
        yield _row(
            second,
            Finding(
                code="audit.stream_in_two_logs",
                message=message,
                severity=severity,
                stream=stream,
                seq=seqs[0] if seqs else None,
                details=details,
            ),
        )


def _row(url: str | None, finding: Finding) -> Row:
    try:
        details = msgspec.json.encode(finding.details).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        details = msgspec.json.encode({"repr": _text(repr(finding.details)[:1000])}).decode()
    stream = None if finding.stream is None else _text(finding.stream)
    return url, stream, finding.seq, finding.severity, finding.code, _text(finding.message), details


def _text(text: str) -> str:
    """Text that Arrow takes: what is quoted from a damaged log may hold anything."""
    return text.encode("utf-8", "backslashreplace").decode()


def _bounds(options: dict[str, str]) -> Bounds:
    """
    Raises:
        InvalidOption: a value makes no sense.
    """
    as_of = None
    if (text := options.get("as_of")) is not None and (as_of := parse_time(text)) is None:
        raise InvalidOption(f"as_of is a time with its zone, such as 2026-11-15T09:30:00.000Z, not {text[:40]!r}")
    numbers = {}
    for name in ("silent_s", "skew_s"):
        try:
            numbers[name] = float(options.get(name, getattr(Bounds(), name)))
        except ValueError:
            numbers[name] = math.nan
        if not 0 <= numbers[name] < 1e10:
            raise InvalidOption(f"{name} is a number of seconds, not {options[name][:40]!r}")
    return Bounds(as_of, **numbers)


def _schema(request: Request) -> pa.Schema:
    _bounds(request.options)
    return finding_schema


view = View(_schema, _rows, _plan, frozenset({"as_of", "silent_s", "skew_s", "snapshots"}))
"""Without the option `as_of`, no stream is called silent: every task would have another now."""


# --- the driver ----------------------------------------------------------------------------------------------------


def audit(
    spark: SparkSession,
    urls: str | Sequence[str],
    *,
    model: str | None = None,
    as_of: datetime | str | None = None,
    silent_s: float = Bounds().silent_s,
    skew_s: float = Bounds().skew_s,
    snapshots: Path | None = None,
    shards: int | None = None,
) -> DataFrame:
    """Everything that is wrong with the streams of some logs and tables, and rows of `audit.covered`.

    Nothing is read before rows are asked for, and everything is read again each time: `write` them, then look. Streams
    that are not over and have been silent for `silent_s` before `as_of` (now) are told, as are producers whose clocks
    are ahead by more than `skew_s`. With `snapshots`, a table that `replay` has written is held against the events.

    Raises:
        InvalidOption: a bound makes no sense.
        PipelineFailed: there is no such model, log or table, or it is not to be read by this Runstate. What can be seen
            only in the log is raised when rows are asked for.
    """
    moment = as_of.isoformat() if isinstance(as_of, datetime) else as_of or now()
    options = {"as_of": moment, "silent_s": str(silent_s), "skew_s": str(skew_s)}
    if snapshots is not None:
        options["snapshots"] = str(snapshots.absolute())
    _bounds(options)
    named = [urls] if isinstance(urls, str) else list(dict.fromkeys(urls))
    remember(named)
    with readable("audit"):
        return planned_view(spark, named, "findings", model=model, shards=shards, **options)


class CodeCount(msgspec.Struct, frozen=True):
    """How often something was found, and one of the places."""

    severity: str
    code: str
    count: int
    example: dict[str, Any]


class AuditResult(msgspec.Struct, frozen=True):
    """An audit in short."""

    ok: bool
    """No damage was found, and somebody has looked."""
    damage: int
    warnings: int
    streams: int
    """That were looked at; one that several logs have counts once for each."""
    events: int
    tasks: int
    codes: list[CodeCount]


def summary(frame: DataFrame) -> AuditResult:
    """What the findings come to. They are counted where they are: there may be millions.

    Raises:
        PipelineFailed: they cannot be read, or a task has not seen streams that the driver sees.
    """

    def number(name: str) -> Column:
        # Tried, since the details of a stranger's finding may have a member of that name, and anything in it.
        return F.get_json_object("details", f"$.{name}").try_cast("long")

    more = number("andMore")
    # One that stands for many is a poor example.
    example = F.struct(more.isNotNull().alias("many"), "url", "stream", "seq", "message", "details")
    sums = [F.sum(number(name)).alias(name) for name in ("streams", "events")]
    counts = frame.groupBy("severity", "code").agg(
        F.sum(F.coalesce(more, F.lit(1))).alias("count"), F.min(example).alias("example"), *sums, unseen_texts()
    )
    with readable("audit"):
        # Damage comes first by the alphabet, so that no limit can hide it.
        rows = counts.orderBy("severity", "code").limit(_codes_max).collect()
    covered = next((row for row in rows if row["code"] == COVERED), None)
    if covered is not None:
        check_all_seen(covered["unseen"])
    found = [
        CodeCount(row["severity"], row["code"], row["count"], _example(row["example"]))
        for row in rows
        if row is not covered
    ]
    damage = sum(each.count for each in found if each.severity == "damage")
    return AuditResult(
        ok=covered is not None and not damage,
        damage=damage,
        warnings=sum(each.count for each in found if each.severity == "warning"),
        streams=0 if covered is None else covered["streams"],
        events=0 if covered is None else covered["events"],
        tasks=0 if covered is None else covered["count"],
        codes=found,
    )


def _example(row: Any) -> dict[str, Any]:
    members: dict[str, Any] = row.asDict()
    del members["many"]
    return {**members, "details": msgspec.json.decode(members["details"])}
