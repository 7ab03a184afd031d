"""How events change a run directory's snapshot. An event about something unknown changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from runstate.errors import InvalidEvent, InvalidJson
from runstate.models.canonical import canonical
from runstate.models.rundir.events import (
    ArtifactStaled,
    ArtifactWritten,
    IssueOpened,
    IssueResolved,
    RunCreated,
    RunStateChanged,
    SectionStateChanged,
    WorkItemFinished,
    WorkItemQueued,
    WorkItemStarted,
    check_member,
    payload_types,
    read_payload,
)
from runstate.models.rundir.state import Artifact, RunDirectory, WorkItem, index_of, issue_order

terminal_states = {"RUN_COMPLETED": "COMPLETED", "RUN_FAILED": "FAILED", "RUN_CANCELLED": "CANCELLED"}


class Fold:
    """Applies events in place, with an index over the work items so that long runs fold fast."""

    def __init__(self, state: RunDirectory) -> None:
        self.state = state
        self._index = index_of(state)
        self._items, self._issues = self._index.items, self._index.issues
        self._unsorted = False

    def apply(self, kind: str, ts: str, payload: dict[str, Any]) -> None:
        """
        Raises:
            InvalidEvent: the time is none, or the payload lacks what its type needs. The state is as it was.
        """
        check_member("ts", ts)
        if kind in terminal_states:
            self.state.run_state = terminal_states[kind]
        elif (effect := _effects.get(kind)) is not None:
            effect(self, ts, read_payload(kind, payload))

    def apply_lines(self, lines: Iterable[bytes]) -> None:
        """`apply` for stored lines: only what changes the state is decoded, straight into its type.

        Raises:
            InvalidEvent: a line is no event, or lacks what its type needs.
        """
        decode, effects, milliseconds, second = _fact_decoder.decode, _typed_effects, _milliseconds, ""
        for line in lines:
            try:
                fact = decode(line)
                ts, kind = fact.ts, fact.type
                # Most events share their second with the one before, so that the whole rule is seldom needed.
                if ts[:20] != second or ts[20:] not in milliseconds:
                    check_member("ts", ts)
                    second = ts[:20] if ts[19] == "." else ""
                if kind in effects:
                    read, effect = effects[kind]
                    effect(self, ts, read(fact.payload))
                elif memoryview(fact.payload)[0] != _brace:
                    raise InvalidEvent(f"The payload of {kind} is no JSON object")
                elif kind in terminal_states:
                    self.state.run_state = terminal_states[kind]
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                self._apply_slowly(line)

    def _apply_slowly(self, line: bytes) -> None:
        """What the fast way could not read: an integer that is written as 1.0, or no event at all."""
        try:
            fact = _plain_decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidEvent(f"A stored line is no event of a run: {error}") from error
        self.apply(fact.type, fact.ts, fact.payload)

    def finish(self) -> RunDirectory:
        if self._unsorted:
            self.state.issues = sorted(self._issues.values(), key=issue_order)
            self._index.keep(self.state)
            self._unsorted = False
        return self.state

    def _created(self, ts: str, payload: RunCreated) -> None:
        # The first event of a run. Told again later, it must not throw the run back.
        if not self.state.run_state:
            self.state.run_state = "CREATED"

    def _run_state(self, ts: str, payload: RunStateChanged) -> None:
        self.state.run_state = payload.new_state

    def _section(self, ts: str, payload: SectionStateChanged) -> None:
        self.state.section_states[payload.section] = payload.new_state

    def _queued(self, ts: str, payload: WorkItemQueued) -> None:
        if payload.work_item_id in self._items:
            return
        item = WorkItem(
            payload.work_item_id,
            payload.worker,
            payload.attempt,
            payload.scope_key,
            payload.inputs,
            payload.outputs,
            "queued",
            None,
            None,
            None,
        )
        self._items[item.work_item_id] = item
        self.state.work_items.append(item)

    def _started(self, ts: str, payload: WorkItemStarted) -> None:
        if (item := self._items.get(payload.work_item_id)) is not None:
            # Begun again after an interruption: how it once ended no longer holds.
            item.status, item.started_at, item.finished_at, item.error = "running", ts, None, None

    def _finished(self, ts: str, payload: WorkItemFinished) -> None:
        if payload.error is not None:
            _check_keepable(payload.error)
        if (item := self._items.get(payload.work_item_id)) is not None:
            item.status, item.finished_at, item.error = payload.status, ts, payload.error

    def _written(self, ts: str, payload: ArtifactWritten) -> None:
        self.state.artifacts_index[payload.name] = Artifact(
            payload.path, payload.sha256, payload.schema_id, payload.writer_worker, ts, False, None
        )

    def _staled(self, ts: str, payload: ArtifactStaled) -> None:
        if (artifact := self.state.artifacts_index.get(payload.name)) is not None:
            artifact.stale, artifact.because = True, payload.because

    def _opened(self, ts: str, payload: IssueOpened) -> None:
        if payload.issue.location is not None:
            _check_keepable(payload.issue.location)
        self._issues[payload.issue.issue_id] = payload.issue
        self._unsorted = True

    def _resolved(self, ts: str, payload: IssueResolved) -> None:
        if (issue := self._issues.get(payload.issue_id)) is not None:
            issue.status = "RESOLVED"


def _check_keepable(value: Any) -> None:
    """Refuse what a snapshot could not hold, such as an integer that would lose digits. No append lets it in."""
    try:
        canonical(value)
    except InvalidJson as error:
        raise InvalidEvent(f"The payload cannot be kept in a snapshot: {error}") from error


class _Fact(msgspec.Struct, gc=False):
    type: str
    ts: str
    payload: msgspec.Raw


class _PlainFact(msgspec.Struct):
    type: str
    ts: str
    payload: dict[str, Any]


_fact_decoder = msgspec.json.Decoder(_Fact)
_plain_decoder = msgspec.json.Decoder(_PlainFact)
_brace = ord("{")
_milliseconds = frozenset(f"{number:03d}Z" for number in range(1000))
"""How a time ends that a log has stamped."""

_effects: dict[str, Callable[[Fold, str, Any], None]] = {
    "RUN_CREATED": Fold._created,
    "RUN_STATE_CHANGED": Fold._run_state,
    "SECTION_STATE_CHANGED": Fold._section,
    "WORK_ITEM_QUEUED": Fold._queued,
    "WORK_ITEM_STARTED": Fold._started,
    "WORK_ITEM_FINISHED": Fold._finished,
    "ARTIFACT_WRITTEN": Fold._written,
    "ARTIFACT_STALED": Fold._staled,
    "ISSUE_OPENED": Fold._opened,
    "ISSUE_RESOLVED": Fold._resolved,
}
_typed_effects = {kind: (msgspec.json.Decoder(payload_types[kind]).decode, effect) for kind, effect in _effects.items()}
