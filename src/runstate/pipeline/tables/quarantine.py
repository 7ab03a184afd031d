"""What an ingest has set aside, and why; and the lines that files end in before they are whole, as they were then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runstate.pipeline.source.plain_files import no_stream, scheme
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.tables.event_table import open_event_table, quarantine_schema, without_secrets
from runstate.pipeline.tables.file_progress import consumed_before
from runstate.pipeline.tables.table import Table


def reasons(directory: Path) -> dict[str, int]:
    """How often each reason was given, by code."""
    table = open_event_table(directory)
    counts = Counter(row["code"] for row in _unfinished(table))
    for piece in table.pieces(table.files("quarantine"), Shard(), ["stream", "seq", "code"]):
        for found in piece.column("code").value_counts().to_pylist():
            counts[found["values"]] += found["counts"]
    return dict(sorted(counts.items()))


def quarantined(directory: Path) -> Iterator[dict[str, Any]]:
    """Everything that was set aside: where it stands, why, and its bytes."""
    table = open_event_table(directory)
    for piece in table.pieces(table.files("quarantine"), Shard(), quarantine_schema.names):
        yield from without_secrets(piece).to_pylist()
    yield from _unfinished(table)


def _unfinished(table: Table) -> Iterator[dict[str, Any]]:
    for file, read in sorted(consumed_before(table).items()):
        if (found := read.unfinished) is not None:
            place = (no_stream, 0, scheme + file, file, found.line)
            yield dict(zip(quarantine_schema.names, (*place, found.code, found.reason, found.content), strict=True))
