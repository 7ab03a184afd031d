"""The runs of a fleet: how many have which status, and those that a reader may want to look at, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from runstate.errors import ModelFailed
from runstate.models.model import AnyModel
from runstate.models.places import where
from runstate.models.statuses import StatusGroup, status_groups
from runstate.pipeline.report.page_report import Group, RunRow, StatusRow, runs_max
from runstate.pipeline.report.time_bins import time_text

_statuses_max = 1000
"""Statuses that are told apart. A fleet with more of them has ids or the like for statuses."""
_outcomes: dict[str | None, StatusGroup] = {
    "finished": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "running": "running",
    "queued": "waiting",
}
_others = "(others)"


class Runs(NamedTuple):
    """A row for each stream: `part, stream, tenant, status, outcome, events`, and its first and last times."""

    frame: DataFrame
    models: list[AnyModel]
    """By `part`."""


def join_runs(stored: DataFrame, states: DataFrame, spans: DataFrame, models: Sequence[AnyModel]) -> Runs:
    """Put together what events, snapshots and spans say about each stream.

    `stored` has `part, stream, tenant, emitted_ms, persisted_ms`, `states` has `part, stream, status`.
    """
    key = ["part", "stream"]
    events = stored.groupBy(*key).agg(
        F.max("tenant").alias("tenant"),
        F.count("*").alias("events"),
        *(
            bound(f"{clock}_ms").alias(f"{name}_{clock}_ms")
            for name, bound in (("first", F.min), ("last", F.max))
            for clock in ("emitted", "persisted")
        ),
    )
    outcomes = spans.where("kind = 'run'").groupBy(*key).agg(F.max_by("outcome", "attempt").alias("outcome"))
    # A stream whose first event is damaged has a snapshot that says so, and no events.
    return Runs(events.join(states, key, "full").join(outcomes, key, "left"), list(models))


def statuses(runs: Runs) -> list[StatusRow]:
    """How many runs have which status, the most frequent first.

    Raises:
        ModelFailed: a model does not say what its status means.
    """
    total = runs.frame.count()
    told = ["part", "status", "outcome"]
    rows = runs.frame.groupBy(*told).count().orderBy(F.desc("count"), *told).limit(_statuses_max).collect()
    counts: dict[tuple[Group, str, str], int] = {}
    for row in rows:
        name = runs.models[row["part"]].name
        key = (_group(runs, row), name, _status(row))
        counts[key] = counts.get(key, 0) + row["count"]
    found = [StatusRow(*key, number) for key, number in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    rest = total - sum(row.runs for row in found)
    return [*found, StatusRow("unknown", _others, _others, rest)] if rest else found


def newest(runs: Runs, found: Sequence[StatusRow]) -> list[RunRow]:
    """The runs to list, the newest first. Half of the places go to runs that failed or cannot be read, if so many did.

    `found` is what `statuses` says.
    """
    order = [F.desc_nulls_last("last_persisted_ms"), F.col("part"), F.col("stream")]
    bad = runs.frame.where(_is_bad(runs, found)).orderBy(*order).limit(runs_max // 2).collect()
    latest = runs.frame.orderBy(*order).limit(runs_max).collect()
    listed = {(row["part"], row["stream"]): row for row in bad}
    for row in latest:
        if len(listed) == runs_max:
            break
        listed.setdefault((row["part"], row["stream"]), row)
    rows = sorted(listed.values(), key=lambda row: (row["part"], row["stream"]))
    rows.sort(key=lambda row: row["last_persisted_ms"] or 0, reverse=True)
    return [_run(runs, row) for row in rows]


def _is_bad(runs: Runs, found: Sequence[StatusRow]) -> Column:
    condition = F.col("status").isNull() | ((F.col("status") == "") & (F.col("outcome") == "failed"))
    for part, model in enumerate(runs.models):
        failed = sorted({row.status for row in found if row.group == "failed" and row.model == model.name})
        if failed:
            condition = condition | ((F.col("part") == part) & F.col("status").isin(failed))
    return condition


def _run(runs: Runs, row: Row) -> RunRow:
    at = (row[f"{name}_{clock}_ms"] for clock in ("emitted", "persisted") for name in ("first", "last"))
    model = runs.models[row["part"]].name
    told = (None if ms is None else time_text(ms) for ms in at)
    return RunRow(row["stream"], model, row["tenant"] or "", _status(row), _group(runs, row), row["events"] or 0, *told)


def _status(row: Row) -> str:
    return "unreadable" if row["status"] is None else row["status"] or row["outcome"] or ""


def _group(runs: Runs, row: Row) -> Group:
    """What the status means. A model that knows no statuses has told by its activities how the run stands."""
    status = row["status"]
    if status is None:
        return "unreadable"
    if not status:
        return _outcomes.get(row["outcome"], "unknown")
    model = runs.models[row["part"]]
    try:
        group = model.status_group(status)
    except Exception as error:
        raise ModelFailed(
            f"`status_group` of the model {model.name!r} fails for {status[:80]!r}: {error!r}{where(error)}"
        ) from error
    if group not in status_groups:
        raise ModelFailed(
            f"`status_group` of the model {model.name!r} returns {group!r} for {status[:80]!r}; it must be one of "
            f"{', '.join(status_groups)}"
        )
    return cast("StatusGroup", group)
