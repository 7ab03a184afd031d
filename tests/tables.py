"""Tables of the pipeline, as tests make them and look into them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from runstate.models.registry import find_model
from runstate.pipeline.replay.fold import snapshot_schema
from runstate.pipeline.tables.event_table import event_schemas
from runstate.pipeline.tables.table import Table, TableInfo


def new_table(directory: Path, kind: str = "events", model: str = "engine") -> Table:
    """A table without a commit, or the one that is there."""
    found = find_model(model)
    schemas = event_schemas(found) if kind == "events" else {"snapshots": snapshot_schema}
    return Table.make(directory, TableInfo(kind, found.name, found.version), schemas)


def change_info(directory: Path, **changes: object) -> None:
    """Change what `table.json` says."""
    path = directory / "table.json"
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), **changes}))


def commit_file(directory: Path, number: int, kind: str = "events") -> Path:
    return directory / kind / "_delta_log" / f"{number:020d}.json"


def change_note(directory: Path, number: int, note: str, kind: str = "events") -> None:
    """Put another note into a commit."""
    path = commit_file(directory, number, kind)
    actions = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["runstate"] = note
    path.write_bytes(b"\n".join(map(msgspec.json.encode, actions)))
