"""The runs that a fleet is made of: a few shapes, drafted and rendered once, with marks where a run's own values go.

The text around the marks is the models' and the logs' own, so it is right as long as they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from msgspec import UNSET

from runstate.logs.ndjson.lines import write_line
from runstate.models.engine import ENGINE, RunEventWrite
from runstate.models.model import Draft
from runstate.models.rundir import RUNDIR, RunEvent

shapes = 61
"""How many different runs there are, apart from their ids and times."""
seed = 11
tenant, plan, plan_version = "acme", "nightly", "42"
run_mark, id_mark, key_mark = "<run>", "00000000-0000-4000-8000-000000000000", "<key>"
minute_mark = "2000-01-01T00:00"
_marks = (run_mark, id_mark, key_mark, minute_mark)


class Template(NamedTuple):
    """Text with a run's own values left out: format it with those that `names` tells of, in that order."""

    text: bytes
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: bytes) -> Template:
        found = sorted((place, mark) for mark in _marks for place in _places(text, mark.encode()))
        text = text.replace(b"%", b"%%")
        for mark in _marks:
            text = text.replace(mark.encode(), b"%b")
        return cls(text, tuple(mark for _, mark in found))


def _places(text: bytes, mark: bytes) -> Iterator[int]:
    place = text.find(mark)
    while place >= 0:
        yield place
        place = text.find(mark, place + 1)


class EngineEvent(NamedTuple):
    """One event of a shape. The first five are equal in all runs, as is everything in the line but its marks."""

    kind: str
    key_rest: bytes
    """What the key is made of behind the run's id."""
    clock: str
    seq: int
    line: Template
    frame: Template
    """The line's frame in an NDJSON log, up to its checksum."""
    has_artifact: bool


class RundirEvent(NamedTuple):
    """One event of a shape of a run directory, up to its links; and what its hash is made of before the last link."""

    line: Template
    hashed: Template


# --- shapes of an engine's run -------------------------------------------------------------------------------


def _clock(number: int) -> str:
    return f":{number * 7 // 1000:02d}.{number * 7 % 1000:03d}Z"


def _engine_drafts(numbers: random.Random) -> Iterator[tuple[Draft, str, int, bool]]:
    """The drafts of one run, each with its step and attempt."""
    place = 0

    def drafted(kind: str, step: str | None = None, attempt: int = 1, payload: dict[str, Any] | None = None) -> Draft:
        nonlocal place
        place += 1
        event = RunEventWrite(
            event_id=id_mark,
            event_type=kind,
            emitted_at=minute_mark + _clock(place),
            run_id=run_mark,
            tenant_id=tenant,
            project_id="warehouse",
            environment_id="production",
            plan_id=plan,
            plan_version=plan_version,
            engine_attempt_id=attempt,
            logical_attempt_id=attempt,
            idempotency_key=key_mark,
            step_id=UNSET if step is None else step,
            payload=UNSET if payload is None else payload,
        )
        return ENGINE.draft(event)[1]

    error = {"error": {"code": "E_TIMEOUT", "message": "no answer within 30 s", "retryable": True}}
    yield drafted("RunStarted"), "RUN", 1, False
    for number in range(numbers.randint(20, 26)):
        step, attempt = f"step-{number:03d}", 1
        yield drafted("StepStarted", step), step, 1, False
        if numbers.random() < 0.05:
            yield drafted("StepFailed", step, 1, error), step, 1, False
            attempt = 2
            yield drafted("StepStarted", step, 2), step, 2, False
        uri = f"s3://artifacts/{run_mark}/{step}/model.parquet"
        made = {"artifacts": [{"name": "model", "uri": uri, "bytes": 1024 + number}]} if number % 3 == 0 else None
        yield drafted("StepCompleted", step, attempt, made), step, attempt, made is not None
    kind = "RunFailed" if numbers.random() < 0.03 else "RunCompleted"
    yield drafted(kind), "RUN", 1, False


@cache
def engine_shapes() -> list[list[EngineEvent]]:
    return [list(_engine_shape(random.Random(seed * 1000 + number))) for number in range(shapes)]


def _engine_shape(numbers: random.Random) -> Iterator[EngineEvent]:
    for seq, (draft, step, attempt, has_artifact) in enumerate(_engine_drafts(numbers), 1):
        clock = draft.emitted_at.removeprefix(minute_mark)
        written, record = write_line(run_mark, seq, draft.emitted_at, draft, None)
        frame = written.partition(b',"crc":"')[0]
        key_rest = f"|{step}|{attempt}|{draft.type}|{plan}|{plan_version}".encode()
        yield EngineEvent(draft.type, key_rest, clock, seq, Template.of(record.body), Template.of(frame), has_artifact)


# --- shapes of a run directory ---------------------------------------------------------------------------------


def _rundir_events(numbers: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "RUN_CREATED", {"config": {"pages": 12}, "parameters": {}}
    yield "RUN_STATE_CHANGED", {"new_state": "RUNNING", "old_state": "CREATED"}
    for number in range(numbers.randint(8, 12)):
        scope = f"page-{number:03d}"
        name = f"site/{scope}.html"
        attempts = 2 if numbers.random() < 0.05 else 1
        for attempt in range(1, attempts + 1):
            item = {"work_item_id": f"{run_mark}:render:{attempt}:{scope}"}
            about = {"worker": "render", "attempt": attempt, "scope_key": scope}
            yield "WORK_ITEM_QUEUED", {**item, **about, "inputs": ["pages.json"], "outputs": [name]}
            yield "WORK_ITEM_STARTED", item
            if attempt < attempts:
                yield "WORK_ITEM_FINISHED", {**item, "status": "failed", "error": "no answer within 30 s"}
                continue
            if number % 3:
                call = {"model": "large", "tokens_in": 1200, "tokens_out": 40 * number, "cost": 0.01, "latency_ms": 900}
                yield "LLM_CALL_FINISHED", call
            written = {"name": name, "path": f"artifacts/{name}", "sha256": f"{number:064x}"}
            yield "ARTIFACT_WRITTEN", {**written, "schema_id": None, "writer_worker": "render"}
            yield "WORK_ITEM_FINISHED", {**item, "status": "finished", "error": None}
    yield "RUN_FAILED" if numbers.random() < 0.03 else "RUN_COMPLETED", {}


@cache
def rundir_shapes() -> list[list[RundirEvent]]:
    return [list(_rundir_shape(random.Random(seed * 1000 + number))) for number in range(shapes)]


def _rundir_shape(numbers: random.Random) -> Iterator[RundirEvent]:
    for place, (kind, payload) in enumerate(_rundir_events(numbers), 1):
        event = RunEvent(
            event_id=f"{id_mark}-{place:03d}",
            run_id=run_mark,
            ts=minute_mark + _clock(place),
            type=kind,
            payload=payload,
            trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
            span_id="00f067aa0ba902b7",
        )
        draft = RUNDIR.draft(event)[1]
        line = draft.render(place, draft.emitted_at, None).partition(b',"prev_hash":"')[0]
        hashed = f"{event.event_id}{event.ts}{kind}{draft.payload}".encode()  # type: ignore[attr-defined]  # a RunDraft
        yield RundirEvent(Template.of(line), Template.of(hashed))
