"""Every installed log that Spark can read, filled with the fleet of a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.fleets import histories, models
from tests.log_urls import durable_schemes, take_no_events, url_at

from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archive.writing import PackWriter
from runstate.logs.registry import open_log
from runstate.pipeline.replay.snapshot_table import open_snapshot_table, snapshot_rows
from runstate.pipeline.source.origins import open_origin
from runstate.pipeline.source.shards import Shard
from runstate.store import open as open_store


def pairs() -> list[tuple[str, str]]:
    """Every log that takes events, with every model."""
    return [(scheme, model) for scheme in durable_schemes() for model in models()]


def spanning_pairs() -> list[tuple[str, str]]:
    """Every log and every model at least once, for what does not depend on how the two go together."""
    by_scheme = [(scheme, models()[number % len(models())]) for number, scheme in enumerate(durable_schemes())]
    return sorted({*by_scheme, *(("sqlite", model) for model in models())})


def spanning_readable_pairs() -> list[tuple[str, str]]:
    """The same, with those that hold what others have held."""
    return [*spanning_pairs(), *((scheme, models()[0]) for scheme in sorted(take_no_events))]


def readable_pairs() -> list[tuple[str, str]]:
    """And those that hold what others have held."""
    return [*pairs(), *((scheme, model) for scheme in sorted(take_no_events) for model in models())]


def filled(scheme: str, model: str, directory: Path, *, seed: int = 0, runs: int = 12) -> str:
    """The URL of a log that holds the model's fleet. A second fleet, of another seed, joins the first."""
    if scheme in take_no_events:
        return _archived(filled("sqlite", model, directory, seed=seed, runs=runs), model, directory / scheme)
    url = url_at(scheme, directory / f"{scheme}-{model}")
    with open_store(url, model, snapshot_every=0, on_alert=lambda alert: None) as store:
        for lines in histories(model, seed, runs).values():
            store.append_events([store.model.parse(line) for line in lines])
    return url


def _archived(source: str, model: str, to: Path) -> str:
    """An archive of all streams of a log, also of those that are not over."""
    directory = ArchiveDirectory(to)
    directory.prepare(model)
    writer = PackWriter(directory, model)
    with open_log(source) as log:
        for head in log.heads():
            writer.add(head.stream, log.read(head.stream, limit=10_000))
    writer.commit()
    return f"archive:{to}"


def local_snapshots(url: str, model: str) -> dict[str, tuple[int, bytes]]:
    """What one process makes of every stream."""
    with open_store(url, model, create=False) as store:
        found = {head.stream: store.fresh_snapshot(head.stream) for head in store.log.heads()}
    return {stream: (snapshot.seq, snapshot.body) for stream, snapshot in found.items()}


def table_snapshots(directory: Path) -> dict[str, tuple[int, bytes]]:
    """What a table of snapshots holds."""
    table = open_snapshot_table(directory)
    rows = list(snapshot_rows(table, table.files("snapshots"), Shard()))
    found = {str(row["stream"]): (int(str(row["seq"])), str(row["body"]).encode()) for row in rows}
    assert len(found) == len(rows), "there is one row for each stream"
    return found


def event_lines(url: str) -> Iterator[tuple[str, bytes]]:
    """Every line of a log, with its stream."""
    origin = open_origin(url)
    try:
        for reader in origin.streams(Shard()):
            for record in reader.records():
                yield record.stream, record.body
    finally:
        origin.close()
