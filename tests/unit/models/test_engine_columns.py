"""The engine's fold over columns: where it has an answer, it is the plain fold's, byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.models.engine import ENGINE
from runstate.models.engine.evolve import RunFact
from runstate.models.model import Folded

pa = pytest.importorskip("pyarrow", reason="The fold over columns needs pyarrow: pip install 'runstate[spark]'")


class Event(NamedTuple):
    """A stored line, and the columns that its log has beside it."""

    seq: int
    type: str
    emitted_at: str
    line: bytes


class Run(NamedTuple):
    stream: str
    events: list[Event]
    ordinary: bool
    """Whether nothing about it is unusual, so that the fold over columns must know it."""


def event(seq: int, kind: str, step: str | None = None, attempt: Any = 1, **members: Any) -> Event:
    """An event of contract v2; `payload` is JSON text, and a member that is None is left out."""
    payload = members.pop("payload", None)
    fields = {
        "runSeq": seq,
        "persistedAt": "2026-11-15T09:30:00.500Z",
        "eventType": kind,
        "emittedAt": "2026-11-15T09:30:00.000Z",
        "runId": "r-1",
        "tenantId": "acme",
        "engineAttemptId": 1,
        "logicalAttemptId": attempt,
        "stepId": step,
    } | members
    text = json.dumps({name: value for name, value in fields.items() if value is not None}, ensure_ascii=False)
    if payload is not None:
        text = f'{text[:-1]},"payload":{payload}}}'
    return Event(seq, kind, fields["emittedAt"], text.encode())


def v1(seq: int, kind: str, step: str | None = None, attempt: int = 1, **members: Any) -> Event:
    """An event of contract v1."""
    fields = {
        "runSeq": seq,
        "persistedAt": "2026-11-15T09:30:00.500Z",
        "runId": "r-1",
        "eventId": "00000000-0000-4000-8000-000000000000",
        "eventType": kind,
        "eventData": {},
        "idempotencyKey": "k",
        "emittedAt": members.get("emittedAt", "2026-11-15T10:30:00+01:00"),
        "logicalAttemptId": str(attempt),
    } | ({} if step is None else {"stepId": step})
    return Event(seq, kind, fields["emittedAt"], json.dumps(fields).encode())


def batch_of(runs: Sequence[Run], encoded: bool = False) -> Any:
    """The batch that holds these runs, its texts dictionary-encoded or not."""
    events = [event for run in runs for event in run.events]
    facts = ENGINE.column_fold().facts([event.line for event in events])
    columns = {
        "seq": pa.array([event.seq for event in events], pa.int64()),
        "type": pa.array([event.type for event in events], pa.string()),
        "emitted_at": pa.array([event.emitted_at for event in events], pa.string()),
    } | dict(zip(facts.schema.names, facts.columns, strict=True))
    if encoded:
        columns |= {name: columns[name].dictionary_encode() for name in ("type", "step_id", "emitted_at")}
    return pa.RecordBatch.from_pydict(columns)


def fold_columns(runs: Sequence[Run], encoded: bool = False) -> list[Folded | None]:
    starts = [sum(len(run.events) for run in runs[:place]) for place in range(len(runs) + 1)]
    return ENGINE.column_fold().fold([run.stream for run in runs], starts, batch_of(runs, encoded))


def fold_lines(runs: Sequence[Run]) -> list[Folded | None]:
    """The same, out of the lines alone."""
    starts = [sum(len(run.events) for run in runs[:place]) for place in range(len(runs) + 1)]
    rows = ENGINE.column_fold().rows([event.line for run in runs for event in run.events])
    return ENGINE.column_fold().fold([run.stream for run in runs], starts, rows)


def fold_plainly(run: Run) -> Folded | None:
    """What the plain fold gives; None where it raises, and nobody may know better."""
    try:
        state = ENGINE.fold(ENGINE.initial(run.stream), [event.line for event in run.events])
        return Folded(state.last_event_seq, ENGINE.status(state), ENGINE.dump(state))
    except Exception:  # noqa: BLE001 - whatever it is, the fold over columns must leave it to the plain fold
        return None


# --- any history -----------------------------------------------------------------------------------------

times = st.sampled_from(
    [
        "2026-11-15T09:30:00Z",
        "2026-11-15T09:30:01.250Z",
        "2026-11-15T09:29:00+00:00",
        "2026-11-15T09:31:00.123456789Z",
        "2026-11-15t09:31:00.0005z",
        "2026-11-15t09:30:00-00:00",
    ]
)
odd_times = st.sampled_from(
    ["0000-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-11-15T09:30:00", "soon", "", 'a"b\\']
)
step_ids = st.sampled_from(["extract", "load", "préparer", "\U0001f600", "a\u2028b\x7f"])
odd_step_ids = st.sampled_from(['q"uote', "back\\slash", "tab\t", "\0", "", "x" * 300])
usual_payloads = st.sampled_from(
    [
        "{}",
        '{"rows":5}',
        '{"artifacts":[]}',
        '{"artifacts":"no list"}',
        '{"artifacts":["a",{"b":[1,null,true],"a":"é"}]}',
        '{"artifacts":[{"uri":"s3://b/k","size":12,"meta":{"z":1,"a":[true]}},7]}',
        '{"artifacts":[0.5,1e17,295147905179352825856.0,-0.0,-0,1.0,1E2,9007199254740991]}',
        '{"artifacts":[{"\ufb33":1e21,"\U0001f600":1e-7,"\\r":0.1}]}',
        '{ "artifacts" : [ "x" , [ ] ] , "artifacts" : [ [ 1 ], {"b" : 1, "a" : 2, "b" : 3} ] }',
        '{"artif\\u0061cts":["\\u00e9\\u2028\\u0000"],"error":{"code":"E","message":"m","retryable":true}}',
        '{"artifacts":[{"\\ufb33":1,"\\ud83d\\ude00":2}]}',
        '{"artifacts":\n["line breaks are white space"]}',
        '{"artifacts":["]\\n["]}',
        '{"artifacts":{"not":"a list"},"error":"no object"}',
        '{"error":{"code":"TIMEOUT","message":"took too long","retryable":false},"artifacts":["log"]}',
        '{"error":{"code":7,"message":null,"retryable":"yes"}}',
        '{"error":{},"other":[[]]}',
        '{"error":null}',
        '["no object"]',
        "null",
        '{"artifactRefs":["s3://a",{"uri":"s3://b","sizeBytes":3}]}',
        '{"artifactRefs":[0.5,"é"],"artifacts":["x"],"error":{"code":"E","message":"m","retryable":false}}',
        '{"artifactRefs":{"not":"a list"},"artifacts":[1]}',
        '{"reason":"nothing to do"}',
        '{"reason":"q\\"uote \u2028 é"}',
        '{"reason":7,"engineRunRef":null}',
        '{"engineRunRef":"w-1"}',
        '{"engineRunRef":{"provider":"temporal","runId":"8f14","nested":{"b":1,"a":[2]}},"reason":"r"}',
        '{"engineRunRef":{"\ufb33":1e21,"\U0001f600":0.5}}',
        '{"engin\\u0065RunRef":[1,[2]]}',
    ]
)
odd_payloads = st.sampled_from(
    [
        '{"artifacts":[99999999999999999999]}',
        '{"artifacts":[9007199254740993]}',
        '{"artifacts":[1e999]}',
        '{"artifacts":["\\ud800"]}',
        '{"rows":"\\q"}',
        '{"engineRunRef":"\\ud800"}',
        '{"engineRunRef":99999999999999999999,"artifactRefs":[99999999999999999999]}',
        '{"reason":"\\q"}',
        '{"artifacts":' + "[" * 2000 + "]" * 2000 + "}",
    ]
)
run_moves = {
    "PENDING": ["RunQueued", "RunApproved", "RunStarted", "RunStarted", "RunStarted", "RunFailed", "RunCancelled"],
    "APPROVED": ["RunStarted", "RunStarted", "RunFailed", "RunCancelled"],
    "RUNNING": ["RunPaused", "RunCompleted", "RunFailed", "RunCancelled"],
    "PAUSED": ["RunResumed", "RunFailed", "RunCancelled"],
}
run_states = {"RunQueued": "PENDING", "RunApproved": "APPROVED", "RunStarted": "RUNNING", "RunResumed": "RUNNING"}
run_states |= {"RunPaused": "PAUSED", "RunCompleted": "DONE", "RunFailed": "DONE", "RunCancelled": "DONE"}
all_types = [*run_states, "StepStarted", "StepCompleted", "StepFailed", "StepSkipped", "SignalAccepted"]


def lawful_move(draw: st.DrawFn, run: str, steps: dict[str, tuple[int, bool]]) -> tuple[str, str | None, int]:
    """An event that is possible: its type, its step, its attempt. `steps` has each one's newest, and if it runs."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([*run_moves.get(run, []), "SignalAccepted"])), None, 1
    step = draw(step_ids)
    attempt, running = steps.get(step, (0, False))
    if running and draw(st.integers(0, 4)):
        return draw(st.sampled_from(["StepCompleted", "StepFailed"])), step, attempt
    fresh = attempt + draw(st.sampled_from([1, 1, 1, 2, 10**14]))
    return draw(st.sampled_from(["StepStarted", "StepStarted", "StepStarted", "StepSkipped"])), step, fresh


