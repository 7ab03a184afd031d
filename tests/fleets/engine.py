"""Runs of a workflow engine: usual ones, retries, impossible transitions, unknown types, events of contract v1."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from runstate.models.engine.events import CanonicalEngineEvent, members_json
from runstate.models.engine.keys import idempotency_key
from runstate.models.model import stable_uuid

_steps = ("extract", "clean", "join", "train", 'quo"ted', "ünïcode")


def histories(seed: int, runs: int) -> dict[str, list[bytes]]:
    return {f"engine-{seed}-{number:04d}": _run(f"engine-{seed}-{number:04d}", number, seed) for number in range(runs)}


def _run(run_id: str, number: int, seed: int) -> list[bytes]:
    luck = random.Random(f"{seed}-{number}")
    run = _Lines(run_id, luck)
    run.write("RunStarted")
    for step in luck.sample(_steps, 4):
        attempt = 1
        run.write("StepStarted", step, attempt)
        while luck.random() < 0.2:
            error = {"code": "TIMEOUT", "message": "no answer", "retryable": True}
            run.write("StepFailed", step, attempt, {"error": error})
            attempt += 1
            run.write("StepStarted", step, attempt)
        run.write("StepCompleted", step, attempt, {"artifacts": [{"name": f"{step}.csv", "rows": 1.5, "z": None}]})
    if number % 4 == 1:
        run.write("StepCompleted", "never-started")
        run.write("RunStarted", attempt=2)
    if number % 4 == 2:
        run.write("SomethingNew", payload={"x": [1, {"b": 2, "a": 1}]})
        run.v1("StepStarted", "old-step")
        run.v1("StepFailed", "old-step", {"error": {"code": "E1", "message": "old", "retryable": False}})
    if number % 4 != 3:
        run.write("RunCompleted" if luck.random() < 0.8 else "RunFailed")
    return run.lines


class _Lines:
    def __init__(self, run_id: str, luck: random.Random) -> None:
        self.run_id, self.luck, self.lines = run_id, luck, list[bytes]()

    def write(
        self, event_type: str, step: str | None = None, attempt: int = 1, payload: dict[str, Any] | None = None
    ) -> None:
        key = idempotency_key(
            run_id=self.run_id,
            step_id=step,
            logical_attempt_id=attempt,
            event_type=event_type,
            plan_id="nightly",
            plan_version="1",
        )
        members: dict[str, Any] = {
            "eventId": stable_uuid(key),
            "eventType": event_type,
            "emittedAt": f"2026-11-15T09:30:{len(self.lines):02d}.000Z",
            "runId": self.run_id,
            "tenantId": ("acme", "globex")[len(self.run_id) % 2],
            "projectId": "p",
            "environmentId": "e",
            "planId": "nightly",
            "planVersion": "1",
            "engineAttemptId": attempt,
            "logicalAttemptId": attempt,
            "idempotencyKey": key,
        }
        if step is not None:
            members["stepId"] = step
        if payload is not None:
            members["payload"] = payload
        self.lines.append(msgspec.json.encode(members))

    def v1(self, event_type: str, step: str, data: dict[str, Any] | None = None) -> None:
        event = CanonicalEngineEvent(
            run_id=self.run_id,
            event_id=stable_uuid(self.run_id, event_type, step),
            event_type=event_type,
            event_data=data or {},
            idempotency_key=f"v1-{event_type}-{step}",
            emitted_at="2026-11-15T11:30:00.000+02:00",
            step_id=step,
        )
        self.lines.append(members_json(event))
