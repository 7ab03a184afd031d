"""Retention of a whole fleet: each task archives a shard of whole streams, with the very code that one process uses.

It has two steps. Tasks copy runs to packs, which the driver then confirms; only after that, tasks delete the runs from
the log. If the job is killed in between, the next one finds the packs, and goes on.

Every attempt at a task writes packs of its own. If one is killed, what it has committed counts, and the next attempt
goes on behind it; if two are at work at once, a run may be in two packs with the same events, which is one run to every
reader, and is deleted from the log once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from runstate.errors import Unsupported
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archive.packs import INFO
from runstate.logs.log import Capability
from runstate.logs.registry import open_log
from runstate.models.registry import find_model
from runstate.pipeline.archive.packs import SeenPack, confirm_packs, copies_in, kept_deletions, seen_packs
from runstate.pipeline.jobs import planned_view, seen_in
from runstate.pipeline.source.census import check_seen, count_streams, counted
from runstate.pipeline.source.events import plan_streams
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.origins import model_of
from runstate.pipeline.source.relative_urls import located
from runstate.pipeline.source.rows import pack
from runstate.pipeline.source.views import Request, Task, View
from runstate.pipeline.spark.failures import readable
from runstate.pipeline.spark.shared_storage import marked
from runstate.retention import Archiver, Archiving, RunOutcome, What, check_archivable, delete_copies, infos

archive_schema = pa.schema([(name, pa.string()) for name in ("counts", "refused", "packs", "seen")])
"""What a task hands back, as JSON: how often there was each outcome, the first refusals, the packs that the driver is
to confirm, and the streams that it has seen."""

_refused_max = 20
"""Refusals that are told one by one; the others are counted."""


class Archived(msgspec.Struct, frozen=True):
    """What became of a fleet."""

    counts: dict[str, int]
    """Runs by outcome, `recent` and `unfinished` among them, and the `events` of those that are in the archive now."""
    refused: list[RunOutcome]


def archive(
    spark: SparkSession,
    url: str,
    to: Path,
    archiving: Archiving,
    *,
    model: str | None = None,
    shards: int | None = None,
) -> Archived:
    """Archive the finished runs of a log to a directory that all executors can reach.

    Interrupted, simply run it again.

    Raises:
        PipelineFailed: a task failed; what was deleted from the log is in the archive.
        StorageNotShared: the driver does not see what a task has archived; nothing was deleted.
        LogBusy: another job archives to that directory.
        NotALog, LogFailed, Unsupported: the target is something else or cannot be written, or the log cannot delete.
    """
    name = model_of([url], model)
    directory = ArchiveDirectory(to.absolute())
    with open_log(url, create=False) as log:
        check_archivable(log, archiving.keep)
        if Capability.DURABLE not in log.capabilities:
            raise Unsupported(f"{url[:80]!r} lives in the memory of one process; Spark's executors cannot read it")
    directory.check(find_model(name).name)
    options = {"to": str(directory.root), "archiving": msgspec.json.encode(archiving).decode()}
    with ExitStack() as stack:
        if not archiving.dry_run:
            directory.prepare(find_model(name).name)
            stack.enter_context(directory.alone())
            options["marker"] = stack.enter_context(marked(directory.root / INFO))
        stack.enter_context(readable("archive"))
        told = _Told()
        packs = told.take(_collected(spark, url, name, shards, options))
        deletions = confirm_packs(directory, packs)
        if packs and not archiving.keep:
            options["deletions"] = stack.enter_context(kept_deletions(directory, deletions))
            told.take(_collected(spark, url, name, shards, options))
    # What became of runs comes before those that were passed over.
    order = ("events", *get_args(What))
    counts = dict(sorted(told.counts.items(), key=lambda item: item[0] not in order))
    return Archived(counts, told.refused[:_refused_max])


def _collected(spark: SparkSession, url: str, model: str, shards: int | None, options: dict[str, str]) -> list[Any]:
    """A row for each task, which has seen what the driver sees."""
    rows = planned_view(spark, url, "archive", model=model, shards=shards, **options).collect()
    check_seen("archive", [url], seen_in(rows))
    return rows


class _Told:
    """What tasks have handed back: a row for each, of counts, and of packs instead of runs."""

    def __init__(self) -> None:
        self.counts, self.refused = Counter[str](), list[RunOutcome]()

    def take(self, rows: list[Any]) -> list[SeenPack]:
        packs: list[SeenPack] = []
        for row in rows:
            self.counts.update(msgspec.json.decode(row["counts"], type=dict[str, int]))
            self.refused += msgspec.json.decode(row["refused"], type=list[RunOutcome])
            packs += msgspec.json.decode(row["packs"], type=list[SeenPack])
        return packs


def _rows(task: Task) -> Iterator[pa.RecordBatch]:
    (url,), options = task.request.urls, task.request.options
    if not options.keys() >= {"to", "archiving"}:
        raise InvalidOption("Archive with runstate.pipeline.archive.job.archive, or with runstate pipeline archive")
    archiving = msgspec.json.decode(options["archiving"], type=Archiving)
    directory = ArchiveDirectory(Path(options["to"]))
    counts, refused, packs = Counter[str](events=0), list[RunOutcome](), list[SeenPack]()

    def count(outcomes: Iterable[RunOutcome]) -> None:
        for outcome in outcomes:
            counts[outcome.outcome] += 1
            if outcome.outcome == "refused":
                refused.extend([outcome] if len(refused) < _refused_max else [])
            else:
                counts["events"] += outcome.events

    with open_log(located(url), create=False) as log:
        count_streams(task.shard, sum(1 for _ in log.heads(after=task.shard.after, until=task.shard.until)))
        if (path := options.get("deletions")) is not None:
            written, held = copies_in(directory, path, task.shard)
            count(delete_copies(log, directory, written, "archived", discard_files=archiving.discard_files))
            count(delete_copies(log, directory, held, "deleted", discard_files=archiving.discard_files))
        else:
            archiver = Archiver(log, task.model, directory, archiving)
            streams = infos(log, task.shard.after, task.shard.until)
            count(archiver.run(streams) if archiving.keep or archiving.dry_run else archiver.copy(streams))
            counts.update(archiver.passed_over)
            packs += seen_packs(directory, archiver.written, archiver.held)
    told = [msgspec.json.encode(value).decode() for value in (dict(counts), refused, packs, counted())]
    for batch in pack(archive_schema, [told]):
        yield batch.select(task.schema.names)


def _schema(request: Request) -> pa.Schema:
    return archive_schema


view = View(_schema, _rows, plan_streams, frozenset({"to", "archiving", "deletions"}))
