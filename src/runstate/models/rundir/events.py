"""The events of a run directory: one closed envelope, one typed payload per type.

`event_hash` links every event to the one before it, so that a line that was changed, dropped or moved is found. The
JSON Schema `specs/schemas/event.schema.json` is the authority; a property test holds this module to it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from runstate.errors import InvalidEvent
from runstate.models.canonical import check_value, embed
from runstate.models.model import check_stream

text_max = 1024
"""Characters in a name, a path or an id."""


class RunEvent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An event of a run. `ts` is the log's to stamp unless the producer gives it; the hashes are always the log's."""

    event_id: str
    run_id: str
    ts: str | UnsetType = UNSET
    type: str
    payload: dict[str, Any]
    trace_id: str
    span_id: str
    parent_span_id: str | UnsetType = UNSET
    prev_hash: str | UnsetType = UNSET
    event_hash: str | UnsetType = UNSET


# --- payloads ----------------------------------------------------------------------------------------------------


class RunCreated(msgspec.Struct):
    config: dict[str, Any] = {}
    parameters: dict[str, Any] = {}


class RunStateChanged(msgspec.Struct):
    new_state: str
    old_state: str | None = None


class SectionStateChanged(msgspec.Struct):
    section: str
    new_state: str


class WorkItemQueued(msgspec.Struct):
    work_item_id: str
    worker: str
    attempt: int
    scope_key: str
    inputs: list[str] = []
    outputs: list[str] = []


class WorkItemStarted(msgspec.Struct):
    work_item_id: str


class WorkItemFinished(msgspec.Struct):
    work_item_id: str
    status: Literal["finished", "failed", "skipped"]
    error: Any = None


class ArtifactWritten(msgspec.Struct):
    name: str
    path: str
    sha256: str
    schema_id: str | None = None
    writer_worker: str | None = None


class ArtifactStaled(msgspec.Struct):
    name: str
    because: str = ""


class Issue(msgspec.Struct):
    """Something that stands in a run's way, or should be known."""

    issue_id: str
    severity: Literal["blocker", "error", "warn", "info"]
    message: str
    gate: str = ""
    error_code: str | None = None
    files: list[str] = []
    location: dict[str, Any] | None = None
    suggested_fix: str | None = None
    status: Literal["OPEN", "RESOLVED"] = "OPEN"


class IssueOpened(msgspec.Struct):
    issue: Issue


class IssueResolved(msgspec.Struct):
    issue_id: str


payload_types: dict[str, type[msgspec.Struct]] = {
    "RUN_CREATED": RunCreated,
    "RUN_STATE_CHANGED": RunStateChanged,
    "SECTION_STATE_CHANGED": SectionStateChanged,
    "WORK_ITEM_QUEUED": WorkItemQueued,
    "WORK_ITEM_STARTED": WorkItemStarted,
    "WORK_ITEM_FINISHED": WorkItemFinished,
    "ARTIFACT_WRITTEN": ArtifactWritten,
    "ARTIFACT_STALED": ArtifactStaled,
    "ISSUE_OPENED": IssueOpened,
    "ISSUE_RESOLVED": IssueResolved,
}
"""The types that change the snapshot. All others are recorded: gates, model calls, and whatever comes later."""


# --- checking, hashing, writing down -------------------------------------------------------------------------------

_ts = re.compile(
    r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_rules = {
    "event_id": (re.compile(r"[!-~]{1,128}"), "1 to 128 printable characters"),
    "ts": (_ts, "an RFC 3339 time with a zone, such as 2026-11-15T09:30:00.000Z"),
    "type": (re.compile(r"[A-Z][A-Z0-9_]{0,63}"), "capitals, digits and underscores"),
    "trace_id": (re.compile(r"[0-9a-f]{32}"), "32 hex digits"),
    "span_id": (re.compile(r"[0-9a-f]{16}"), "16 hex digits"),
    "parent_span_id": (re.compile(r"[0-9a-f]{16}"), "16 hex digits"),
    "prev_hash": (re.compile(r"(?:[0-9a-f]{64})?"), "a SHA-256 in hex, or empty"),
    "event_hash": (re.compile(r"[0-9a-f]{64}"), "a SHA-256 in hex"),
}


def check(event: RunEvent) -> None:
    """Refuse an event that breaks its schema, however it was made.

    Raises:
        InvalidEvent: naming the member and the rule.
    """
    if type(event.run_id) is not str:
        raise InvalidEvent("run_id must be text")
    check_stream(event.run_id)
    for name, (pattern, words) in _rules.items():
        value = getattr(event, name)
        if value is not UNSET and (type(value) is not str or not pattern.fullmatch(value)):
            raise InvalidEvent(f"{name} must be {words}, got {str(value)[:80]!r}")
    if type(event.payload) is not dict:
        raise InvalidEvent("payload must be a JSON object")
    check_value(event.payload, "$.payload")
    read_payload(event.type, event.payload)


def read_payload(kind: str, payload: dict[str, Any]) -> msgspec.Struct | None:
    """The typed payload of an event that changes the snapshot; None for one that is only recorded.

    Raises:
        InvalidEvent: the payload lacks what its type needs.
    """
    found = payload_types.get(kind)
    if found is None:
        return None
    try:
        return msgspec.convert(payload, found)
    except msgspec.ValidationError as error:
        raise InvalidEvent(f"The payload of {kind} is wrong: {error}") from error


def compact(payload: Any) -> str:
    """The payload as the chain hashes it: RFC 8785, which is compact JSON with sorted names."""
    return _encoder.encode(embed(payload)).decode()


def event_hash(event_id: str, ts: str, kind: str, payload: str, prev_hash: str) -> str:
    """The link of the chain: SHA-256 over id, time, type, the compact payload and the hash before."""
    return hashlib.sha256(f"{event_id}{ts}{kind}{payload}{prev_hash}".encode()).hexdigest()


_encoder = msgspec.json.Encoder(order="sorted")
