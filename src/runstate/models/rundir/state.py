"""The snapshot of a run directory: `snapshot.json`, byte for byte what a replay of the events gives."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from runstate.errors import InvalidJson, InvalidStream, SnapshotTooNew
from runstate.models.canonical import embed
from runstate.models.model import check_file_stream
from runstate.models.rundir.events import Attempt, Issue, Name, Sha256, Text, time_pattern

schema_version = 1
"""Of the snapshot. A newer one is refused: its meaning is not known here."""

Time = Annotated[str, Meta(pattern=rf"^{time_pattern}\Z")]


class Artifact(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A file that a worker wrote, as of its newest version."""

    path: Name
    sha256: Sha256
    schema_id: Text | None
    writer_worker: Text | None
    ts: Time
    stale: bool
    because: str | None


class WorkItem(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """One attempt of one worker at one scope."""

    work_item_id: Name
    worker: Name
    attempt: Attempt
    scope_key: Text
    inputs: list[str]
    outputs: list[str]
    status: Literal["queued", "running", "finished", "failed", "skipped"]
    started_at: Time | None
    finished_at: Time | None
    error: Any


class RunDirectory(msgspec.Struct, dict=True):
    """A run as its events tell it."""

    run_id: str
    run_state: str = ""
    section_states: dict[str, str] = {}
    artifacts_index: dict[str, Artifact] = {}
    work_items: list[WorkItem] = []
    issues: list[Issue] = []
    schema_version: int = schema_version


class Index:
    """Work items and issues by their ids. It goes along with a state, so that one more event costs one event."""

    def __init__(self, state: RunDirectory) -> None:
        self.items = {item.work_item_id: item for item in state.work_items}
        self.issues = {issue.issue_id: issue for issue in state.issues}
        self.keep(state)

    def keep(self, state: RunDirectory) -> None:
        """Go along with a state."""
        self._of = state.work_items, state.issues
        state.__dict__["index"] = self

    def fits(self, state: RunDirectory) -> bool:
        """Whether nobody but a fold has changed the lists."""
        items, issues = self._of
        same = items is state.work_items and issues is state.issues
        return same and len(items) == len(self.items) and len(issues) == len(self.issues)


def index_of(state: RunDirectory) -> Index:
    index = state.__dict__.get("index")
    return index if isinstance(index, Index) and index.fits(state) else Index(state)


_severities = {"blocker": 0, "error": 1, "warn": 2, "info": 3}


def issue_order(issue: Issue) -> tuple[Any, ...]:
    """Issues by severity, gate, path, line and id: the same order in every snapshot."""
    # Doubles and text alone: 3.0 is read back as 3, and anything else has no order that survives that.
    location = issue.location or {}
    path, line = location.get("path"), location.get("line")
    if not isinstance(path, str) or not path:
        path = issue.files[0] if issue.files else ""
    return (
        _severities[issue.severity],
        issue.gate,
        path,
        float(line) if isinstance(line, int | float) and line is not True and line is not False else 0.0,
        issue.issue_id,
    )


def dump(state: RunDirectory) -> bytes:
    """RFC 8785 JSON. Names are sorted by it, so the order of artifacts is the order of their names."""
    if _is_plain(state):
        return _encoder.encode(state)
    return _encoder.encode(embed(msgspec.to_builtins(state)))


def _is_plain(state: RunDirectory) -> bool:
    """Whether msgspec writes the state as RFC 8785 would: only names and what producers sent freely can spoil that."""
    names = "".join(state.artifacts_index).isascii() and "".join(state.section_states).isascii()
    errors = all(item.error is None or embed(item.error) is item.error for item in state.work_items)
    return names and errors and all(embed(issue.location) is issue.location for issue in state.issues)


def load(data: bytes) -> RunDirectory:
    """
    Raises:
        InvalidJson: the bytes break `snapshot.schema.json`.
        SnapshotTooNew: a newer Runstate wrote them.
    """
    try:
        found = _decoder.decode(data)
        check_file_stream(found.run_id)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, InvalidStream) as error:
        # Of a newer version only the version can be understood, so it is what is told.
        _refuse_newer(data)
        raise InvalidJson(f"Not the snapshot of a run directory: {error}") from error
    issues = [Issue(*(getattr(issue, name) for name in Issue.__struct_fields__)) for issue in found.issues]
    return RunDirectory(
        found.run_id, found.run_state, found.section_states, found.artifacts_index, found.work_items, issues
    )


def _refuse_newer(data: bytes) -> None:
    try:
        version = _version_decoder.decode(data).schema_version
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    if version > schema_version:
        raise SnapshotTooNew(
            f"The snapshot has version {version}, this Runstate knows up to {schema_version}; upgrade it"
        )


class _Version(msgspec.Struct):
    schema_version: int


class _StoredIssue(msgspec.Struct, forbid_unknown_fields=True):
    """An issue on file: nothing of it is left out."""

    issue_id: Name
    severity: Literal["blocker", "error", "warn", "info"]
    message: str
    gate: Text
    error_code: Text | None
    files: list[str]
    location: dict[str, Any] | None
    suggested_fix: str | None
    status: Literal["OPEN", "RESOLVED"]


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    run_id: str
    run_state: Text
    section_states: dict[Name, Name]
    artifacts_index: dict[Name, Artifact]
    work_items: list[WorkItem]
    issues: list[_StoredIssue]
    schema_version: Literal[1]


_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(_Stored)
_version_decoder = msgspec.json.Decoder(_Version)