@st.composite
def runs_of_events(draw: st.DrawFn, json_values: st.SearchStrategy[Any]) -> Run:
    any_artifacts = st.lists(json_values, max_size=3).map(lambda items: json.dumps({"artifacts": items}))
    payloads = st.none() | usual_payloads | any_artifacts
    chaos = draw(st.sampled_from([0, 0, 1]))
    seq, run, steps, events = 0, "PENDING", dict[str, tuple[int, bool]](), list[Event]()
    for _ in range(draw(st.integers(1, 12))):
        seq += draw(st.sampled_from([1, 1, 1, 2, 5]))
        kind, step, attempt = lawful_move(draw, run, steps)
        run = run_states.get(kind, run)
        if step is not None:
            steps[step] = attempt, kind == "StepStarted"
        members = {"emittedAt": draw(times), "engineAttemptId": draw(st.integers(0, 3)), "payload": draw(payloads)}
        if draw(st.integers(0, 5)) == 0:
            members |= {"note": 'any "text"', "extra": {"eventData": 1}}
        made = event(seq, kind, step, attempt, **members)
        if chaos and draw(st.integers(0, 3)) == 0:
            made = draw(odd_events(made, step, attempt, members))
            seq = made.seq
        events.append(made)
    stream = draw(st.sampled_from(["r-1", "ré", 'r"1', "r\\", "r\n"]))
    return Run(stream, events, not chaos and not steps_after_failure(events))


