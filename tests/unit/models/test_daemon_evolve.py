"""The fold of a daemon's events: every row of the tables, and that a second replay changes nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.models.daemon_histories import events, histories, of_links, of_queues, of_steps, random_history

from runstate.errors import InvalidEvent, InvalidJson
from runstate.models.activity import Activity
from runstate.models.daemon import DAEMON, MaterializedState, Pipeline, QueueItem, WorkerRecord, event_types, scoped
from runstate.models.daemon import events as e
from runstate.models.daemon.events import DaemonEvent
from runstate.models.daemon.lines import encode
from runstate.models.daemon.state import Session, Signal, Step, StoredRunbook, Workspace
from runstate.models.model import Alert

created = e.PipelineCreated("p", "build", "nightly", {"a": 1}, "h", "/src", "build", 7)
started = e.WorkerStarted("w", "/src", "h", "q", 2)
pushed = e.QueuePushed("q", "1", {"n": 1}, 7)
taken = e.QueueTaken("q", "1", "w")


def fold(*found: DaemonEvent) -> MaterializedState:
    """As a log would have them: each event with an id of its own."""
    named = [
        event if event.event_id else msgspec.structs.replace(event, event_id=f"e{number}")
        for number, event in enumerate(found)
    ]
    return DAEMON.fold(DAEMON.initial("daemon"), map(encode, named))


def pipeline(*found: DaemonEvent) -> Pipeline:
    return fold(created, *found).pipelines["p"]


def item(*found: DaemonEvent) -> QueueItem:
    return fold(started, pushed, *found).queue_items["q"]["1"]


# --- every row of the tables -----------------------------------------------------------------------------------------


def test_before_the_first_event_all_six_maps_are_empty() -> None:
    assert fold() == MaterializedState({}, {}, {}, {}, {}, {})
    assert DAEMON.dump(fold()) == (
        b'{"pipelines":{},"queue_items":{},"runbooks":{},"sessions":{},"workers":{},"workspaces":{}}'
    )


def test_pipeline_created_inserts_it_at_its_first_step() -> None:
    step = Step("build", "", "pending", None, None, None, None)
    made = Pipeline("p", "build", "nightly", "", {"a": 1}, "h", "/src", 7, step, (), None, None)
    assert fold(created).pipelines == {"p": made}


def test_pipeline_advanced_finalizes_the_current_step_and_goes_on() -> None:
    found = pipeline(e.StepStarted("p", "build", "ag"), e.PipelineAdvanced("p", "test"))
    assert (found.current.name, found.current.status, found.current.agent_id) == ("test", "pending", None)
    assert [(step.name, step.status, step.agent_id) for step in found.history] == [("build", "completed", "ag")]


def test_a_step_that_has_failed_stays_failed_when_the_pipeline_goes_on() -> None:
    found = pipeline(e.StepFailed("p", "build", "no"), e.PipelineAdvanced("p", "mend"))
    assert [(step.name, step.status, step.error) for step in found.history] == [("build", "failed", "no")]


def test_pipeline_deleted_removes_it() -> None:
    assert fold(created, e.PipelineDeleted("p")).pipelines == {}


def test_pipeline_updated_merges_variables() -> None:
    assert pipeline(e.PipelineUpdated("p", {"b": 2}), e.PipelineUpdated("p", {"a": 3})).vars == {"a": 3, "b": 2}


def test_step_started_marks_it_running_and_sets_the_agent() -> None:
    current = pipeline(e.StepStarted("p", "build", "ag")).current
    assert (current.status, current.agent_id) == ("running", "ag")


def test_step_waiting_marks_it_waiting_with_a_reason() -> None:
    current = pipeline(e.StepStarted("p", "build", "ag"), e.StepWaiting("p", "build", "why?")).current
    assert (current.status, current.reason, current.agent_id) == ("waiting", "why?", "ag")


def test_step_completed_marks_it_completed() -> None:
    assert pipeline(e.StepCompleted("p", "build")).current.status == "completed"


def test_step_failed_marks_it_failed_with_its_error() -> None:
    current = pipeline(e.StepFailed("p", "build", "no")).current
    assert (current.status, current.error) == ("failed", "no")


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [(0, "completed", None), (2, "failed", "exited with 2"), (None, "failed", "exited without an exit code")],
)
def test_an_exit_finalizes_the_step_by_its_code(code: int | None, status: str, error: str | None) -> None:
    by_shell = pipeline(e.ShellExited("p", "build", code)).current
    by_agent = pipeline(e.StepStarted("p", "build", "ag"), e.AgentExited("ag", code)).current
    assert (by_shell.status, by_shell.error) == (by_agent.status, by_agent.error) == (status, error)


@pytest.mark.parametrize(
    ("event", "status", "error"),
    [
        (e.AgentWorking("ag"), "running", None),
        (e.AgentWaiting("ag"), "waiting", None),
        (e.AgentFailed("ag", "no"), "failed", "no"),
        (e.AgentGone("ag"), "failed", "session terminated"),
    ],
    ids=str,
)
def test_what_an_agent_does_is_seen_in_its_step(event: DaemonEvent, status: str, error: str | None) -> None:
    found = pipeline(e.StepStarted("p", "build", "ag"), e.StepWaiting("p", "build"), event)
    assert (found.current.status, found.current.error) == (status, error)


def test_agent_signal_sets_the_signal() -> None:
    found = pipeline(e.StepStarted("p", "build", "ag"), e.AgentSignal("ag", "done", "ok"))
    assert found.current.agent_signal == Signal("done", "ok")


def test_an_agent_of_a_step_that_is_over_is_not_heard() -> None:
    before = [e.StepStarted("p", "build", "ag"), e.PipelineAdvanced("p", "test")]
    assert pipeline(*before, e.AgentFailed("ag", "late")) == pipeline(*before)


def test_an_agent_is_known_after_a_state_was_loaded() -> None:
    state = DAEMON.load(DAEMON.dump(fold(created, e.StepStarted("p", "build", "ag"))))
    after = DAEMON.fold(state, [encode(e.AgentFailed("ag", "no"))])
    assert after.pipelines["p"].current.status == "failed"


def test_runbook_loaded_keeps_the_first_of_a_hash() -> None:
    state = fold(e.RunbookLoaded("h", 1, {"a": 1}), e.RunbookLoaded("h", 2, {"b": 1}))
    assert state.runbooks == {"h": StoredRunbook("h", 1, {"a": 1})}


def test_session_created_inserts_it_and_links_its_pipeline() -> None:
    state = fold(created, e.SessionCreated("s", "p"))
    assert (state.sessions, state.pipelines["p"].session_id) == ({"s": Session("s", "p")}, "s")


def test_session_deleted_removes_it_and_the_link() -> None:
    state = fold(created, e.SessionCreated("s", "p"), e.SessionDeleted("s"))
    assert (state.sessions, state.pipelines["p"].session_id) == ({}, None)


def test_a_link_to_a_newer_session_outlives_the_older_one() -> None:
    state = fold(created, e.SessionCreated("s", "p"), e.SessionCreated("t", "p"), e.SessionDeleted("s"))
    assert state.pipelines["p"].session_id == "t"


def test_workspace_created_inserts_it_and_links_its_owner() -> None:
    state = fold(created, e.WorkspaceCreated("ws", "/ws", "main", "p", "ephemeral"))
    assert state.workspaces == {"ws": Workspace("ws", "/ws", "main", "p", "ephemeral", "creating", None)}
    assert state.pipelines["p"].workspace_id == "ws"


def test_workspace_ready_and_failed_set_its_status() -> None:
    ready = fold(e.WorkspaceCreated("ws", "/ws"), e.WorkspaceFailed("ws", "no"), e.WorkspaceReady("ws"))
    failed = fold(e.WorkspaceCreated("ws", "/ws"), e.WorkspaceReady("ws"), e.WorkspaceFailed("ws", "no"))
    found = [(state.workspaces["ws"].status, state.workspaces["ws"].reason) for state in (ready, failed)]
    assert found == [("ready", None), ("failed", "no")]


def test_workspace_deleted_removes_it_and_the_link() -> None:
    state = fold(created, e.WorkspaceCreated("ws", "/ws", owner="p"), e.WorkspaceDeleted("ws"))
    assert (state.workspaces, state.pipelines["p"].workspace_id) == ({}, None)


def test_worker_started_inserts_or_updates_it() -> None:
    again = e.WorkerStarted("w", "/src", "h2", "q", 5)
    assert fold(started).workers == {"w": WorkerRecord("w", "", "/src", "h", "q", 2, {})}
    assert fold(started, again).workers == {"w": WorkerRecord("w", "", "/src", "h2", "q", 5, {})}


def test_a_dispatched_item_is_tracked_on_its_worker_while_it_is_there() -> None:
    dispatched = [started, pushed, taken, e.WorkerItemDispatched("w", "1", "p")]
    assert fold(*dispatched).workers["w"].dispatched == {"1": "p"}
    for over in (e.QueueCompleted("q", "1"), e.QueueFailed("q", "1", "no"), e.QueueItemRetry("q", "1")):
        assert fold(*dispatched, over).workers["w"].dispatched == {}


def test_what_a_worker_has_not_taken_is_not_tracked_on_it() -> None:
    assert fold(started, pushed, e.WorkerItemDispatched("w", "1", "p")).workers["w"].dispatched == {}


def test_worker_stopped_removes_it_and_leaves_its_items() -> None:
    state = fold(started, pushed, taken, e.WorkerStopped("w"))
    assert (state.workers, state.queue_items["q"]["1"].status) == ({}, "taken")


def test_queue_pushed_inserts_a_pending_item_at_the_end() -> None:
    state = fold(pushed, e.QueuePushed("q", "0", None, 1))
    assert list(state.queue_items["q"].values()) == [
        QueueItem("1", {"n": 1}, 7, "pending", None, None, 0, ()),
        QueueItem("0", None, 1, "pending", None, None, 0, ()),
    ]


def test_queue_taken_sets_status_and_worker() -> None:
    assert (item(taken).status, item(taken).worker_name) == ("taken", "w")


def test_queue_completed_removes_the_item() -> None:
    assert fold(started, pushed, taken, e.QueueCompleted("q", "1")).queue_items == {}


def test_queue_failed_counts_each_failure() -> None:
    found = item(taken, e.QueueFailed("q", "1", "a"), taken, e.QueueFailed("q", "1", "a"))
    assert (found.status, found.worker_name, found.error, found.failure_count) == ("failed", None, "a", 2)


def test_queue_item_retry_resets_the_item() -> None:
    found = item(taken, e.QueueFailed("q", "1", "a"), e.QueueItemRetry("q", "1"))
    assert found == QueueItem("1", {"n": 1}, 7, "pending", None, None, 0, ())


def test_a_dead_item_is_neither_taken_nor_failed() -> None:
    dead = [taken, e.QueueFailed("q", "1", "a"), e.QueueItemDead("q", "1")]
    found = item(*dead)
    assert (found.status, found.failure_count) == ("dead", 1)
    assert item(*dead, taken) == item(*dead, e.QueueFailed("q", "1", "b")) == found


def test_only_a_retry_brings_a_dead_item_back() -> None:
    assert item(e.QueueItemDead("q", "1"), e.QueueItemRetry("q", "1")).status == "pending"


def test_workers_and_queues_of_two_namespaces_are_strangers() -> None:
    both = [event for each in (started, pushed) for event in (each, msgspec.structs.replace(each, namespace="ns"))]
    state = fold(*both, msgspec.structs.replace(taken, namespace="ns"))
    assert list(state.workers) == list(map(str, ["w", "ns/w"]))
    assert {key: queue["1"].status for key, queue in state.queue_items.items()} == {"q": "pending", "ns/q": "taken"}


def test_a_scoped_name_is_bare_without_a_namespace() -> None:
    assert (scoped("", "q"), scoped("ns", "q"), scoped("a/b", "q")) == ("q", "ns/q", "a/b/q")


def test_what_is_created_again_is_created_anew_and_its_links_are_dropped() -> None:
    other = msgspec.structs.replace(created, id="p2")
    session = [e.SessionCreated("s", "p"), e.SessionCreated("s", "p2")]
    workspace = [e.WorkspaceCreated("ws", "/ws", owner="p"), e.WorkspaceCreated("ws", "/ws", owner="p2")]
    state = fold(created, other, *session, *workspace)
    links = {key: (found.session_id, found.workspace_id) for key, found in state.pipelines.items()}
    assert links == {"p": (None, None), "p2": ("s", "ws")}
    again = fold(
        started, pushed, taken, e.WorkerItemDispatched("w", "1", "p"), e.QueuePushed("q", "2", None, 0), pushed
    )
    assert (again.workers["w"].dispatched, list(again.queue_items["q"])) == ({}, ["2", "1"])
    assert again.queue_items["q"]["1"].status == "pending"
    assert fold(created, e.StepStarted("p", "build", "ag"), created) == fold(created)


# --- what changes nothing --------------------------------------------------------------------------------------------

signals = [
    kind
    for kind in event_types
    if kind.__name__
    in (
        "CommandRun",
        "TimerStart",
        "SessionInput",
        "PipelineResume",
        "PipelineCancel",
        "WorkspaceDrop",
        "Shutdown",
        "Custom",
        "WorkerWake",
        "WorkerPollComplete",
        "AgentWaiting",
    )
]


@given(history=histories(), signal=events(tuple(signals)))
@settings(max_examples=100)
def test_a_signal_changes_nothing(history: list[DaemonEvent], signal: DaemonEvent) -> None:
    assert DAEMON.dump(fold(*history, signal)) == DAEMON.dump(fold(*history))


@given(event=events())
def test_an_event_about_something_unknown_changes_nothing(event: DaemonEvent) -> None:
    makes = (e.PipelineCreated, e.SessionCreated, e.WorkspaceCreated, e.RunbookLoaded, e.WorkerStarted, e.QueuePushed)
    assert (fold(event) == fold()) != isinstance(event, makes)


groups = {"all": event_types, "steps": of_steps, "links": of_links, "queues": of_queues}


@pytest.mark.parametrize("group", groups)
def test_replaying_any_stretch_a_second_time_gives_identical_bytes(group: str) -> None:
    for seed in range(500):
        luck = random.Random(seed)
        before, stretch = (random_history(luck, groups[group]) for _ in range(2))
        once = DAEMON.dump(replayed(before, stretch))
        assert DAEMON.dump(replayed(before, stretch, stretch)) == once, (seed, before, stretch)


@pytest.mark.parametrize("group", groups)
def test_replaying_the_same_entries_twice_and_any_prefix_twice_gives_identical_bytes(group: str) -> None:
    for seed in range(200):
        luck = random.Random(seed)
        history = random_history(luck, groups[group])
        whole, prefix = DAEMON.dump(replayed(history)), history[: luck.randint(0, len(history))]
        assert DAEMON.dump(replayed(history, history)) == whole
        assert DAEMON.dump(replayed(prefix, prefix)) == DAEMON.dump(replayed(prefix))
        assert DAEMON.dump(replayed(prefix, history)) == whole


def replayed(*histories: list[DaemonEvent]) -> MaterializedState:
    return DAEMON.fold(DAEMON.initial("daemon"), [encode(event) for history in histories for event in history])


# --- the fold as a whole ---------------------------------------------------------------------------------------------


@given(history=histories())
@settings(max_examples=100)
def test_evolve_and_fold_are_the_same_and_evolve_leaves_its_state_alone(history: list[DaemonEvent]) -> None:
    state, bodies = DAEMON.initial("daemon"), []
    for event in history:
        before = DAEMON.dump(state)
        after = DAEMON.evolve(state, event)
        assert DAEMON.dump(state) == before
        state = after
        bodies.append(DAEMON.dump(state))
    assert [DAEMON.dump(replayed(history[: n + 1])) for n in range(len(history))] == bodies


def test_a_pipeline_with_an_agent_is_deleted_from_a_state_that_was_just_read() -> None:
    read = DAEMON.load(DAEMON.dump(fold(created, e.StepStarted("p", "build", "ag"))))
    assert DAEMON.evolve(read, e.PipelineDeleted("p")).pipelines == {}


def test_items_of_one_id_in_two_queues_are_given_back_each_on_its_own() -> None:
    way = [
        e.WorkerStarted("w", "", "", "q2", 1),
        e.QueuePushed("q1", "i", 0, 0),
        e.QueuePushed("q2", "i", 0, 0),
        e.QueueTaken("q2", "i", "w"),
        e.QueueTaken("q1", "i", "w"),
        e.WorkerStarted("w", "", "", "q1", 1),
    ]
    tail = [e.WorkerItemDispatched("w", "i", "p"), e.QueueCompleted("q2", "i")]
    once, twice = fold(*way, *tail), fold(*way, *tail, *tail)
    assert once.workers["w"].dispatched == {"i": "p"}
    assert DAEMON.dump(once) == DAEMON.dump(twice)


@given(history=histories(), place=st.integers(0, 30))
@settings(max_examples=100)
def test_a_state_that_was_written_and_read_folds_on_like_the_one_it_was(history: list[DaemonEvent], place: int) -> None:
    halfway = DAEMON.load(DAEMON.dump(replayed(history[:place])))
    assert DAEMON.dump(DAEMON.fold(halfway, map(encode, history[place:]))) == DAEMON.dump(replayed(history))


def test_a_copy_of_a_state_is_a_state_of_its_own() -> None:
    state = fold(started, pushed)
    copy, body = state.copy(), DAEMON.dump(state)
    DAEMON.fold(state, map(encode, (taken, e.WorkerStopped("w"), e.QueuePushed("q", "2", None, 0))))
    assert DAEMON.dump(copy) == body != DAEMON.dump(state)


def test_the_state_is_written_by_rfc_8785_whatever_it_holds() -> None:
    from runstate.models.canonical import canonical

    names = ["\U0001f600", "\ufb33", "é", "z", "a"]
    state = fold(*[e.QueuePushed(name, name, {"\U0001f600": 1e21, "\ufb33": 0.1, "a": name}, 7) for name in names])
    body = DAEMON.dump(state)
    assert canonical(msgspec.json.decode(body)) == body


def test_a_large_state_is_written_in_many_pieces() -> None:
    state = fold(*[e.QueuePushed("q", str(n), {"n": n}, 7) for n in range(2001)])
    from runstate.models.daemon.state import pieces

    assert max(map(len, pieces(state))) < len(DAEMON.dump(state)) / 3
    assert DAEMON.load(DAEMON.dump(state)) == state


@pytest.mark.parametrize("line", [b'{"type":"queue:pushed","queue_name":7}', b'{"kind":"x"}', b"[]", b'{"type":7}'])
def test_a_line_that_is_no_event_fails_the_fold(line: bytes) -> None:
    with pytest.raises(InvalidEvent):
        DAEMON.fold(DAEMON.initial("daemon"), [line])


def test_a_type_that_is_not_known_changes_nothing() -> None:
    pushed, line = e.QueuePushed("q", "i", {"n": 1}, 7), b'{"type":"queue:gone","queue_name":"q","daemon":"d","n":1.5}'
    state = DAEMON.fold(fold(pushed), [line])
    assert state == fold(pushed)
    event = DAEMON.decode(line)
    assert (event.daemon, DAEMON.envelope(line).type) == ("d", "queue:gone")
    assert DAEMON.describe(event).details == {"n": 1.5}
    alerts: list[Alert] = []
    DAEMON.fold(fold(pushed), [line], alerts.append)
    assert [alert.code for alert in alerts] == ["UNKNOWN_EVENT"]
    with pytest.raises(InvalidEvent):  # It can be kept, and not be written by this version.
        DAEMON.draft(event)


def test_members_that_are_not_known_change_nothing() -> None:
    pushed = e.QueuePushed("q", "i", {"n": 1}, 7)
    line = msgspec.json.encode(msgspec.to_builtins(pushed) | {"priority": 3})
    assert DAEMON.decode(line) == pushed
    assert DAEMON.fold(DAEMON.initial("daemon"), [line]) == fold(pushed)


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"{}", b"\xff", b'{"pipelines":{}}', b"[" * 100_000])
def test_what_is_no_state_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        DAEMON.load(body)


def test_every_torn_state_is_refused(golden: Path) -> None:
    body = (golden / "daemon_snapshot.json").read_bytes()
    for length in range(len(body)):
        with pytest.raises(InvalidJson):
            DAEMON.load(body[:length])


# --- the model around it ---------------------------------------------------------------------------------------------


def test_an_event_without_an_id_is_named_by_its_content() -> None:
    (_, one), (_, same) = DAEMON.draft(pushed), DAEMON.draft(msgspec.structs.replace(pushed))
    (_, other) = DAEMON.draft(msgspec.structs.replace(pushed, daemon="other"))
    assert one.event_id == one.key == same.key != other.key
    assert b"event_id" not in one.render(1, "")


def test_an_envelope_says_stream_id_and_tag() -> None:
    line = encode(e.Custom("n", daemon="d2", event_id="x"))
    envelope = DAEMON.envelope(line)
    assert (envelope.stream, envelope.event_id, envelope.key, envelope.type) == ("d2", "x", "x", "custom")


def test_a_retry_may_tell_another_time_and_nothing_else() -> None:
    _, draft = DAEMON.draft(pushed)
    assert draft.same_content(encode(msgspec.structs.replace(pushed, pushed_at_epoch_ms=8)))
    assert not draft.same_content(encode(msgspec.structs.replace(pushed, data=1)))


def test_what_is_impossible_is_told_and_in_a_log_changes_what_it_says() -> None:
    alerts: list[Any] = []
    DAEMON.fold(fold(created), [encode(e.StepFailed("p9", "build", "no")), encode(pushed)], alerts.append)
    assert [(alert.code, alert.details["eventType"]) for alert in alerts] == [("INVALID_TRANSITION", "step:failed")]


def test_activities_follow_steps_and_items() -> None:
    found = [
        each
        for event in (e.StepStarted("p", "build"), e.ShellExited("p", "build", 1), pushed, taken, created)
        for each in DAEMON.activities(event)
    ]
    assert found == [
        Activity(kind="started", name="build", scope="step|p|build"),
        Activity(kind="failed", name="build", scope="step|p|build"),
        Activity(kind="queued", name="q", scope="item|q|1"),
        Activity(kind="started", name="q", scope="item|q|1"),
    ]


def test_a_daemon_with_nothing_to_do_is_idle() -> None:
    assert [DAEMON.status(state) for state in (fold(), fold(started), fold(pushed))] == ["idle", "idle", "working"]
