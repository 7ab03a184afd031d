"""Every installed log that Spark can read, filled with the fleet of a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.fleets import histories, models

from runstate.logs.registry import installed_schemes
from runstate.pipeline.origins import open_origin
from runstate.pipeline.shards import Shard
from runstate.pipeline.snapshot_table import latest, open_snapshot_table
from runstate.store import open as open_store

need_a_server = ("postgresql",)
"""Their URLs are made of more than a path, as the tests that use this list make theirs."""


def schemes() -> list[str]:
    """Of the logs that outlive their process and live at a path; the first kind must be refused, as a test proves."""
    return [scheme for scheme in installed_schemes() if scheme not in ("memory", *need_a_server)]


def pairs() -> list[tuple[str, str]]:
    return [(scheme, model) for scheme in schemes() for model in models()]


def filled(scheme: str, model: str, directory: Path, *, seed: int = 0, runs: int = 12) -> str:
    """The URL of a log that holds the model's fleet. A second fleet, of another seed, joins the first."""
    url = f"{scheme}:{directory / f'{scheme}-{model}'}"
    with open_store(url, model, snapshot_every=0, on_alert=lambda alert: None) as store:
        for lines in histories(model, seed, runs).values():
            store.append_events([store.model.parse(line) for line in lines])
    return url


def local_snapshots(url: str, model: str) -> dict[str, tuple[int, bytes]]:
    """What one process makes of every stream."""
    with open_store(url, model, create=False) as store:
        found = {head.stream: store.fresh_snapshot(head.stream) for head in store.log.heads()}
    return {stream: (snapshot.seq, snapshot.body) for stream, snapshot in found.items()}


def table_snapshots(directory: Path) -> dict[str, tuple[int, bytes]]:
    """What a table of snapshots holds."""
    table = open_snapshot_table(directory)
    return {
        str(row["stream"]): (int(str(row["seq"])), str(row["body"]).encode())
        for row in latest(table, table.files("snapshots"), Shard())
    }


def event_lines(url: str) -> Iterator[tuple[str, bytes]]:
    """Every line of a log, with its stream."""
    origin = open_origin(url)
    try:
        for reader in origin.streams(Shard()):
            for record in reader.records():
                yield record.stream, record.body
    finally:
        origin.close()