def steps_after_failure(events: list[Event]) -> bool:
    """Whether a step goes on after its run has failed, which leaves the run to the plain fold."""
    kinds = [event.type for event in events]
    return "RunFailed" in kinds and any(kind.startswith("Step") for kind in kinds[kinds.index("RunFailed") :])


@st.composite
def odd_events(draw: st.DrawFn, made: Event, step: str | None, attempt: int, members: dict[str, Any]) -> Event:
    """Something else in place of the event: impossible, of contract v1, broken, or only strange."""
    match draw(st.integers(0, 11)):
        case 0:
            return event(made.seq, draw(st.sampled_from(all_types)), step, attempt, **members)
        case 1:
            return event(made.seq, made.type, step, draw(st.sampled_from([1, 2, 3])), **members)
        case 2:
            return event(made.seq, made.type, draw(odd_step_ids), attempt, **members)
        case 3:
            return event(made.seq, made.type, draw(st.none() | step_ids), attempt, **members)
        case 4:
            return event(made.seq - draw(st.integers(1, 7)), made.type, step, attempt, **members)
        case 5:
            return event(made.seq, made.type, step, attempt, **members | {"emittedAt": draw(odd_times)})
        case 6:
            return event(made.seq, made.type, step, attempt, **members | {"payload": draw(odd_payloads)})
        case 7:
            odd = draw(st.sampled_from([0, -1, 1.0, 1.5, True, "1", 2**63, 2**70, None]))
            return event(made.seq, made.type, step, attempt, **members | {"engineAttemptId": odd})
        case 8:
            return event(made.seq, made.type, step, draw(st.sampled_from([0, -1, 1.0, "1", 2**64])), **members)
        case 9:
            return v1(made.seq, made.type, step, attempt)
        case 10:
            return event(
                made.seq, made.type, step, attempt, **members | {"engineRunRef": draw(st.sampled_from(["w", 1]))}
            )
        case _:
            cut = draw(st.integers(0, len(made.line)))
            return as_stored(made, made.line[:cut] + draw(st.binary(max_size=2)) + made.line[cut + 1 :])


