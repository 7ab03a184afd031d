"""What events say about work: the same words for every model, and nothing that a payload holds can stop them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from runstate.models.activity import (
    Activity,
    ActivityKind,
    name_chars_max,
    read_amount,
    read_count,
    read_name,
)
from runstate.models.canonical import integer_max
from runstate.models.engine import ENGINE, RunEventRecord
from runstate.models.rundir import RUNDIR, RunEvent
from runstate.models.tagged import Fact, TaggedModel

golden = Path(__file__).parents[2] / "golden"
at = "2026-11-15T09:30:00.000Z"
item = "r-1:render:2:index:de"


def of_engine(kind: str, payload: Any = UNSET, step_id: Any = UNSET, attempt: int = 2) -> list[Activity]:
    record = RunEventRecord(
        event_id="e",
        event_type=kind,
        emitted_at=at,
        run_id="r-1",
        tenant_id="t",
        project_id="p",
        environment_id="e",
        plan_id="nightly",
        plan_version="1",
        engine_attempt_id=1,
        logical_attempt_id=attempt,
        idempotency_key="k",
        step_id=step_id,
        payload=payload,
        run_seq=1,
        persisted_at=at,
    )
    return ENGINE.activities(record)


def of_rundir(kind: str, payload: Any = None, span_id: str = "b7ad6b7169203331") -> list[Activity]:
    given = {} if payload is None else payload
    event = RunEvent(event_id="e", run_id="r-1", ts=at, type=kind, payload=given, trace_id="0" * 32, span_id=span_id)
    return RUNDIR.activities(event)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("RunQueued", "run_queued"),
        ("RunStarted", "run_started"),
        ("RunCompleted", "run_finished"),
        ("RunFailed", "run_failed"),
        ("RunCancelled", "run_cancelled"),
    ],
)
def test_an_engine_s_run_is_named_for_its_plan(kind: str, expected: ActivityKind) -> None:
    assert of_engine(kind) == [Activity(kind=expected, name="nightly", attempt=2, at=at)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("StepStarted", "started"),
        ("StepCompleted", "finished"),
        ("StepFailed", "failed"),
        ("StepSkipped", "skipped"),
    ],
)
def test_an_engine_s_step_is_told_apart_by_its_attempt(kind: str, expected: ActivityKind) -> None:
    assert of_engine(kind, step_id="load") == [
        Activity(kind=expected, name="load", scope="load|2", attempt=2, at=at),
    ]


@pytest.mark.parametrize("kind", ["RunPaused", "RunResumed", "RunApproved", "SignalAccepted", "Whatever"])
def test_an_engine_s_other_events_are_no_activity(kind: str) -> None:
    assert of_engine(kind) == []


def test_calls_that_a_step_reports_come_before_its_end() -> None:
    calls = [
        {"model": "m-1", "tokensIn": 900, "tokensOut": 80.0, "cost": 0.5, "latencyMs": 830},
        {"model": "m-2", "error": {"code": "TIMEOUT"}},
        {"status": "failed"},
        "no call",
    ]
    assert of_engine("StepCompleted", {"calls": calls}, "load") == [
        Activity(kind="call", name="m-1", attempt=2, at=at, cost=0.5, tokens_in=900, tokens_out=80, duration_ms=830.0),
        Activity(kind="call", name="m-2", attempt=2, at=at, outcome="failed"),
        Activity(kind="call", attempt=2, at=at, outcome="failed"),
        Activity(kind="finished", name="load", scope="load|2", attempt=2, at=at),
    ]


def test_a_run_directory_s_run_is_named_for_its_graph() -> None:
    assert of_rundir("RUN_CREATED", {"config": {"graph": "site"}}) == [Activity(kind="run_queued", name="site", at=at)]


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        ("RUN_STATE_CHANGED", {"new_state": "RENDERING"}, "run_resumed"),
        ("RUN_STATE_CHANGED", {"new_state": "FAILED"}, "run_failed"),
        ("RUN_COMPLETED", {}, "run_finished"),
        ("RUN_FAILED", {}, "run_failed"),
        ("RUN_CANCELLED", {}, "run_cancelled"),
    ],
)
def test_a_run_directory_s_run_begins_and_ends(kind: str, payload: dict[str, Any], expected: ActivityKind) -> None:
    assert of_rundir(kind, payload) == [Activity(kind=expected, at=at)]


def test_a_work_item_is_queued_by_name() -> None:
    payload = {"work_item_id": item, "worker": "render", "attempt": 2, "scope_key": "index"}
    assert of_rundir("WORK_ITEM_QUEUED", payload) == [
        Activity(kind="queued", name="render", scope=item, attempt=2, at=at),
    ]


@pytest.mark.parametrize("status", ["finished", "failed", "skipped"])
def test_a_work_item_ends_as_its_status_says(status: ActivityKind) -> None:
    assert of_rundir("WORK_ITEM_FINISHED", {"work_item_id": item, "status": status}) == [
        Activity(kind=status, name="render", scope=item, attempt=2, at=at),
    ]


@pytest.mark.parametrize("name", ["free", "r-1:render", "r-1:render:x:y", "r-1:render:²:y", "r-2:render:1:y"])
def test_an_item_whose_id_follows_no_convention_has_no_name(name: str) -> None:
    assert of_rundir("WORK_ITEM_STARTED", {"work_item_id": name}) == [Activity(kind="started", scope=name, at=at)]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"tokens": 512, "cost": 0.0125, "latency_ms": 830}, (0.0125, 512, None, 830.0)),
        ({"input_tokens": 7, "output_tokens": 2, "cost_usd": 1}, (1.0, 7, 2, None)),
        ({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}, (None, 7, 2, None)),
        ({"tokens": {"input": 7, "output": 2}, "latency_s": 1.5}, (None, 7, 2, 1500.0)),
        ({"tokens": {"input": 7}, "latency": 3}, (None, 7, None, None)),
        ({"latency_s": 1e308}, (None, None, None, None)),
        ({"tokens": -1, "cost": -1, "latency_ms": True}, (None, None, None, None)),
        ({"tokens": 2**60, "cost": 10**400, "latency_ms": "830"}, (None, None, None, None)),
    ],
)
def test_a_call_s_figures_are_read_under_the_names_in_use(payload: dict[str, Any], expected: Any) -> None:
    (call,) = of_rundir("LLM_CALL_FINISHED", payload | {"model": "m-1"})
    assert (call.name, call.outcome) == ("m-1", "finished")
    assert (call.cost, call.tokens_in, call.tokens_out, call.duration_ms) == expected


def test_a_call_is_told_apart_by_its_id_and_else_by_its_span() -> None:
    assert of_rundir("LLM_CALL_STARTED", {"call_id": "c-1"})[0].scope == "c-1"
    assert of_rundir("LLM_CALL_FAILED", {"call_id": 1}) == [
        Activity(kind="call", scope="b7ad6b7169203331", at=at, outcome="failed"),
    ]


def test_a_model_that_defines_none_has_no_activities() -> None:
    class Opened(msgspec.Struct, tag="opened"):
        pass

    class Door(TaggedModel[Opened, Opened]):
        name, version = "door", 1
        events, state = Opened, Opened

        def evolve(self, state: Opened, event: Fact[Opened]) -> Opened:
            return state

    assert Door().activities(Fact("s", Opened(), "k")) == []


def test_the_golden_run_tells_of_its_call() -> None:
    lines = (golden / "rundir_events.ndjson").read_bytes().strip().split(b"\n")
    found = [activity for line in lines for activity in RUNDIR.activities(RUNDIR.decode(line))]
    (call,) = [activity for activity in found if activity.kind == "call"]
    assert (call.name, call.tokens_in, call.cost, call.duration_ms) == ("m-1", 512, 0.0125, 830.0)
    assert {"run_queued", "queued", "started", "finished"} <= {activity.kind for activity in found}


@pytest.mark.parametrize("value", [["finished"], {"finished": 1}, None, 1, "", "unheard-of"])
def test_an_end_that_is_no_status_is_no_activity(value: Any) -> None:
    assert of_rundir("WORK_ITEM_FINISHED", {"work_item_id": item, "status": value}) == []


@pytest.mark.parametrize("value", [["r"], {"r": 1}, None, 1, "", "\ud800"])
def test_an_item_without_an_id_is_no_activity(value: Any) -> None:
    payload = {"work_item_id": value, "worker": "render", "status": "failed"}
    assert [of_rundir(f"WORK_ITEM_{kind}", payload) for kind in ("QUEUED", "STARTED", "FINISHED")] == [[], [], []]


@pytest.mark.parametrize("value", [["FAILED"], {"FAILED": 1}, None, 1, "", "CREATED"])
def test_a_state_that_says_nothing_about_work_is_no_activity(value: Any) -> None:
    assert of_rundir("RUN_STATE_CHANGED", {"new_state": value}) == []


def test_a_name_is_cut_to_what_anybody_reads() -> None:
    assert read_name("x" * 10_000) == "x" * (name_chars_max - 1) + "…"
    assert read_name("\ud800") == ""


@pytest.mark.parametrize("value", [True, "1", None, [], -1, 0.5, 2**53, math.inf, math.nan])
def test_what_is_no_count_is_none(value: Any) -> None:
    assert read_count(value) is None


@pytest.mark.parametrize("value", [True, "1", None, {}, -0.5, -1, 2**53, math.inf, math.nan])
def test_what_is_no_amount_is_none(value: Any) -> None:
    assert read_amount(value) is None


numbers = st.one_of(st.integers(), st.floats(), st.booleans(), st.just(10**400))
anything = st.recursive(
    st.one_of(st.none(), numbers, st.text(max_size=5), st.sampled_from(["finished", "r-1:w:1:s", "COMPLETED"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
call_names = ["model", "tokensIn", "tokensOut", "cost", "latencyMs", "status", "error", "attempt"]
open_names = ["tokens", "input_tokens", "latency_ms", "latency_s", "call_id", "work_item_id", "worker", "status"]
payloads = st.dictionaries(
    st.sampled_from([*call_names, *open_names, "new_state", "config", "calls"]),
    st.one_of(anything, st.lists(st.dictionaries(st.sampled_from(call_names), anything), max_size=2)),
)


def check(activity: Activity) -> None:
    """Whether it fits its struct, and the columns that spans are written to."""
    assert activity.kind in get_args(ActivityKind)
    msgspec.convert(msgspec.to_builtins(activity), Activity)
    for figure in (activity.cost, activity.duration_ms):
        assert figure is None or (type(figure) is float and math.isfinite(figure) and figure >= 0)
    for figure in (activity.tokens_in, activity.tokens_out, activity.attempt):
        assert figure is None or (type(figure) is int and 0 <= figure <= integer_max)
    f"{activity.name}{activity.scope}".encode()


@given(st.sampled_from(["RunStarted", "StepStarted", "StepFailed", "StepSkipped"]), payloads, st.integers(-5, 2**70))
def test_no_payload_stops_an_engine_s_activities(kind: str, payload: dict[str, Any], attempt: int) -> None:
    for activity in of_engine(kind, payload, "load" if kind.startswith("Step") else UNSET, attempt):
        check(activity)


kinds = ["RUN_CREATED", "RUN_STATE_CHANGED", "RUN_FAILED", "WORK_ITEM_QUEUED", "WORK_ITEM_STARTED"]
call_kinds = ["WORK_ITEM_FINISHED", "LLM_CALL_STARTED", "LLM_CALL_FINISHED", "LLM_CALL_FAILED"]


@given(st.sampled_from([*kinds, *call_kinds]), payloads)
def test_no_payload_stops_a_run_directory_s_activities(kind: str, payload: dict[str, Any]) -> None:
    for activity in of_rundir(kind, payload):
        check(activity)
