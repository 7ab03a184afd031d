"""The ids of a session, one type each: the type checker keeps them apart, and every boundary checks their form.

Most are made of `a-z 0-9 _ -`, so that they stand in a dedupe key, a token and a file's name as they are, and mean the
same where file names know no case.
"""

from __future__ import annotations

from typing import Annotated, Any, NewType

import msgspec
from msgspec import Meta

from runstate.errors import InvalidEvent
from runstate.models.canonical import digest, integer_max

_Id = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}\Z")]
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}\Z")]
_Sha256 = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]

SessionId = NewType("SessionId", _Id)
"""A session, and the stream that its events stand in."""
RunId = NewType("RunId", _Id)
NodeId = NewType("NodeId", _Id)
EventId = NewType("EventId", _Id)
OutputId = NewType("OutputId", _Id)
GapId = NewType("GapId", _Id)
AttemptId = NewType("AttemptId", _Id)
"""One attempt at an operation. A retry has the same one, and so the same dedupe keys."""
WorkflowId = NewType("WorkflowId", _Name)
StepId = NewType("StepId", _Name)
"""A step of a workflow. Steps are the workflow's; nodes are the run's."""
WorkflowHash = NewType("WorkflowHash", _Sha256)
"""Of the RFC 8785 bytes of a compiled workflow, which is also the reference of the blob that holds them."""
SnapshotRef = NewType("SnapshotRef", _Sha256)
"""Of the RFC 8785 bytes of a node snapshot: the reference of the blob that holds them."""
ContentDigest = NewType("ContentDigest", _Sha256)
"""Of the bytes of an artifact, or of what names a repository's root."""
DedupeKey = NewType("DedupeKey", Annotated[str, Meta(pattern=r"^[a-z0-9_:>-]{1,256}\Z")])
"""Names an event within its session. Derived from stable ids (see `keys.py`), never from time or the event's own id."""
EventIndex = NewType("EventIndex", Annotated[int, Meta(ge=0, le=integer_max - 1)])
"""The place of an event in its session, from 0: one less than the `seq` that its log gave it."""

_words = {
    _Id: "1 to 64 of a-z, 0-9, _ and -, the first a letter or a digit",
    _Name: "1 to 128 letters, digits, dots, colons, _ and -, the first a letter or a digit",
    _Sha256: "sha256: and 64 hex digits",
}


def session_id(text: Any) -> SessionId:
    """
    Raises:
        InvalidEvent: it has not the form of one. The same goes for the functions below.
    """
    return SessionId(_checked(text, _Id, "session id"))


def run_id(text: Any) -> RunId:
    return RunId(_checked(text, _Id, "run id"))


def node_id(text: Any) -> NodeId:
    return NodeId(_checked(text, _Id, "node id"))


def event_id(text: Any) -> EventId:
    return EventId(_checked(text, _Id, "event id"))


def output_id(text: Any) -> OutputId:
    return OutputId(_checked(text, _Id, "output id"))


def gap_id(text: Any) -> GapId:
    return GapId(_checked(text, _Id, "gap id"))


def attempt_id(text: Any) -> AttemptId:
    return AttemptId(_checked(text, _Id, "attempt id"))


def workflow_id(text: Any) -> WorkflowId:
    return WorkflowId(_checked(text, _Name, "workflow id"))


def step_id(text: Any) -> StepId:
    return StepId(_checked(text, _Name, "step id"))


def workflow_hash(text: Any) -> WorkflowHash:
    return WorkflowHash(_checked(text, _Sha256, "workflow hash"))


def snapshot_ref(text: Any) -> SnapshotRef:
    return SnapshotRef(_checked(text, _Sha256, "snapshot reference"))


def content_digest(text: Any) -> ContentDigest:
    return ContentDigest(_checked(text, _Sha256, "digest"))


def event_index(number: Any) -> EventIndex:
    if type(number) is not int or not 0 <= number < integer_max:
        raise InvalidEvent(f"An event index is a whole number from 0, not {str(number)[:80]!r}")
    return EventIndex(number)


def derived(prefix: str, *parts: str) -> str:
    """An id that the same parts always give, so that a retry needs no memory: `derived("node", parent, attempt)`."""
    return f"{prefix}_{digest(chr(31).join(parts).encode())[:32]}"


def _checked(text: Any, kind: Any, what: str) -> str:
    try:
        checked: str = msgspec.convert(text, kind)
    except msgspec.ValidationError as error:
        raise InvalidEvent(f"{str(text)[:80]!r} is no {what}: {_words[kind]}") from error
    return checked