def as_stored(made: Event, line: bytes) -> Event:
    """The event with another line; its columns are what that one says, as far as anyone can read it."""
    try:
        fact = msgspec.json.decode(line, type=RunFact)
    except ValueError:
        return made._replace(line=line)
    return Event(fact.run_seq, fact.event_type, fact.emitted_at, line)


@given(data=st.data(), encoded=st.booleans())
@settings(max_examples=300, deadline=None)
def test_it_gives_the_plain_folds_bytes_or_no_answer(
    data: st.DataObject, encoded: bool, json_values: st.SearchStrategy[Any]
) -> None:
    runs = data.draw(st.lists(runs_of_events(json_values), min_size=1, max_size=6))
    for answers in (fold_columns(runs, encoded), fold_lines(runs)):
        for run, folded in zip(runs, answers, strict=True):
            assert folded is None or folded == fold_plainly(run)
            assert folded is not None or not run.ordinary


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_histories_of_both_contracts_have_the_plain_folds_bytes(
    data: st.DataObject, histories: st.SearchStrategy[list[bytes]]
) -> None:
    runs = []
    for lines in data.draw(st.lists(histories, min_size=1, max_size=4)):
        members = [json.loads(line) for line in lines]
        events = [
            Event(m["runSeq"], m["eventType"], m["emittedAt"], line) for m, line in zip(members, lines, strict=True)
        ]
        runs.append(Run("r-1", events, False))
    assert fold_lines(runs) == fold_columns(runs)
    for run, folded in zip(runs, fold_columns(runs), strict=True):
        assert folded is None or folded == fold_plainly(run)


# --- what it knows ---------------------------------------------------------------------------------------

