"""Orchestrated runs: work items that finish, fail and start again, artifacts that go stale, issues, model calls."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from runstate.models.model import stable_uuid


def histories(seed: int, runs: int) -> dict[str, list[bytes]]:
    return {f"rundir-{seed}-{number:04d}": _run(f"rundir-{seed}-{number:04d}", number, seed) for number in range(runs)}


def _run(run_id: str, number: int, seed: int) -> list[bytes]:
    luck = random.Random(f"{seed}-{number}")
    lines: list[bytes] = []

    def write(kind: str, payload: dict[str, Any]) -> None:
        members = {
            "event_id": stable_uuid(run_id, str(len(lines))),
            "run_id": run_id,
            "type": kind,
            "payload": payload,
            "trace_id": f"{number:032x}",
            "span_id": f"{len(lines):016x}",
        }
        lines.append(msgspec.json.encode(members))

    write("RUN_CREATED", {"config": {"graph": "site"}, "parameters": {"n": number}})
    write("RUN_STATE_CHANGED", {"old_state": "CREATED", "new_state": "RENDERING"})
    for scope in ("a", "b", "ü"):
        item = f"{run_id}:render:1:{scope}"
        written = {"name": f"{scope}.html", "path": f"artifacts/{scope}.html", "sha256": f"{number:064x}"}
        write(
            "WORK_ITEM_QUEUED",
            {
                "work_item_id": item,
                "worker": "render",
                "attempt": 1,
                "scope_key": scope,
                "inputs": [],
                "outputs": [f"{scope}.html"],
            },
        )
        write("WORK_ITEM_STARTED", {"work_item_id": item})
        write("LLM_CALL_FINISHED", {"model": "large", "tokens_in": 12, "tokens_out": 7, "cost": 0.5, "latency_ms": 9})
        write("ARTIFACT_WRITTEN", {**written, "schema_id": None, "writer_worker": "render"})
        status = "failed" if luck.random() < 0.2 else "finished"
        error = {"code": "E", "message": "1.0", "n": 1.5} if status == "failed" else None
        write("WORK_ITEM_FINISHED", {"work_item_id": item, "status": status, "error": error})
    if number % 3 == 0:
        write("ARTIFACT_STALED", {"name": "a.html", "because": "b.html"})
        issue = {"issue_id": "I-1", "severity": "warn", "message": "late", "gate": "check", "files": ["a.html"]}
        write("ISSUE_OPENED", {"issue": issue})
    if number % 4 == 1:
        write("SOMETHING_NEW", {"x": [1, 2]})
        write("WORK_ITEM_FINISHED", {"work_item_id": "unknown", "status": "finished", "error": None})
    if number % 4 != 3:
        write("RUN_COMPLETED", {"result": {}})
    return lines
