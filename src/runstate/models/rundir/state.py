"""The snapshot of a run directory: `snapshot.json`, byte for byte what a replay of the events gives."""

from __future__ import annotations

from typing import Any

import msgspec

from runstate.errors import InvalidJson, SnapshotTooNew
from runstate.models.canonical import embed
from runstate.models.rundir.events import Issue

schema_version = 1
"""Of the snapshot. A newer one is refused: its meaning is not known here."""


class Artifact(msgspec.Struct):
    """A file that a worker wrote, as of its newest version."""

    path: str
    sha256: str
    schema_id: str | None
    writer_worker: str | None
    ts: str
    stale: bool = False
    because: str | None = None


class WorkItem(msgspec.Struct):
    """One attempt of one worker at one scope."""

    work_item_id: str
    worker: str
    attempt: int
    scope_key: str
    inputs: list[str]
    outputs: list[str]
    status: str = "queued"
    started_at: str | None = None
    finished_at: str | None = None
    error: Any = None


class RunDirectory(msgspec.Struct):
    """A run as its events tell it."""

    run_id: str
    run_state: str = ""
    section_states: dict[str, str] = {}
    artifacts_index: dict[str, Artifact] = {}
    work_items: list[WorkItem] = []
    issues: list[Issue] = []
    schema_version: int = schema_version


_severities = {"blocker": 0, "error": 1, "warn": 2, "info": 3}


def issue_order(issue: Issue) -> tuple[Any, ...]:
    """Issues by severity, gate, path, line and id: the same order in every snapshot."""
    location = issue.location or {}
    path = location.get("path") or (issue.files[0] if issue.files else "")
    line = location.get("line")
    return (
        _severities[issue.severity],
        issue.gate,
        str(path),
        line if isinstance(line, int) else 0,
        issue.issue_id,
    )


def dump(state: RunDirectory) -> bytes:
    """RFC 8785 JSON. Names are sorted by it, so the order of artifacts is the order of their names."""
    return _encoder.encode(embed(msgspec.to_builtins(state)))


def load(data: bytes) -> RunDirectory:
    try:
        state = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidJson(f"Not the snapshot of a run directory: {error}") from error
    if state.schema_version > schema_version:
        raise SnapshotTooNew(
            f"The snapshot has version {state.schema_version}, this Runstate knows up to {schema_version}; upgrade it"
        )
    return state


_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(RunDirectory)