Moves = list[tuple[Any, ...]]
artifacts = '{"artifacts":[{"uri":"s3://bucket/key","size":12},"log"]}'
error = '{"error":{"code":"TIMEOUT","message":"took too long","retryable":true}}'
ordinary: dict[str, Moves] = {
    "only_queued": [("RunQueued",)],
    "in_progress": [("RunQueued",), ("RunStarted",), ("StepStarted", "a"), ("StepStarted", "b")],
    "completed": [("RunStarted",), ("StepStarted", "a"), ("StepCompleted", "a"), ("RunCompleted",)],
    "paused": [("RunApproved",), ("RunStarted",), ("RunPaused",)],
    "resumed": [("RunStarted",), ("RunPaused",), ("RunResumed",), ("RunPaused",), ("RunResumed",), ("RunCompleted",)],
    "cancelled_unstarted": [("RunQueued",), ("RunCancelled",)],
    "failed_with_an_error": [("RunStarted",), ("StepStarted", "a"), ("StepFailed", "a", 1, error), ("RunFailed",)],
    "failed_without_an_error": [("StepStarted", "a"), ("StepFailed", "a", 1)],
    "failed_for_the_runs_own_error": [("RunStarted",), ("RunFailed", None, 1, error)],
    "failed_without_a_word": [("RunStarted",), ("StepStarted", "a"), ("RunFailed",)],
    "failed_in_several_steps": [
        ("StepStarted", "a"),
        ("StepStarted", "b"),
        ("StepFailed", "b", 1, error),
        ("StepFailed", "a", 1),
        ("RunFailed", None, 1, '{"error":{"code":"RUN","message":"","retryable":false}}'),
    ],
    "failed_after_retries": [
        ("StepStarted", "a"),
        ("StepFailed", "a", 1, error),
        ("StepStarted", "a", 2),
        ("StepCompleted", "a", 2),
        ("StepStarted", "b"),
        ("StepFailed", "b", 1, error),
        ("StepStarted", "b", 7),
        ("StepFailed", "b", 7, '{"error":{"code":"LAST","message":"m","retryable":true},"artifactRefs":["log"]}'),
        ("RunFailed", None, 1, '{"artifactRefs":["report"]}'),
    ],
    "skipped_with_reasons": [
        ("StepSkipped", "a", 1, '{"reason":"not due"}'),
        ("StepStarted", "a", 2),
        ("StepSkipped", "b", 1, '{"reason":7}'),
    ],
    "started_by_an_engine": [("RunStarted", None, 1, '{"engineRunRef":{"workflowId":"w"}}'), ("RunCompleted",)],
    "references_to_artifacts": [
        ("StepStarted", "a"),
        ("StepFailed", "a", 1, '{"artifactRefs":[{"uri":"s3://a"}],"artifacts":["x"]}'),
        ("StepStarted", "a", 2),
        ("StepCompleted", "a", 2, '{"artifactRefs":["é",0.5]}'),
    ],
    "skipped": [("RunStarted",), ("StepSkipped", "a"), ("StepStarted", "b"), ("StepSkipped", "c", 2)],
    "artifacts": [
        ("StepStarted", "a"),
        ("StepStarted", "b"),
        ("StepCompleted", "b", 1, artifacts),
        ("StepCompleted", "a", 1, '{"artifacts":[0.5,"é"]}'),
        ("RunFailed", None, 1, artifacts),
    ],
    "names_that_utf_16_sorts_otherwise": [
        ("StepStarted", "a"),
        ("StepCompleted", "a", 1, '{"artifacts":[{"\ufb33":1,"\U0001f600":2}]}'),
        ("RunFailed", None, 1, '{"artifacts":[{"\\ufb33":1,"\\ud83d\\ude00":2}]}'),
    ],
    "retried": [
        ("StepStarted", "a"),
        ("StepFailed", "a", 1, error),
        ("StepStarted", "b"),
        ("StepStarted", "a", 2),
        ("StepFailed", "a", 2, '{"artifacts":["second"],"error":{"code":"E"}}'),
        ("StepStarted", "a", 3),
        ("StepCompleted", "a", 3, artifacts),
    ],
    "retried_after_artifacts": [
        ("StepStarted", "a"),
        ("StepFailed", "a", 1, artifacts),
        ("StepStarted", "a", 2),
        ("StepFailed", "a", 2),
        ("StepStarted", "a", 3),
    ],
    "retried_while_it_ran": [("StepStarted", "a"), ("StepStarted", "a", 2), ("StepCompleted", "a", 2)],
    "attempts_of_fifteen_digits": [("StepStarted", "a", 10**15 - 2), ("StepStarted", "a", 10**15 - 1)],
    "unknown_types": [("RunStarted",), ("SignalAccepted",), ("StepCorrected", "a"), ("RunCompleted",)],
    "only_unknown_types": [("SignalAccepted",)],
    "steps_after_the_end": [("RunCancelled",), ("StepStarted", "a"), ("StepCompleted", "a")],
    "ids_beyond_ascii": [("StepStarted", "préparer"), ("StepStarted", "\U0001f600")],
}


def run_of(moves: Moves, stream: str = "r-1") -> Run:
    events = []
    for seq, (kind, *rest) in enumerate(moves, 1):
        step, attempt, payload = rest + [None, 1, None][len(rest) :]
        at = f"2026-11-15T09:30:{seq:02d}.250Z"
        events.append(event(seq, kind, step, attempt, payload=payload, emittedAt=at, engineAttemptId=seq))
    return Run(stream, events, True)


