"""The events of a run directory: one closed envelope, one typed payload per type.

`event_hash` links every event to the one before it, so that a line that was changed, dropped or moved is found. The
JSON Schema `specs/schemas/event.schema.json` is the authority; a property test holds this module to it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from runstate.errors import InvalidEvent
from runstate.models.canonical import check_value, integer_max
from runstate.models.model import check_file_stream

text_max = 4096
"""Characters in a name, a path or an id."""

Name = Annotated[str, Meta(min_length=1, max_length=text_max)]
Text = Annotated[str, Meta(max_length=text_max)]
Sha256 = Annotated[str, Meta(pattern=r"^(?:[0-9a-f]{64})?\Z")]
"""Of a file's bytes; empty for a file that is not there."""
Attempt = Annotated[int, Meta(ge=1, le=integer_max)]


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


class RunCreated(msgspec.Struct, gc=False):
    config: dict[str, Any] = {}
    parameters: dict[str, Any] = {}


class RunStateChanged(msgspec.Struct, gc=False):
    new_state: Name
    old_state: Text | None = None


class SectionStateChanged(msgspec.Struct, gc=False):
    section: Name
    new_state: Name


class WorkItemQueued(msgspec.Struct, gc=False):
    work_item_id: Name
    worker: Name
    attempt: Attempt
    scope_key: Text
    inputs: list[str] = []
    outputs: list[str] = []


class WorkItemStarted(msgspec.Struct, gc=False):
    work_item_id: Name


class WorkItemFinished(msgspec.Struct, gc=False):
    work_item_id: Name
    status: Literal["finished", "failed", "skipped"]
    error: Any = None


class ArtifactWritten(msgspec.Struct, gc=False):
    name: Name
    path: Name
    sha256: Sha256
    schema_id: Text | None = None
    writer_worker: Text | None = None


class ArtifactStaled(msgspec.Struct, gc=False):
    name: Name
    because: str = ""


class Issue(msgspec.Struct):
    """Something that stands in a run's way, or should be known."""

    issue_id: Name
    severity: Literal["blocker", "error", "warn", "info"]
    message: str
    gate: Text = ""
    error_code: Text | None = None
    files: list[str] = []
    location: dict[str, Any] | None = None
    suggested_fix: str | None = None
    status: Literal["OPEN", "RESOLVED"] = "OPEN"


class IssueOpened(msgspec.Struct):
    issue: Issue


class IssueResolved(msgspec.Struct, gc=False):
    issue_id: Name


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

# Days that no calendar has are refused, as the engine's schemas do.
time_pattern = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
    r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_rules = {
    "event_id": (re.compile(r"[!-~]{1,128}"), "1 to 128 printable characters"),
    "ts": (re.compile(time_pattern), "an RFC 3339 time with a zone, such as 2026-11-15T09:30:00.000Z"),
    "type": (re.compile(r"[A-Z][A-Z0-9_]{0,63}"), "capitals, digits and underscores"),
    "trace_id": (re.compile(r"[0-9a-f]{32}"), "32 hex digits"),
    "span_id": (re.compile(r"[0-9a-f]{16}"), "16 hex digits"),
    "parent_span_id": (re.compile(r"[0-9a-f]{16}"), "16 hex digits"),
    "prev_hash": (re.compile(r"(?:[0-9a-f]{64})?"), "a SHA-256 in hex, or empty"),
    "event_hash": (re.compile(r"[0-9a-f]{64}"), "a SHA-256 in hex"),
}
_optional = frozenset({"ts", "parent_span_id", "prev_hash", "event_hash"})


def check(event: RunEvent) -> None:
    """Refuse an event that breaks its schema, however it was made.

    Raises:
        InvalidEvent: naming the member and the rule.
        InvalidStream, InvalidJson: the run's id is no stream's, or the payload cannot be written as JSON.
    """
    if type(event.run_id) is not str:
        raise InvalidEvent("run_id must be text")
    check_file_stream(event.run_id)
    for name in _rules:
        value = getattr(event, name)
        if value is not UNSET or name not in _optional:
            check_member(name, value)
    if type(event.payload) is not dict:
        raise InvalidEvent("payload must be a JSON object")
    # The event around it is a level too, so that what is written can be parsed again.
    check_value(event.payload, "$.payload", 1)
    read_payload(event.type, event.payload)


def check_member(name: str, value: Any) -> None:
    """
    Raises:
        InvalidEvent: naming the member and the rule that it breaks.
    """
    pattern, words = _rules[name]
    if type(value) is not str or not pattern.fullmatch(value):
        raise InvalidEvent(f"{name} must be {words}, got {str(value)[:80]!r}")


def read_payload(kind: str, payload: dict[str, Any]) -> msgspec.Struct | None:
    """The typed payload of an event that changes the snapshot; None for one that is only recorded.

    Raises:
        InvalidEvent: the payload lacks what its type needs.
    """
    found = payload_types.get(kind)
    if found is None:
        return None
    attempt = payload.get("attempt")
    if found is WorkItemQueued and type(attempt) is float and attempt.is_integer():
        payload = payload | {"attempt": int(attempt)}  # JSON has one kind of number: 1.0 is the integer 1.
    try:
        return msgspec.convert(payload, found)
    except msgspec.ValidationError as error:
        raise InvalidEvent(f"The payload of {kind} is wrong: {error}") from error
