"""For whoever runs things: say what happened, and get keys, ids and guards for free.

    run = store.run("r-1", tenant="acme", project="sales", environment="prod", plan="nightly", plan_version="1")
    run.started()
    run.step_started("extract")

Every call may be repeated: the same fact gives the same key and the same event id, so a retry after a crash
changes nothing. A fact that is impossible in the run's state is refused before it is sent.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Protocol

from msgspec import UNSET

from runstate.errors import InvalidTransition
from runstate.logs.log import AppendResult, now
from runstate.models.engine.events import RunEventRecord, RunEventWrite
from runstate.models.engine.evolve import fold, refusals
from runstate.models.engine.keys import idempotency_key
from runstate.models.engine.state import RunSnapshot
from runstate.models.model import stable_uuid


class RunLog(Protocol):
    """The part of a store that a producer needs."""

    def append_event(self, event: RunEventWrite) -> AppendResult: ...

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

    def paused(self, *, attempt: int = 1, **payload: Any) -> AppendResult:
        """`attempt` counts the pauses of this run: the second one is another fact, and needs another key."""
        return self.emit("RunPaused", attempt=attempt, payload=payload)

    def resumed(self, *, attempt: int = 1, **payload: Any) -> AppendResult:
        return self.emit("RunResumed", attempt=attempt, payload=payload)

    def completed(self, **payload: Any) -> AppendResult:
        return self.emit("RunCompleted", payload=payload)

    def failed(self, **payload: Any) -> AppendResult:
        return self.emit("RunFailed", payload=payload)

    def cancelled(self, **payload: Any) -> AppendResult:
        return self.emit("RunCancelled", payload=payload)

    def step_started(self, step: str, *, attempt: int | None = None, **payload: Any) -> AppendResult:
        """A step begins. Retrying a failed step is a new attempt, and the caller's decision: `attempt=2`."""
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

    def step_skipped(self, step: str, *, attempt: int | None = None, **payload: Any) -> AppendResult:
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
            InvalidTransition: impossible in the run's state, also after a fresh look at the log.
        """
        attempt = self._attempt(step) if attempt is None else attempt
        event = self._event(event_type, step, attempt, engine_attempt, payload or {})
        if event.idempotency_key not in self._sent:
            self._guard(event)
        result = self._store.append_event(event)
        self._sent.add(event.idempotency_key)
        if result.seq == self._state.last_event_seq + 1:
            self._state = fold(self._state, (_record(event, result.seq, result.persisted_at),))
        elif result.seq > self._state.last_event_seq:
            self._state = self._store.current_state(event.run_id)  # Others have written in between.
        return result

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

    def _attempt(self, step: str | None) -> int:
        """The step's newest attempt: the one that is under way."""
        return next((known.logical_attempt_id for known in self._state.steps if known.step_id == step), 1)

    def _guard(self, event: RunEventWrite) -> None:
        if not refusals(self._state, _record(event, self._state.last_event_seq + 1, event.emitted_at)):
            return
        # Others may have written since; and an earlier life of this producer may have sent this very event.
        self._state = self._store.current_state(event.run_id)
        found = refusals(self._state, _record(event, self._state.last_event_seq + 1, event.emitted_at))
        if found and not self._store.holds_key(event.run_id, event.idempotency_key):
            details = found[0].details
            about = "the run" if event.step_id is UNSET else f"step {event.step_id!r}"
            raise InvalidTransition(
                f"{event.event_type} is impossible: {about} is {details['priorState']} "
                f"at attempt {event.logical_attempt_id}. A retry needs a higher attempt",
                **details,
            )


def _record(event: RunEventWrite, seq: int, persisted_at: str) -> RunEventRecord:
    # Copied, since the state keeps the artifacts of the payload, and the caller may go on using its own.
    fields = {name: deepcopy(getattr(event, name)) for name in RunEventWrite.__struct_fields__}
    return RunEventRecord(run_seq=seq, persisted_at=persisted_at, **fields)