@pytest.mark.parametrize("moves", ordinary.values(), ids=ordinary)
def test_it_knows_ordinary_histories(moves: Moves) -> None:
    run = run_of(moves)
    assert fold_columns([run]) == fold_lines([run]) == [fold_plainly(run)] != [None]


def test_runs_of_one_batch_do_not_mix() -> None:
    runs = [run_of(moves, f"r-{name}") for name, moves in ordinary.items()]
    assert fold_columns(runs) == [fold_plainly(run) for run in runs]


unusual: dict[str, list[Event]] = {
    "no_events": [],
    "contract_v1": [event(1, "RunStarted"), v1(2, "RunCompleted")],
    "an_impossible_run_event": [event(1, "RunStarted"), event(2, "RunStarted")],
    "an_event_after_the_end": [event(1, "RunCancelled"), event(2, "RunCompleted")],
    "an_end_without_a_start": [event(1, "StepCompleted", "a")],
    "two_ends": [event(1, "StepStarted", "a"), event(2, "StepFailed", "a"), event(3, "StepCompleted", "a")],
    "a_start_after_a_skip": [event(1, "StepSkipped", "a"), event(2, "StepStarted", "a")],
    "a_late_event_of_an_earlier_attempt": [
        event(1, "StepStarted", "a", 1),
        event(2, "StepStarted", "a", 2),
        event(3, "StepCompleted", "a", 1),
    ],
    "an_earlier_attempt_after_a_later_one": [event(1, "StepStarted", "a", 2), event(2, "StepStarted", "a", 1)],
    "a_quote_in_an_id": [event(1, "StepStarted", 'a"b')],
    "a_backslash_in_an_id": [event(1, "StepStarted", "a\\b")],
    "a_control_character_in_an_id": [event(1, "StepStarted", "a\tb")],
    "a_quote_in_a_time": [event(1, "RunStarted", emittedAt='"')],
    "a_step_event_without_a_step": [event(1, "StepStarted")],
    "an_attempt_beyond_the_schema": [event(1, "StepStarted", "a", 2**63)],
    "a_seq_that_does_not_rise": [event(2, "RunQueued"), event(2, "RunStarted")],
    "a_first_seq_of_zero": [event(0, "RunStarted")],
    "a_number_that_json_readers_round": [
        event(1, "StepStarted", "a"),
        event(2, "StepCompleted", "a", payload='{"artifacts":[9007199254740993]}'),
    ],
    "a_time_without_a_zone": [event(1, "RunStarted"), event(2, "RunFailed", emittedAt="2026-11-15T09:30:00")],
    "a_payload_that_is_no_utf_8": [
        as_stored(made, made.line.replace(b"rows", b"\xff"))
        for made in (event(1, "StepStarted", "a"), event(2, "StepCompleted", "a", payload='{"rows":5}'))
    ],
    "a_line_that_is_no_json": [event(1, "RunStarted")._replace(line=b"{")],
}


@pytest.mark.parametrize("events", unusual.values(), ids=unusual)
def test_it_leaves_the_unusual_to_the_plain_fold_and_nothing_else(events: list[Event]) -> None:
    neighbour = run_of(ordinary["retried"])
    runs = [neighbour, Run("r-2", events, False), neighbour]
    assert fold_columns(runs) == fold_lines(runs) == [fold_plainly(neighbour), None, fold_plainly(neighbour)]


# --- columns of all kinds --------------------------------------------------------------------------------


def test_a_batch_may_be_a_part_of_a_larger_one() -> None:
    runs = [run_of(moves) for moves in ordinary.values()]
    before, rest = len(runs[0].events), runs[1:]
    starts = [sum(len(run.events) for run in rest[:place]) for place in range(len(rest))]
    sliced = batch_of(runs).slice(before)
    assert ENGINE.column_fold().fold(["r-1"] * len(rest), starts, sliced) == [fold_plainly(run) for run in rest]


