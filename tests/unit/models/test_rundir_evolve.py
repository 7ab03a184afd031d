"""The fold of a run directory's events: what each type does, in what order things stand, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from itertools import permutations
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.errors import InvalidEvent
from runstate.models.canonical import canonical
from runstate.models.rundir import RUNDIR, Artifact, Issue, RunDirectory, WorkItem
from runstate.models.rundir.events import payload_types

Json = dict[str, Any]
at = "2026-11-15T09:30:00.000Z"
later = "2026-11-15T09:30:01.500Z"
digest = "ab" * 32
item_id = "r-1:render:1:index"


def line(kind: str, payload: Any, ts: str = at, **members: Any) -> bytes:
    """A stored line, put together without the model."""
    event = {"event_id": "e-1", "run_id": "r-1", "ts": ts, "type": kind, "payload": payload}
    return json.dumps(event | {"trace_id": "0" * 32, "span_id": "0" * 16} | members).encode()


def fold(*lines: bytes) -> RunDirectory:
    return RUNDIR.fold(RUNDIR.initial("r-1"), lines)


def queued(name: str = item_id, **members: Any) -> bytes:
    payload = {"work_item_id": name, "worker": "render", "attempt": 1, "scope_key": "index"}
    return line("WORK_ITEM_QUEUED", payload | members)


def started(name: str = item_id, ts: str = at) -> bytes:
    return line("WORK_ITEM_STARTED", {"work_item_id": name}, ts)


def finished(status: str = "finished", ts: str = later, **members: Any) -> bytes:
    return line("WORK_ITEM_FINISHED", {"work_item_id": item_id, "status": status} | members, ts)


def written(name: str = "index.html", ts: str = at, **members: Any) -> bytes:
    return line("ARTIFACT_WRITTEN", {"name": name, "path": f"out/{name}", "sha256": digest} | members, ts)


def opened(issue_id: str = "i-1", severity: str = "error", **members: Any) -> bytes:
    issue = {"issue_id": issue_id, "severity": severity, "message": "no good"}
    return line("ISSUE_OPENED", {"issue": issue | members})


# --- every row of the table ------------------------------------------------------------------------------


def test_before_the_first_event_there_is_no_state() -> None:
    assert fold() == RunDirectory("r-1", "", {}, {}, [], [], 1)


def test_run_created_puts_the_run_in_created() -> None:
    assert fold(line("RUN_CREATED", {"config": {"a": 1}, "parameters": {"b": 2}})) == RunDirectory("r-1", "CREATED")


def test_run_created_needs_neither_config_nor_parameters() -> None:
    assert fold(line("RUN_CREATED", {})).run_state == "CREATED"


def test_run_state_changed_sets_the_run_state() -> None:
    changed = line("RUN_STATE_CHANGED", {"old_state": "CREATED", "new_state": "RENDERING"})
    assert fold(line("RUN_CREATED", {}), changed) == RunDirectory("r-1", "RENDERING")


def test_the_old_state_is_told_and_not_checked() -> None:
    assert fold(line("RUN_STATE_CHANGED", {"old_state": "ELSEWHERE", "new_state": "A"})).run_state == "A"


def test_section_state_changed_sets_the_state_of_that_section() -> None:
    changes = [("a", "RUNNING"), ("b", "RUNNING"), ("a", "DONE")]
    lines = [line("SECTION_STATE_CHANGED", {"section": section, "new_state": new}) for section, new in changes]
    assert fold(*lines).section_states == {"a": "DONE", "b": "RUNNING"}


def test_work_item_queued_adds_a_queued_item() -> None:
    item = WorkItem(item_id, "render", 1, "index", ["a.md"], ["a.html"], "queued", None, None, None)
    assert fold(queued(inputs=["a.md"], outputs=["a.html"])).work_items == [item]


def test_work_item_started_makes_it_running_since_the_events_time() -> None:
    (item,) = fold(queued(), started(ts=later)).work_items
    assert (item.status, item.started_at, item.finished_at) == ("running", later, None)


@pytest.mark.parametrize("status", ["finished", "failed", "skipped"])
def test_work_item_finished_gives_it_that_status_and_time(status: str) -> None:
    (item,) = fold(queued(), started(), finished(status)).work_items
    assert (item.status, item.started_at, item.finished_at, item.error) == (status, at, later, None)


@pytest.mark.parametrize("error", ["words", {"code": "E", "more": [1, None]}, [1.5], False, 0], ids=repr)
def test_work_item_finished_keeps_any_error(error: Any) -> None:
    assert fold(queued(), finished("failed", error=error)).work_items[0].error == error


def test_an_item_that_is_started_again_has_not_ended() -> None:
    (item,) = fold(queued(), started(), finished("failed", error="E"), started(ts=later)).work_items
    assert (item.status, item.started_at, item.finished_at, item.error) == ("running", later, None, None)


def test_artifact_written_enters_the_index() -> None:
    state = fold(written(schema_id="html5", writer_worker="render"))
    artifact = Artifact("out/index.html", digest, "html5", "render", at, False, None)
    assert state.artifacts_index == {"index.html": artifact}


def test_an_artifact_of_no_worker_and_no_schema_says_so() -> None:
    artifact = fold(written()).artifacts_index["index.html"]
    assert (artifact.schema_id, artifact.writer_worker) == (None, None)


def test_an_artifact_may_be_gone() -> None:
    assert fold(written(sha256="")).artifacts_index["index.html"].sha256 == ""


def test_artifact_staled_marks_the_entry_and_says_why() -> None:
    state = fold(written(), line("ARTIFACT_STALED", {"name": "index.html", "because": "index.md changed"}, later))
    artifact = state.artifacts_index["index.html"]
    assert (artifact.stale, artifact.because, artifact.ts) == (True, "index.md changed", at)


def test_an_artifact_that_is_written_again_is_fresh() -> None:
    state = fold(written(), line("ARTIFACT_STALED", {"name": "index.html"}), written(ts=later, sha256="cd" * 32))
    artifact = state.artifacts_index["index.html"]
    assert (artifact.stale, artifact.because, artifact.ts, artifact.sha256) == (False, None, later, "cd" * 32)


def test_issue_opened_adds_the_issue_whole() -> None:
    members: Json = {"gate": "links", "error_code": "DEAD", "files": ["a.md"], "location": {"line": 3}}
    state = fold(opened(suggested_fix="remove it", status="OPEN", **members))
    assert state.issues == [
        Issue("i-1", "error", "no good", "links", "DEAD", ["a.md"], {"line": 3}, "remove it", "OPEN")
    ]


def test_issue_opened_again_replaces_what_was_known() -> None:
    (issue,) = fold(opened(severity="warn"), opened(severity="blocker", message="worse")).issues
    assert (issue.severity, issue.message) == ("blocker", "worse")


def test_issue_resolved_keeps_the_issue_as_resolved() -> None:
    (issue,) = fold(opened(), line("ISSUE_RESOLVED", {"issue_id": "i-1"})).issues
    assert issue.status == "RESOLVED"


def test_a_resolved_issue_may_be_opened_again() -> None:
    (issue,) = fold(opened(), line("ISSUE_RESOLVED", {"issue_id": "i-1"}), opened()).issues
    assert issue.status == "OPEN"


recorded = ["GATE_RUN_STARTED", "GATE_RUN_FINISHED", "LLM_CALL_STARTED", "LLM_CALL_FINISHED", "LLM_CALL_FAILED"]


@pytest.mark.parametrize("kind", [*recorded, "SITE_PUBLISHED"])
def test_what_is_only_recorded_changes_nothing(kind: str) -> None:
    lines = [line("RUN_CREATED", {}), queued(), written(), opened()]
    payload = {"work_item_id": item_id, "name": "index.html", "issue_id": "i-1", "new_state": "X", "status": "failed"}
    assert RUNDIR.dump(fold(*lines, line(kind, payload, later))) == RUNDIR.dump(fold(*lines))


@pytest.mark.parametrize("end", ["COMPLETED", "FAILED", "CANCELLED"])
@pytest.mark.parametrize("payload", [{}, {"result": None}, {"error": {"message": "no"}}], ids=repr)
def test_the_last_event_ends_the_run(end: str, payload: Json) -> None:
    assert fold(line("RUN_CREATED", {}), line(f"RUN_{end}", payload)) == RunDirectory("r-1", end)


def test_a_run_that_ended_is_resumed_by_a_change_of_its_state() -> None:
    assert fold(line("RUN_FAILED", {}), line("RUN_STATE_CHANGED", {"new_state": "RENDERING"})).run_state == "RENDERING"


@pytest.mark.parametrize(
    "unknown",
    [
        started(),
        finished(),
        line("ARTIFACT_STALED", {"name": "index.html"}),
        line("ISSUE_RESOLVED", {"issue_id": "i-1"}),
    ],
    ids=lambda body: json.loads(body)["type"],
)
def test_an_event_about_something_unknown_changes_nothing(unknown: bytes) -> None:
    assert fold(unknown) == fold()


def test_members_that_a_payload_has_beyond_its_type_change_nothing() -> None:
    assert fold(queued(priority=7), opened(colour="red")) == fold(queued(), opened())


# --- told twice ------------------------------------------------------------------------------------------

history = [line("RUN_CREATED", {}), line("RUN_STATE_CHANGED", {"new_state": "A"}), queued(), started(), written()]
history += [finished("failed", error={"code": "E"}), opened(), line("ISSUE_RESOLVED", {"issue_id": "i-1"})]
history += [line("ARTIFACT_STALED", {"name": "index.html", "because": "b"}), line("RUN_COMPLETED", {})]


@pytest.mark.parametrize("place", range(len(history)), ids=lambda place: json.loads(history[place])["type"])
def test_an_event_told_twice_in_a_row_is_told_once(place: int) -> None:
    assert fold(*history[: place + 1], *history[place:]) == fold(*history)


def test_an_item_queued_again_later_keeps_what_became_of_it() -> None:
    lines = [queued(), started(), finished()]
    assert fold(*lines, queued(attempt=2, inputs=["other"])) == fold(*lines)


def test_a_run_created_again_later_stays_where_it_is() -> None:
    assert fold(*history, history[0]) == fold(*history)


@pytest.mark.parametrize("again", range(len(history)))
def test_a_history_told_again_from_any_place_gives_the_same_state(again: int) -> None:
    assert fold(*history, *history[again:]) == fold(*history)


def test_a_start_before_its_queueing_counts_only_when_it_is_told_again() -> None:
    """The state keeps no place in its stream, so the one who folds must: see docs/formats/rundir.md."""
    early = [started(), queued()]
    assert (fold(*early).work_items[0].status, fold(*early, *early).work_items[0].status) == ("queued", "running")


# --- order -----------------------------------------------------------------------------------------------


def test_artifacts_stand_in_the_order_of_their_names_in_the_bytes() -> None:
    names = ["b", "a", "\U0001f600", "\ufb33", "é", "Z", "a/b", "10", "9"]
    body = RUNDIR.dump(fold(*(written(name) for name in names)))
    # RFC 8785 sorts by UTF-16 units, in which U+1F600 comes before U+FB33.
    expected = ["10", "9", "Z", "a", "a/b", "b", "é", "\U0001f600", "\ufb33"]
    assert list(json.loads(body)["artifacts_index"]) == expected


def test_work_items_stand_in_the_order_of_their_first_appearance() -> None:
    state = fold(queued("z"), queued("a"), started("a"), queued("m"), queued("z"), started("z"))
    assert [item.work_item_id for item in state.work_items] == ["z", "a", "m"]


def places(lines: list[bytes]) -> list[list[str]]:
    """The ids of the issues, for every order in which the events may come."""
    return [[issue.issue_id for issue in fold(*order).issues] for order in permutations(lines)]


def always(lines: list[bytes]) -> list[str]:
    (first, *others) = places(lines)
    assert all(other == first for other in others)
    return first


def test_issues_stand_by_severity_first() -> None:
    lines = [opened(s, s, gate=g) for s, g in [("info", "a"), ("warn", "b"), ("error", "c"), ("blocker", "d")]]
    assert always(lines) == ["blocker", "error", "warn", "info"]


def test_issues_of_one_severity_stand_by_gate() -> None:
    lines = [opened("1", gate="z", location={"path": "a"}), opened("2", gate="a", location={"path": "z"}), opened("3")]
    assert always(lines) == ["3", "2", "1"]


def test_issues_of_one_gate_stand_by_path() -> None:
    located = [{"path": "z", "line": 1}, {"path": "a", "line": 9}, None]
    lines = [opened(str(number), location=location) for number, location in enumerate(located)]
    assert always(lines) == ["2", "1", "0"]


def test_an_issue_without_a_place_is_at_its_first_file() -> None:
    lines = [opened("1", files=["m", "a"]), opened("2", location={"path": "n"}), opened("3", location={"path": "l"})]
    assert always(lines) == ["3", "1", "2"]


def test_issues_of_one_path_stand_by_line_as_a_number() -> None:
    lines = [opened(str(number), location={"path": "a", "line": number}) for number in (10, 9, 9.5, 100)]
    assert always(lines) == ["9", "9.5", "10", "100"]


def test_issues_of_one_line_stand_by_id() -> None:
    assert always([opened(name, location={"path": "a", "line": 1}) for name in ("b", "a", "é", "C")]) == [*"Cabé"]


def test_a_resolved_issue_keeps_its_place() -> None:
    state = fold(opened("1", "blocker"), opened("2", "info"), line("ISSUE_RESOLVED", {"issue_id": "1"}))
    assert [(issue.issue_id, issue.status) for issue in state.issues] == [("1", "RESOLVED"), ("2", "OPEN")]


@pytest.mark.parametrize(
    "place", [{"line": 3.0}, {"line": True}, {"line": "3"}, {"path": 1.0}, {"path": {}}, {"path": ""}]
)
def test_an_odd_place_gives_the_same_order_after_a_rest_on_file(place: Json) -> None:
    state = fold(opened("a", location=place), opened("b", location={"line": 2}))
    rested = RUNDIR.load(RUNDIR.dump(state))
    more = opened("c", location={"line": 1})
    assert RUNDIR.dump(RUNDIR.fold(rested, [more])) == RUNDIR.dump(RUNDIR.fold(state, [more]))


# --- refused ---------------------------------------------------------------------------------------------

no_objects: list[Any] = [[], None, "x"]
malformed: list[tuple[str, Any]] = [(kind, {}) for kind in payload_types if kind != "RUN_CREATED"]
malformed += [("RUN_CREATED", {"config": []}), ("RUN_STATE_CHANGED", {"new_state": ""})]
malformed += [("WORK_ITEM_FINISHED", {"work_item_id": "x", "status": "done"})]
malformed += [("WORK_ITEM_QUEUED", {"work_item_id": "x", "worker": "w", "attempt": 0, "scope_key": ""})]
malformed += [("WORK_ITEM_QUEUED", {"work_item_id": "x", "worker": "w", "attempt": 1.5, "scope_key": ""})]
malformed += [("ARTIFACT_WRITTEN", {"name": "x", "path": "x", "sha256": "short"})]
malformed += [("ISSUE_OPENED", {"issue": {"issue_id": "x", "severity": "bad", "message": ""}})]
malformed += [(kind, payload) for kind in (*payload_types, "RUN_FAILED", "SITE_PUBLISHED") for payload in no_objects]
malformed += [("WORK_ITEM_FINISHED", {"work_item_id": "x", "status": "failed", "error": [2**63 + 1]})]


@pytest.mark.parametrize(("kind", "payload"), malformed, ids=str)
def test_a_stored_line_with_a_malformed_payload_is_refused(kind: str, payload: Any) -> None:
    with pytest.raises(InvalidEvent):
        fold(line("RUN_CREATED", {}), line(kind, payload))


@pytest.mark.parametrize(("kind", "payload"), malformed, ids=str)
def test_evolve_refuses_what_a_fold_refuses(kind: str, payload: Any) -> None:
    with pytest.raises(InvalidEvent):
        RUNDIR.evolve(RUNDIR.initial("r-1"), RUNDIR.decode(line(kind, payload)))


broken = [b"", b"{", b"[]", b"null", b"{}", b"\xff", b'{"type":"RUN_CREATED"}', b"[" * 100_000, b'{"a":"\xed\xa0\x80"}']
broken += [line("RUN_CREATED", {}).replace(b'"ts"', b'"at"'), line("RUN_CREATED", {})[:-1]]
broken += [line("RUN_CREATED", {}).replace(b"RUN_CREATED", b"RUN_\xff")]


@pytest.mark.parametrize("body", broken, ids=lambda body: repr(body[:30]))
def test_a_stored_line_that_is_no_event_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidEvent):
        fold(body)


@pytest.mark.parametrize("body", broken, ids=lambda body: repr(body[:30]))
def test_a_stored_line_that_is_no_event_is_not_decoded(body: bytes) -> None:
    with pytest.raises(InvalidEvent):
        RUNDIR.decode(body)


times = [
    "",
    "yesterday",
    "2026-11-15T09:30:00",
    "2026-11-15T09:30:00.",
    "2026-11-15T09:30:00.Z",
    "2026-02-30T00:00:00Z",
]
times += ["2026-11-15T09:30:00.00٣Z", "2026-11-15T09:30:00.000Z\n", "2026-11-15T09:30:00.0000000000Z"]


@pytest.mark.parametrize("ts", times)
def test_a_stored_time_that_is_none_is_refused_wherever_it_stands(ts: str) -> None:
    with pytest.raises(InvalidEvent, match="ts"):
        fold(queued(), started(ts=ts))


@pytest.mark.parametrize(
    "ts", ["2026-11-15T09:30:00Z", "2026-11-15T09:30:00.5Z", "2026-11-15T09:30:00.123456789+05:30"]
)
def test_a_time_in_any_zone_is_kept_as_it_was_written(ts: str) -> None:
    assert fold(queued(), started(ts=at), started(ts=ts)).work_items[0].started_at == ts


def test_an_attempt_that_another_writer_wrote_as_a_float_is_an_integer() -> None:
    assert fold(queued(attempt=2.0)).work_items[0].attempt == 2


def test_what_is_refused_leaves_what_was_folded_before() -> None:
    state = RUNDIR.initial("r-1")
    with pytest.raises(InvalidEvent):
        RUNDIR.fold(state, [queued(), line("WORK_ITEM_STARTED", {})])
    assert [item.status for item in state.work_items] == ["queued"]


# --- the fold itself -------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "é", "\U0001f600", "\ufb33"])
values = st.sampled_from(
    [None, "x", 1e17, 1e21, 2.0**68, 0.1, -0.0, 1.0, {"\ufb33": 1, "\U0001f600": [1e-7]}, "\u2028\0"]
)
stamps = st.sampled_from([at, later, "2026-11-15T09:30:01.501Z", "2026-11-15T10:30:00+01:00", "2026-11-15T09:30:00.5Z"])
locations = st.none() | st.fixed_dictionaries({}, optional={"path": names | values, "line": st.integers(0, 3) | values})
issues = st.fixed_dictionaries(
    {"issue_id": names, "severity": st.sampled_from(["blocker", "error", "warn", "info"]), "message": names},
    optional={
        "gate": names,
        "files": st.lists(names, max_size=2),
        "location": locations,
        "status": st.sampled_from(["OPEN", "RESOLVED"]),
    },
)
queueings = st.fixed_dictionaries(
    {"work_item_id": names, "worker": names, "attempt": st.sampled_from([1, 2, 3.0]), "scope_key": st.just("") | names},
    optional={"inputs": st.lists(names, max_size=2), "outputs": st.lists(names, max_size=2)},
)
payloads: dict[str, st.SearchStrategy[Any]] = {
    "RUN_CREATED": st.just({}),
    "RUN_STATE_CHANGED": st.fixed_dictionaries({"new_state": names}, optional={"old_state": st.none() | names}),
    "SECTION_STATE_CHANGED": st.fixed_dictionaries({"section": names, "new_state": names}),
    "WORK_ITEM_QUEUED": queueings,
    "WORK_ITEM_STARTED": st.fixed_dictionaries({"work_item_id": names}),
    "WORK_ITEM_FINISHED": st.fixed_dictionaries(
        {"work_item_id": names, "status": st.sampled_from(["finished", "failed", "skipped"])},
        optional={"error": values},
    ),
    "ARTIFACT_WRITTEN": st.fixed_dictionaries(
        {"name": names, "path": names, "sha256": st.sampled_from(["", digest])},
        optional={"schema_id": st.none() | names, "writer_worker": st.none() | names},
    ),
    "ARTIFACT_STALED": st.fixed_dictionaries({"name": names}, optional={"because": names}),
    "ISSUE_OPENED": st.fixed_dictionaries({"issue": issues}),
    "ISSUE_RESOLVED": st.fixed_dictionaries({"issue_id": names}),
    "RUN_FAILED": st.dictionaries(names, values, max_size=1),
    "SITE_PUBLISHED": st.dictionaries(names, values, max_size=1),
}
histories = st.lists(
    st.sampled_from(sorted(payloads)).flatmap(lambda kind: st.builds(line, st.just(kind), payloads[kind], stamps)),
    max_size=15,
)


def test_the_histories_know_every_type_that_changes_the_snapshot() -> None:
    assert payload_types.keys() < payloads.keys()


@given(histories)
@settings(max_examples=60, deadline=None)
def test_a_fold_is_one_evolve_after_the_other(lines: list[bytes]) -> None:
    state = RUNDIR.initial("r-1")
    for body in lines:
        state = RUNDIR.evolve(state, RUNDIR.decode(body))
    assert RUNDIR.dump(state) == RUNDIR.dump(fold(*lines))


@given(histories, st.data())
@settings(max_examples=60, deadline=None)
def test_a_fold_may_be_cut_anywhere(lines: list[bytes], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=3)))
    state = RUNDIR.initial("r-1")
    for start, end in zip([0, *cuts], [*cuts, len(lines)], strict=True):
        state = RUNDIR.fold(state, lines[start:end])
    assert RUNDIR.dump(state) == RUNDIR.dump(fold(*lines))


@given(histories)
@settings(max_examples=60, deadline=None)
def test_a_snapshot_is_written_in_the_bytes_of_rfc_8785(lines: list[bytes]) -> None:
    state = fold(*lines)
    assert RUNDIR.dump(state) == canonical(msgspec.to_builtins(state))


@given(histories, st.integers(0, 15))
@settings(max_examples=60, deadline=None)
def test_a_fold_may_rest_on_file_anywhere(lines: list[bytes], cut: int) -> None:
    rested = RUNDIR.load(RUNDIR.dump(fold(*lines[:cut])))
    assert RUNDIR.dump(RUNDIR.fold(rested, lines[cut:])) == RUNDIR.dump(fold(*lines))


@given(histories.filter(bool))
@settings(max_examples=40, deadline=None)
def test_evolve_leaves_the_state_and_the_event_alone(lines: list[bytes]) -> None:
    state, event = fold(*lines[:-1]), RUNDIR.decode(lines[-1])
    before = deepcopy((state, event))
    RUNDIR.evolve(state, event)
    assert (state, event) == before


@given(histories.filter(bool))
@settings(max_examples=40, deadline=None)
def test_the_state_shares_nothing_with_the_one_before_or_the_event(lines: list[bytes]) -> None:
    state, event = fold(*lines[:-1]), RUNDIR.decode(lines[-1])
    before = deepcopy((state, event))
    after = RUNDIR.evolve(state, event)
    for item in after.work_items:
        item.inputs.append("changed")
        item.status = "skipped"
        if isinstance(item.error, dict):
            item.error.clear()
    for issue in after.issues:
        issue.files.append("changed")
        (issue.location or {}).clear()
    for artifact in after.artifacts_index.values():
        artifact.stale = not artifact.stale
    assert (state, event) == before


def test_a_state_that_was_changed_by_hand_is_folded_as_it_is() -> None:
    state = fold(queued("a"), queued("b"))
    state.work_items = [item for item in state.work_items if item.work_item_id == "b"]
    assert [item.work_item_id for item in RUNDIR.fold(state, [queued("a")]).work_items] == ["b", "a"]


@given(histories)
@settings(max_examples=60, deadline=None)
def test_the_snapshot_of_any_history_is_as_its_schema_says(schemas: Callable[[str], Json], lines: list[bytes]) -> None:
    snapshot = msgspec.json.decode(RUNDIR.dump(fold(*lines)))
    jsonschema_rs.Draft202012Validator(schemas("snapshot")).validate(snapshot)


def test_the_status_of_a_run_is_its_state() -> None:
    assert RUNDIR.status(fold(line("RUN_CREATED", {}))) == "CREATED"
