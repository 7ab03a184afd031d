"""Emits the events of a run, with keys, ids, attempts and guards derived.

    run = store.run("r-1", tenant="acme", project="sales", environment="prod", plan="nightly", plan_version="1")
    run.started()
    run.step_started("extract")

Every call may be repeated: the same event gets the same key and id, so a retry after a crash changes nothing. A call is
refused if it is impossible in the run's state, or if its effect would not be in that state.

Attempts that the caller leaves out are counted from the calls on this object, so that a script that is started again
and repeats its calls derives the same ones; docs/guides/producers.md has the rule.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Protocol

from msgspec import UNSET

from runstate.errors import InvalidTransition, SequenceConflict
from runstate.logs.log import AppendResult, now
from runstate.models.engine.events import RunEventRecord, RunEventWrite
from runstate.models.engine.evolve import fold, refusals, run_transitions, step_transitions
from runstate.models.engine.keys import idempotency_key
from runstate.models.engine.state import Attempt, RunSnapshot
from runstate.models.model import stable_uuid

_beginnings = frozenset({"RunQueued", "RunApproved", "RunStarted"})
"""A producer that begins with one of these, and finds it stored, repeats a script from its beginning."""
_turns = frozenset({"RunPaused", "RunResumed"})
"""Run-level types that may happen several times."""
_openings = frozenset({"StepStarted", "StepSkipped"})


class RunLog(Protocol):
    """The part of a store that a producer needs."""

    def append_event(self, event: RunEventWrite, *, expected_seq: int | None = None) -> AppendResult: ...

    def current_state(self, stream: str) -> RunSnapshot: ...

    def holds_key(self, stream: str, key: str) -> bool: ...


class RunProducer:
    """Emits the events of one run. For one thread; each producer of a run may have its own."""

    def __init__(
        self, store: RunLog, run_id: str, *, tenant: str, project: str, environment: str, plan: str, plan_version: str
    ) -> None:
        self._store = store
        self._scope: dict[str, Any] = {
            "run_id": run_id,
            "tenant_id": tenant,
            "project_id": project,
            "environment_id": environment,
            "plan_id": plan,
            "plan_version": plan_version,
        }
        self._state = store.current_state(run_id)
        self._sent: set[str] = set()
        self._opened_seq = self._state.last_event_seq
        self._failed_before = {key for key, found in _attempts(self._state).items() if found.status == "FAILED"}
        self._repeats: bool | None = None
        """Whether this producer repeats a script from its beginning; None before its first call."""
        self._own: dict[str, int] = {}
        """By step: the attempt that this producer reports on."""
        self._reported_failed: set[tuple[str, int]] = set()
        self._counts: dict[str, int] = {}
        """By run-level type: the attempt that this producer used last."""
        self._last_turn = ""

    @property
    def state(self) -> RunSnapshot:
        """The run as this producer last knew it."""
        return self._state

    def queued(self, **payload: Any) -> AppendResult:
        return self.emit("RunQueued", payload=payload)

    def approved(self, **payload: Any) -> AppendResult:
        return self.emit("RunApproved", payload=payload)

    def started(self, **payload: Any) -> AppendResult:
        return self.emit("RunStarted", payload=payload)

    def paused(self, *, attempt: int | None = None, **payload: Any) -> AppendResult:
        """The run pauses. A second pause is another event; its attempt is derived unless you pass it."""
        return self.emit("RunPaused", attempt=attempt, payload=payload)

    def resumed(self, *, attempt: int | None = None, **payload: Any) -> AppendResult:
        """The run resumes; `attempt` as for `paused`."""
        return self.emit("RunResumed", attempt=attempt, payload=payload)

    def completed(self, **payload: Any) -> AppendResult:
        return self.emit("RunCompleted", payload=payload)

    def failed(
        self, *, code: str | None = None, message: str = "", retryable: bool = False, **payload: Any
    ) -> AppendResult:
        """The run fails. The error, if `code` names one, is its root cause unless a step has failed."""
        if code is not None:
            payload["error"] = {"code": code, "message": message, "retryable": retryable}
        return self.emit("RunFailed", payload=payload)

    def cancelled(self, **payload: Any) -> AppendResult:
        return self.emit("RunCancelled", payload=payload)

    def step_started(self, step: str, *, attempt: int | None = None, **payload: Any) -> AppendResult:
        """A step begins. After `step_failed` on this producer it is the next attempt, unless you pass one."""
        return self.emit("StepStarted", step=step, attempt=attempt, payload=payload)

    def step_completed(
        self, step: str, *, attempt: int | None = None, artifacts: list[Any] | None = None, **payload: Any
    ) -> AppendResult:
        if artifacts is not None:
            payload["artifacts"] = artifacts
        return self.emit("StepCompleted", step=step, attempt=attempt, payload=payload)

    def step_failed(
        self,
        step: str,
        *,
        code: str,
        message: str = "",
        retryable: bool = False,
        attempt: int | None = None,
        **payload: Any,
    ) -> AppendResult:
        payload["error"] = {"code": code, "message": message, "retryable": retryable}
        return self.emit("StepFailed", step=step, attempt=attempt, payload=payload)

    def step_skipped(
        self, step: str, *, reason: str | None = None, attempt: int | None = None, **payload: Any
    ) -> AppendResult:
        if reason is not None:
            payload["reason"] = reason
        return self.emit("StepSkipped", step=step, attempt=attempt, payload=payload)

    def emit(
        self,
        event_type: str,
        *,
        step: str | None = None,
        attempt: int | None = None,
        engine_attempt: int = 1,
        payload: dict[str, Any] | None = None,
    ) -> AppendResult:
        """Append any event of this run; types of your own are kept and change no state.

        Raises:
            InvalidTransition: it is impossible in the run's state, also after reading the log again; or it is stored
                already, and what the call says is not so.
            StreamDeleted: the run was deleted or archived, and did not hold this event.
        """
        number = self._next_attempt(event_type, step) if attempt is None else attempt
        while True:
            event = self._event(event_type, step, number, engine_attempt, payload or {})
            result = self._send(event)
            if result.persisted or self._is_in_effect(event, result.seq, attempt is None):
                break
            further = number if attempt is not None else self._attempt_after(event_type, step, number)
            if further == number:
                raise self._not_in_effect(event, result.seq)
            number = further
        self._remember(event, result)
        return result

    def _send(self, event: RunEventWrite) -> AppendResult:
        while True:
            if event.idempotency_key not in self._sent:
                self._guard(event)
            expected_seq = self._state.last_event_seq
            try:
                result = self._store.append_event(event, expected_seq=expected_seq)
                break
            except SequenceConflict:
                # Others have written since: look whether it is still possible.
                self._state = self._store.current_state(event.run_id)
                if self._state.last_event_seq == expected_seq:
                    raise
        self._sent.add(event.idempotency_key)
        if result.seq == self._state.last_event_seq + 1:
            self._state = fold(self._state, (_record(event, result.seq, result.persisted_at),))
        elif result.seq > self._state.last_event_seq:
            self._state = self._store.current_state(event.run_id)  # Others have written in between.
        return result

    def _remember(self, event: RunEventWrite, result: AppendResult) -> None:
        kind, number = event.event_type, event.logical_attempt_id
        if self._repeats is None:
            self._repeats = kind in _beginnings and not result.persisted and result.seq <= self._opened_seq
        if result.persisted:
            self._repeats = False  # New events are stored: the script no longer repeats earlier calls.
        if event.step_id is UNSET:
            self._counts[kind] = number
            self._last_turn = kind if kind in _turns else self._last_turn
        elif kind in step_transitions:
            self._own[event.step_id] = number
            if kind == "StepFailed":
                self._reported_failed.add((event.step_id, number))

    # --- attempts ----------------------------------------------------------------------------------------

    def _next_attempt(self, event_type: str, step: str | None) -> int:
        """The attempt of a call that names none."""
        if step is None:
            used = self._counts.get(event_type, 0)
            is_next = not used or (event_type in _turns and self._last_turn != event_type)
            return used + is_next
        known = [number for of_step, number in _attempts(self._state) if of_step == step]
        if not known:
            return self._own.get(step, 1)
        if self._repeats and event_type in _openings and step not in self._own:
            return min(known)
        own = self._own.get(step, max(known))
        if event_type == "StepStarted" and self._has_failed(step, own):
            return min((number for number in known if number > own), default=own + 1)
        return own

    def _attempt_after(self, event_type: str, step: str | None, number: int) -> int:
        """The attempt to try if the event is stored under `number` and not in effect; `number` if there is none."""
        if step is None:
            return number + 1
        if step in self._own:
            self._own[step] = number
        return self._next_attempt(event_type, step)

    def _has_failed(self, step: str, attempt: int) -> bool:
        """Whether an attempt has failed by a report of this producer, or by one that came since it was opened."""
        if (step, attempt) in self._reported_failed:
            return True
        found = _attempts(self._state).get((step, attempt))
        return found is not None and found.status == "FAILED" and (step, attempt) not in self._failed_before

    def _is_in_effect(self, event: RunEventWrite, seq: int, derived: bool) -> bool:
        """Whether what a call says is so, given that its event was stored before, at `seq`."""
        repeats = bool(self._repeats) and seq <= self._opened_seq
        if not repeats:
            self._state = self._store.current_state(event.run_id)  # Others may have written since.
        if not _was_applied(self._state, event):
            return False
        if not derived or repeats:
            return True
        match event.event_type:
            case "RunPaused":
                return self._state.status == "PAUSED"
            case "RunResumed":
                return self._state.status != "PAUSED"
            case "StepStarted":
                found = _attempts(self._state)[(str(event.step_id), event.logical_attempt_id)]
                return found.status != "FAILED"
        return True

    def _not_in_effect(self, event: RunEventWrite, seq: int) -> InvalidTransition:
        number = event.logical_attempt_id
        stored = f"{event.event_type} of attempt {number} is stored at seq {seq}"
        details = {"runId": event.run_id, "eventType": event.event_type, "seq": seq, "logicalAttemptId": number}
        if not _was_applied(self._state, event):
            return InvalidTransition(
                f"{stored}, but was impossible then and changed nothing. Report a new attempt: attempt={number + 1}",
                **details,
            )
        return InvalidTransition(
            f"{stored}, and step {event.step_id!r} has failed since, before this producer was opened. Pass "
            f"attempt={number + 1} to retry the step, or attempt={number} to repeat the earlier call",
            **details,
        )

    def _event(
        self, event_type: str, step: str | None, attempt: int, engine_attempt: int, payload: dict[str, Any]
    ) -> RunEventWrite:
        scope = self._scope
        key = idempotency_key(
            run_id=scope["run_id"],
            step_id=step,
            logical_attempt_id=attempt,
            event_type=event_type,
            plan_id=scope["plan_id"],
            plan_version=scope["plan_version"],
        )
        return RunEventWrite(
            event_id=stable_uuid(scope["tenant_id"], scope["project_id"], scope["environment_id"], key),
            event_type=event_type,
            emitted_at=now(),
            engine_attempt_id=engine_attempt,
            logical_attempt_id=attempt,
            idempotency_key=key,
            step_id=UNSET if step is None else step,
            payload=payload or UNSET,
            **scope,
        )

    def _guard(self, event: RunEventWrite) -> None:
        if not refusals(self._state, _record(event, self._state.last_event_seq + 1, event.emitted_at)):
            return
        # Others may have written since; and an earlier life of this producer may have sent this very event.
        self._state = self._store.current_state(event.run_id)
        found = refusals(self._state, _record(event, self._state.last_event_seq + 1, event.emitted_at))
        if found and not self._store.holds_key(event.run_id, event.idempotency_key):
            details = found[0].details
            about, start = "the run", "started()"
            if event.step_id is not UNSET:
                about, start = f"step {event.step_id!r}", f"step_started({event.step_id!r})"
            advice = f"Call {start} first" if details["priorState"] == "PENDING" else "A retry needs a higher attempt"
            raise InvalidTransition(
                f"{event.event_type} is impossible: {about} is {details['priorState']} "
                f"at attempt {event.logical_attempt_id}. {advice}",
                **details,
            )


def _attempts(state: RunSnapshot) -> dict[tuple[str, int], Attempt]:
    """Every attempt at every step, earlier ones included."""
    return {(step.step_id, a.logical_attempt_id): a for step in state.steps for a in (step, *step.attempts)}


def _was_applied(state: RunSnapshot, event: RunEventWrite) -> bool:
    """Whether a stored event has changed the state, as far as the state shows; the fold ignores impossible events."""
    kind = event.event_type
    if kind in step_transitions:
        found = _attempts(state).get((str(event.step_id), event.logical_attempt_id))
        if found is None or kind == "StepStarted":
            return found is not None and found.started_at is not None
        return found.status == step_transitions[kind][1]
    match kind:
        case "RunApproved":
            return state.status != "PENDING"
        case "RunStarted" | "RunPaused" | "RunResumed":
            return state.started_at is not None
        case "RunCompleted" | "RunFailed" | "RunCancelled":
            return state.status in run_transitions[kind].values()
    return True


def _record(event: RunEventWrite, seq: int, persisted_at: str) -> RunEventRecord:
    # Copied, since the state keeps the artifacts of the payload, and the caller may go on using its own.
    fields = {name: deepcopy(getattr(event, name)) for name in RunEventWrite.__struct_fields__}
    return RunEventRecord(run_seq=seq, persisted_at=persisted_at, **fields)