def test_a_dictionary_may_say_one_thing_twice() -> None:
    run = run_of(ordinary["completed"])
    batch = batch_of([run])
    twice = pa.DictionaryArray.from_arrays(pa.array([None, 0, 1, None], pa.int8()), pa.array(["a", "a", None]))
    batch = batch.set_column(batch.schema.names.index("step_id"), "step_id", twice)
    assert ENGINE.column_fold().fold(["r-1"], [0], batch) == [fold_plainly(run)]


def test_texts_may_be_large_strings() -> None:
    run = run_of(ordinary["retried"])
    batch = batch_of([run])
    large = pa.schema([(f.name, pa.large_string() if f.type == pa.string() else f.type) for f in batch.schema])
    assert ENGINE.column_fold().fold(["r-1"], [0], batch.cast(large)) == [fold_plainly(run)]


def test_keys_too_long_for_one_number_are_sorted_all_the_same() -> None:
    import numpy as np

    from runstate.models.engine.column_events import _sorted_by

    major, minor = np.array([2**40, 1, 2**40, 1]), np.array([2**30, 5, 4, 2**29])
    assert _sorted_by(major, minor).tolist() == [5, 2**29, 4, 2**30]


def test_no_streams_are_no_answers() -> None:
    assert fold_columns([]) == []


# --- facts -----------------------------------------------------------------------------------------------


@given(lines=st.lists(st.binary(max_size=60)))
@settings(deadline=None)
def test_facts_of_any_bytes_are_rows_of_nulls(lines: list[bytes]) -> None:
    facts = ENGINE.column_fold().facts(lines)
    assert facts.schema == ENGINE.column_fold().schema
    assert facts.to_pylist() == [dict.fromkeys(facts.schema.names)] * len(lines)


@given(lines=st.lists(st.binary(max_size=60)))
@settings(deadline=None)
def test_rows_of_any_bytes_are_for_the_plain_fold(lines: list[bytes]) -> None:
    rows = ENGINE.column_fold().rows(lines)
    rows.validate(full=True)
    assert rows.num_rows == len(lines)
    assert ENGINE.column_fold().fold(["r"] * len(lines), list(range(len(lines))), rows) == [None] * len(lines)


@pytest.mark.parametrize("seq", [-1, 2**53, 2**63, 2**70])
def test_a_seq_that_no_event_has_is_for_the_plain_fold_and_its_neighbours_are_not(seq: int) -> None:
    columns, neighbour = ENGINE.column_fold(), event(1, "RunStarted").line
    lines = [neighbour, neighbour.replace(b'"runSeq": 1,', b'"runSeq": %d,' % seq), neighbour]
    assert lines[0] != lines[1]
    before, odd, after = columns.fold(["r-1", "r-2", "r-3"], [0, 1, 2], columns.rows(lines))
    assert odd is None
    assert None not in (before, after)


@given(cut=st.integers(0, 400), drop=st.integers(0, 3), put=st.binary(max_size=4))
@settings(max_examples=300, deadline=None)
def test_facts_of_a_damaged_line_never_raise(cut: int, drop: int, put: bytes) -> None:
    line = event(1, "StepFailed", "é", payload=artifacts).line
    facts = ENGINE.column_fold().facts([line[:cut] + put + line[cut + drop :]])
    facts.validate(full=True)
    assert facts.num_rows == 1


def test_facts_keep_the_payloads_that_matter() -> None:
    payloads = [
        ("StepCompleted", artifacts),
        ("StepCompleted", error),
        ("StepFailed", error),
        ("StepStarted", artifacts),
    ]
    lines = [event(1, kind, "a", payload=payload).line for kind, payload in payloads]
    assert ENGINE.column_fold().facts(lines)["payload"].to_pylist() == [artifacts, None, error, None]


def test_a_model_imports_pyarrow_only_when_asked_for_its_columns() -> None:
    script = (
        "import sys, runstate.models.engine as e; a = {'pyarrow', 'numpy'} & set(sys.modules); e.ENGINE.column_fold()"
    )
    script += "; print(a or '-', 'pyarrow' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["-", "True"]
