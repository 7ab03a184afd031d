"""What an ingest has set aside, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runstate.pipeline.event_table import open_event_table, quarantine_schema
from runstate.pipeline.shards import Shard


def reasons(directory: Path) -> dict[str, int]:
    """How often each reason was given, by code."""
    table = open_event_table(directory)
    counts: Counter[str] = Counter()
    for piece in table.pieces(table.files("quarantine"), Shard(), ["stream", "seq", "code"]):
        for found in piece.column("code").value_counts().to_pylist():
            counts[found["values"]] += found["counts"]
    return dict(sorted(counts.items()))


def quarantined(directory: Path) -> Iterator[dict[str, Any]]:
    """Everything that was set aside: where it stands, why, and its bytes."""
    table = open_event_table(directory)
    for piece in table.pieces(table.files("quarantine"), Shard(), quarantine_schema.names):
        yield from piece.to_pylist()
