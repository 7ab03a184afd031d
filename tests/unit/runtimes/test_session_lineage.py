"""Where sessions go: runs, attempts, forks, rewinds. The same attempt always has the same outcome."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.runtimes.session_desk import Desk, choices, cut_last_plan, desk_at, failed, three_steps

from runstate.errors import LogBusy, SequenceConflict
from runstate.models.model import Alert
from runstate.models.session import events, keys, payloads
from runstate.models.session.ids import ContentDigest, EventId, NodeId, RunId, SessionId, derived
from runstate.runtimes.session import Ok, Place, compiled, linear, unwrap
from runstate.runtimes.session.checking import findings
from runstate.runtimes.session.node_snapshots import NodeSnapshot, first
from runstate.runtimes.session.refusals import InvalidWorkflow
from runstate.runtimes.session.tokens import StateToken, mint
from runstate.runtimes.session.workflow import load_workflow, read_workflow


@pytest.fixture(params=["memory", "sqlite", "segments"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path, request.param) as made:
        yield made


# --- forward -----------------------------------------------------------------------------------------------------


def test_a_run_goes_step_by_step_to_its_end(desk: Desk) -> None:
    place = desk.session()
    titles = []
    while place.step is not None:
        titles.append(place.step.title)
        place = unwrap(desk.sessions.advance(place.ack_token or "", f"done: {place.step.title}"))
    assert titles == ["Read", "Judge", "Write it down"]
    assert place.ack_token is None
    assert desk.seen().run_status(RunId("r-1")) == "complete"
    told = unwrap(desk.sessions.rehydrate(place.state_token))
    assert [output.notes for output in told.outputs] == [f"done: {title}" for title in titles]
    assert told.status == "complete"
    assert not desk.state().inconsistent


def test_a_run_is_pinned_to_the_bytes_of_its_workflow(desk: Desk) -> None:
    desk.session()
    pinned = desk.state().runs[RunId("r-1")].workflow_hash
    assert pinned == three_steps.hash
    assert load_workflow(desk.sessions.log, pinned) == three_steps


def test_each_operation_is_one_append(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    appended: list[int] = []
    really = desk.store.log.append

    def counted(stream: str, drafts: Any, **options: Any) -> Any:
        appended.append(len(drafts))
        return really(stream, drafts, **options)

    monkeypatch.setattr(desk.store.log, "append", counted)
    place = desk.session()
    place = unwrap(desk.sessions.advance(place.ack_token or "", "read it"))
    unwrap(desk.sessions.checkpoint(place.ack_token or ""))
    assert appended == [1, 2, 3, 2]
    assert desk.kinds()[3:6] == ["node_created", "edge_created", "node_output_appended"]


def test_a_session_that_is_there_is_not_created_twice(desk: Desk) -> None:
    desk.session()
    with desk.untouched():
        assert unwrap(desk.sessions.create(session_id="s-1", title="Fix the parser")) == "s-1"


def test_under_a_made_up_id_there_is_nothing_to_make_void(desk: Desk) -> None:
    desk.session()
    before = desk.sessions._keyring.path.read_bytes()
    unwrap(desk.sessions.create(title="Another"))
    assert desk.sessions._keyring.path.read_bytes() == before


def test_starting_a_run_again_gives_the_place_where_it_began(desk: Desk) -> None:
    begun = desk.session()
    unwrap(desk.sessions.advance(begun.ack_token or "", "read it"))
    with desk.untouched():
        again = unwrap(desk.sessions.start_run("s-1", three_steps, run_id="r-1"))
    assert again == msgspec.structs.replace(begun, replayed=True, is_tip=False)


def test_a_run_id_belongs_to_one_workflow(desk: Desk) -> None:
    desk.session()
    with desk.untouched():
        refused = failed(desk.sessions.start_run("s-1", choices, run_id="r-1"))
    assert refused.code == "event.invalid_transition"
    assert refused.details["reason"] == "run_exists"


# --- attempts ----------------------------------------------------------------------------------------------------


def test_replaying_an_ack_gives_the_recorded_outcome_and_writes_nothing(desk: Desk) -> None:
    place = desk.session()
    outcome = unwrap(desk.sessions.advance(place.ack_token or "", "read it"))
    unwrap(desk.sessions.advance(outcome.ack_token or "", "judged it"))
    with desk.untouched():
        replayed = unwrap(desk.sessions.advance(place.ack_token or "", "read it"))
    assert replayed == msgspec.structs.replace(outcome, replayed=True, is_tip=False)


def test_a_replay_in_a_new_process_gives_the_same_tokens(tmp_path: Path) -> None:
    with desk_at(tmp_path, "sqlite") as desk:
        place = desk.session()
        outcome = unwrap(desk.sessions.advance(place.ack_token or "", "read it"))
    with desk_at(tmp_path, "sqlite") as later:
        replayed = unwrap(later.sessions.advance(place.ack_token or "", "read it"))
    assert (replayed.state_token, replayed.ack_token) == (outcome.state_token, outcome.ack_token)


def test_a_replay_with_another_output_changes_nothing_and_is_told_about(desk: Desk) -> None:
    alerts: list[Alert] = []
    desk.store.alerts.raise_once = alerts.append  # type: ignore[method-assign, assignment]
    place = desk.session()
    unwrap(desk.sessions.advance(place.ack_token or "", "read it"))
    with desk.untouched():
        assert unwrap(desk.sessions.advance(place.ack_token or "", "read it")).replayed
        assert alerts == []
        assert unwrap(desk.sessions.advance(place.ack_token or "", "skipped it")).replayed
    assert [alert.code for alert in alerts] == ["IDEMPOTENCY_CONTENT_MISMATCH"]


def test_whoever_was_killed_while_advancing_and_rehydrates_forks_nothing(desk: Desk) -> None:
    place = desk.session()
    unwrap(desk.sessions.advance(place.ack_token or "", "read it"))  # The answer is lost.
    again = unwrap(desk.sessions.rehydrate(place.state_token)).place
    with desk.untouched():
        assert unwrap(desk.sessions.advance(again.ack_token or "", "read it")).replayed


# --- forks and rewinds -------------------------------------------------------------------------------------------


def test_advancing_from_a_node_that_is_no_tip_is_a_fork_and_both_lines_live_on(desk: Desk) -> None:
    place = desk.session()
    one = unwrap(desk.sessions.advance(place.ack_token or "", "one way"))
    back = unwrap(desk.sessions.rewind("s-1", place.node_id))
    assert not back.is_tip
    other = unwrap(desk.sessions.advance(back.ack_token or "", "another way"))
    assert desk.edge_kinds() == ["acked_step", "forked_from_non_tip"]
    for line, said in ((one, "one way"), (other, "another way")):
        further = unwrap(desk.sessions.advance(line.ack_token or "", "and on"))
        told = unwrap(desk.sessions.rehydrate(further.state_token))
        assert [output.notes for output in told.outputs] == [said, "and on"]
    assert set(desk.seen().leaves(RunId("r-1"))).isdisjoint({place.node_id, one.node_id, other.node_id})


def test_a_rewind_writes_nothing_and_is_a_new_attempt_each_time(desk: Desk) -> None:
    place = desk.session()
    with desk.untouched():
        tokens = {unwrap(desk.sessions.rewind("s-1", place.node_id)).ack_token for _ in range(3)}
    assert len(tokens | {place.ack_token}) == 4


def test_rehydrating_writes_nothing(desk: Desk) -> None:
    place = desk.session()
    with desk.untouched():
        told = [unwrap(desk.sessions.rehydrate(place.state_token)) for _ in range(3)]
    assert told[0] == told[1] == told[2]
    assert told[0].place == place


def test_a_checkpoint_is_a_node_at_the_same_step(desk: Desk) -> None:
    place = desk.session()
    marked = unwrap(desk.sessions.checkpoint(place.ack_token or ""))
    assert marked.step == place.step
    assert desk.state().nodes[marked.node_id].node_kind == "checkpoint"
    with desk.untouched():
        assert unwrap(desk.sessions.checkpoint(place.ack_token or "")).node_id == marked.node_id
    assert unwrap(desk.sessions.advance(marked.ack_token or "", "read it")).step == three_steps.steps[1]
    assert desk.edge_kinds() == ["acked_step", "acked_step"]


def test_a_fork_begins_a_line_and_the_same_attempt_begins_it_once(desk: Desk) -> None:
    place = desk.session()
    unwrap(desk.sessions.advance(place.ack_token or "", "read it"))
    forked = unwrap(desk.sessions.fork("s-1", place.node_id, attempt_id="mine"))
    assert forked.step == place.step
    assert desk.edge_kinds() == ["acked_step", "forked_from_non_tip"]
    with desk.untouched():
        assert unwrap(desk.sessions.fork("s-1", place.node_id, attempt_id="mine")).node_id == forked.node_id
    assert unwrap(desk.sessions.fork("s-1", place.node_id)).node_id != forked.node_id


def test_nothing_comes_after_the_end(desk: Desk) -> None:
    place = desk.session(workflow=linear("short", "Only this"))
    end = unwrap(desk.sessions.advance(place.ack_token or "", "done"))
    with desk.untouched():
        assert failed(desk.sessions.fork("s-1", end.node_id)).code == "session.invalid_step"
    assert unwrap(desk.sessions.rewind("s-1", end.node_id)).ack_token is None


# --- where the workflow leads ------------------------------------------------------------------------------------


def test_where_several_steps_may_follow_one_must_be_chosen(desk: Desk) -> None:
    place = desk.session(workflow=choices)
    with desk.untouched():
        refused = failed(desk.sessions.advance(place.ack_token or "", "?"))
        assert refused.code == "session.invalid_step"
        assert refused.details["choices"] == ("again", "browse", "end")
        assert failed(desk.sessions.advance(place.ack_token or "", "?", step="begin")).code == "session.invalid_step"
    assert unwrap(desk.sessions.advance(place.ack_token or "", "!", step="end")).step == choices.steps[3]


def test_a_loop_has_a_bound(desk: Desk) -> None:
    place = desk.session(workflow=choices)
    for _ in range(2):
        place = unwrap(desk.sessions.advance(place.ack_token or "", step="again"))
    refused = failed(desk.sessions.advance(place.ack_token or "", step="again"))
    assert refused.code == "session.invalid_step"
    assert "2 times" in refused.message


def test_only_strong_evidence_unlocks_a_step(desk: Desk) -> None:
    place = desk.session(workflow=choices)
    sessions, token = desk.sessions, place.state_token
    for status, provenance in (("available", "manual_claim"), ("unavailable", "probe_step")):
        unwrap(sessions.report_capability(token, "web_browsing", status, provenance))  # type: ignore[arg-type]
        with desk.untouched():
            refused = failed(sessions.advance(place.ack_token or "", "on", step="browse"))
        assert refused.code == "session.capability_locked"
        assert refused.details == {"capability": "web_browsing", "step_id": "browse"}
    unwrap(sessions.report_capability(token, "web_browsing", "available", "attempted_use"))
    assert unwrap(sessions.advance(place.ack_token or "", "on", step="browse")).step == choices.steps[2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": []}, "length >= 1"),
        ({"steps": [{"id": "a", "title": "A"}] * 2}, "one id"),
        ({"steps": [{"id": "a", "title": "A", "next": ["b"]}]}, "no step"),
        ({"steps": [{"id": "a", "title": "A", "requires": ["delegation"]}]}, "first step"),
        ({"steps": [{"id": "a", "title": "A", "color": "red"}]}, "color"),
        ({"workflowId": "../x"}, "workflowId"),
        ({"schemaVersion": 2}, "schemaVersion"),
    ],
)
def test_a_workflow_is_checked_as_a_whole(change: dict[str, Any], words: str) -> None:
    source = {"workflowId": "w", "steps": [{"id": "a", "title": "A"}]}
    compiled(source)
    with pytest.raises(InvalidWorkflow, match=words):
        compiled(source | change)


def test_a_workflow_with_other_bytes_than_its_own_is_refused() -> None:
    assert read_workflow(three_steps.to_bytes()) == three_steps
    with pytest.raises(InvalidWorkflow, match="canonical"):
        read_workflow(three_steps.to_bytes() + b" ")


# --- what it stands on -------------------------------------------------------------------------------------------


def plant(desk: Desk, snapshot: NodeSnapshot, *, is_terminal: bool = False) -> NodeId:
    """A node whose snapshot nobody has looked at, put into the log behind the back of the sessions."""
    desk.store.log.put_blob(snapshot.to_bytes())
    session, run, name = SessionId("s-1"), RunId("r-1"), NodeId("planted")
    data = payloads.NodeCreatedData(
        node_id=name,
        node_kind="step",
        snapshot_ref=snapshot.ref,
        workflow_hash=three_steps.hash,
        is_terminal=is_terminal,
    )
    key = keys.node_created(run, name)
    event = events.NodeCreated(
        event_id=EventId(derived("ev", key)), session_id=session, dedupe_key=key, run_id=run, data=data
    )
    desk.store.append_event(event)
    return name


def test_a_snapshot_of_another_workflow_is_refused(desk: Desk) -> None:
    desk.session()
    planted = plant(desk, first(choices))
    with desk.untouched():
        for refused in (desk.sessions.rewind("s-1", planted), desk.sessions.fork("s-1", planted)):
            assert failed(refused).code == "snapshot.other_workflow"
            told = {"snapshot_workflow": choices.hash, "run_workflow": three_steps.hash}
            assert failed(refused).details.items() >= told.items()


def test_a_snapshot_with_a_step_that_its_workflow_has_not_is_refused(desk: Desk) -> None:
    desk.session()
    planted = plant(desk, NodeSnapshot(workflow_hash=three_steps.hash, step_id="elsewhere"))  # type: ignore[arg-type]
    assert failed(desk.sessions.rewind("s-1", planted)).code == "snapshot.invalid"


def test_a_snapshot_of_a_newer_version_is_told_apart(desk: Desk) -> None:
    desk.session()
    newer = msgspec.structs.replace(first(three_steps), schema_version=2)
    assert failed(desk.sessions.rewind("s-1", plant(desk, newer))).code == "snapshot.too_new"


# --- errors are data ---------------------------------------------------------------------------------------------


def test_what_is_not_there_is_told_as_data(desk: Desk) -> None:
    place = desk.session()
    sessions = desk.sessions
    with desk.untouched():
        assert failed(sessions.start_run("nobody", three_steps)).code == "stream.not_found"
        assert failed(sessions.rewind("nobody", place.node_id)).code == "stream.not_found"
        assert failed(sessions.rewind("s-1", "nowhere")).code == "session.node_not_found"
        assert failed(sessions.rewind("../s-1", "nowhere")).code == "event.invalid"
        assert failed(sessions.create(session_id="Not/an id")).code == "event.invalid"
        assert failed(sessions.advance("no token")).code == "token.invalid"
        assert failed(sessions.advance(place.state_token)).code == "token.invalid"
        assert failed(sessions.rehydrate(place.ack_token or "")).code == "token.invalid"


def test_a_token_that_names_a_node_in_another_run_leads_nowhere(desk: Desk) -> None:
    place = desk.session()
    unwrap(desk.sessions.start_run("s-1", choices, run_id="r-2"))
    wrong = StateToken(session_id=place.session_id, run_id=RunId("r-2"), node_id=place.node_id)
    token = mint(desk.sessions._keyring, wrong)
    assert failed(desk.sessions.rehydrate(token)).code == "session.node_not_found"
    with desk.untouched():
        refused = failed(desk.sessions.append_output(token, "here?"))
    assert (refused.code, refused.details["reason"]) == ("event.invalid_transition", "node_of_another_run")


def test_what_does_not_fit_is_refused_whole(desk: Desk) -> None:
    place = desk.session()
    with desk.untouched():
        assert failed(desk.sessions.advance(place.ack_token or "", "x" * 20_000)).code == "event.invalid"
        assert failed(desk.sessions.advance(place.ack_token or "", "\ud800")).code == "event.invalid"
        assert failed(desk.sessions.advance(place.ack_token or "", "")).code == "event.invalid"
        artifact = payloads.Artifact(
            name="a", digest=ContentDigest(f"sha256:{'0' * 64}"), content_type="text/plain", byte_length=0
        )
        assert failed(desk.sessions.advance(place.ack_token or "", artifacts=[artifact])).code == "event.invalid"


def test_a_session_that_was_deleted_is_gone_for_its_tokens_too(desk: Desk) -> None:
    place = desk.session()
    desk.store.delete_stream("s-1", forget=True)
    assert failed(desk.sessions.advance(place.ack_token or "", "x")).code == "stream.not_found"
    desk.session(workflow=linear("other", "Something else", "And more"))
    with desk.untouched():
        assert failed(desk.sessions.advance(place.ack_token or "", "x")).code == "token.invalid"
        assert failed(desk.sessions.rehydrate(place.state_token)).code == "token.invalid"


def test_a_session_that_another_process_has_begun_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    with desk_at(tmp_path, "sqlite") as ours, desk_at(tmp_path, "sqlite") as theirs:
        place = ours.session()
        theirs.store.delete_stream("s-1", forget=True)
        unwrap(theirs.sessions.create(session_id="s-1"))
        for number in range(3):
            unwrap(theirs.sessions.start_run("s-1", three_steps, run_id=f"new-{number}"))
        assert failed(ours.sessions.rewind("s-1", place.node_id)).code == "session.node_not_found"


def test_a_session_that_another_process_has_repaired_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    with desk_at(tmp_path, "segments") as ours, desk_at(tmp_path, "segments") as theirs:
        place = ours.session()
        unwrap(ours.sessions.append_output(place.state_token, "stays"))
        cut_off = unwrap(ours.sessions.advance(place.ack_token or "", "lost"))
        cut_last_plan(tmp_path, theirs)
        for number in range(6):
            unwrap(theirs.sessions.append_output(place.state_token, f"new {number}"))
        with ours.untouched():
            told = unwrap(ours.sessions.rehydrate(place.state_token)).outputs
            assert [output.notes for output in told] == ["stays", *(f"new {number}" for number in range(6))]
            assert failed(ours.sessions.append_output(cut_off.state_token, "x")).code == "event.invalid_transition"
        unwrap(ours.sessions.append_output(place.state_token, "on"))
        assert not ours.state().inconsistent


def test_a_session_that_came_back_with_another_history_is_not_taken_for_what_it_was(tmp_path: Path) -> None:
    """An import keeps the times, so when a session was begun does not tell."""
    with desk_at(tmp_path / "home", "sqlite") as home, desk_at(tmp_path / "away", "sqlite") as away:
        place = home.session()
        (tip,) = unwrap(away.sessions.import_(unwrap(home.sessions.export("s-1")))).tips
        for notes in ("away 1", "away 2"):
            tip = unwrap(away.sessions.advance(tip.ack_token or "", notes))
        unwrap(home.sessions.advance(place.ack_token or "", "home"))
        home.store.log.delete_stream("s-1")
        (tip,) = unwrap(home.sessions.import_(unwrap(away.sessions.export("s-1")))).tips
        told = unwrap(home.sessions.rehydrate(tip.state_token)).outputs
        assert [output.notes for output in told] == ["away 1", "away 2"]


def test_a_node_that_says_it_is_the_end_and_is_not_is_refused(desk: Desk) -> None:
    desk.session()
    planted = plant(desk, first(three_steps), is_terminal=True)
    assert failed(desk.sessions.rewind("s-1", planted)).code == "snapshot.invalid"
    assert [finding.code for finding in findings(desk.store.log, SessionId("s-1"))] == ["snapshot.invalid"]


def test_a_busy_log_is_a_failure_that_may_be_tried_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    place = desk.session()

    def busy(*_: Any, **__: Any) -> Any:
        raise LogBusy("somebody holds it", stream="s-1")

    with monkeypatch.context() as patched:
        patched.setattr(desk.store.log, "append", busy)
        refused = failed(desk.sessions.advance(place.ack_token or "", "read it"))
    assert (refused.code, refused.retryable, refused.details) == ("log.busy", True, {"stream": "s-1"})
    assert not unwrap(desk.sessions.advance(place.ack_token or "", "read it")).replayed


def test_a_call_that_python_refuses_is_still_raised(desk: Desk) -> None:
    with pytest.raises(TypeError):
        desk.sessions.advance()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        desk.sessions.advance("token", note="no such argument")  # type: ignore[call-arg]


# --- two writers -------------------------------------------------------------------------------------------------


def test_of_two_writers_one_decides_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes between the first's decision and its append; the first, deciding again, finds itself forking."""
    with desk_at(tmp_path, "sqlite") as ours, desk_at(tmp_path, "sqlite") as theirs:
        place = ours.session()
        back = unwrap(theirs.sessions.rewind("s-1", place.node_id))
        really, interfered = ours.store.log.append, list[Place]()

        def interfering(stream: str, drafts: Any, **options: Any) -> Any:
            if not interfered:
                interfered.append(unwrap(theirs.sessions.advance(back.ack_token or "", "theirs")))
            return really(stream, drafts, **options)

        monkeypatch.setattr(ours.store.log, "append", interfering)
        assert isinstance(ours.sessions.advance(place.ack_token or "", "ours"), Ok)
        assert ours.edge_kinds() == ["acked_step", "forked_from_non_tip"]
        told = [output.notes for output in ours.state().outputs.values()]
        assert told == ["theirs", "ours"]
        assert not ours.state().inconsistent


@pytest.mark.parametrize("said", ["first", None])
@pytest.mark.parametrize("when", ["append", "find"])
def test_of_two_who_advance_with_one_ack_the_second_is_told_that_it_is_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, said: str | None
) -> None:
    with desk_at(tmp_path, "sqlite") as ours, desk_at(tmp_path, "sqlite") as theirs:
        place, alerts = ours.session(), list[Alert]()
        ours.store.alerts.raise_once = alerts.append  # type: ignore[method-assign, assignment]
        really, first_ = getattr(ours.store.log, when), list[Place]()

        def late(*args: Any, **options: Any) -> Any:
            if not first_:
                first_.append(unwrap(theirs.sessions.advance(place.ack_token or "", said)))
            return really(*args, **options)

        monkeypatch.setattr(ours.store.log, when, late)
        second = unwrap(ours.sessions.advance(place.ack_token or "", "second"))
        assert second == msgspec.structs.replace(first_[0], replayed=True)
        assert [output.notes for output in ours.state().outputs.values()] == ([] if said is None else [said])
        assert [alert.code for alert in alerts] == ["IDEMPOTENCY_CONTENT_MISMATCH"]


def test_threads_that_share_sessions_take_turns(desk: Desk) -> None:
    place = desk.session()

    def line(number: int) -> list[str]:
        at, nodes = unwrap(desk.sessions.rewind("s-1", place.node_id)), list[str]()
        while at.ack_token is not None:
            at = unwrap(desk.sessions.advance(at.ack_token, f"line {number}"))
            nodes.append(at.node_id)
        return nodes

    with ThreadPoolExecutor(4) as threads:
        lines = list(threads.map(line, range(8)))
    state = desk.state()
    assert not state.inconsistent
    assert len(state.nodes) == 1 + 8 * 3 == 1 + len({name for nodes in lines for name in nodes})
    assert sorted(desk.edge_kinds()) == ["acked_step"] * 17 + ["forked_from_non_tip"] * 7


def test_a_writer_who_never_gets_a_turn_gives_up_as_data(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    place = desk.session()
    tries = []

    def conflicting(*_: Any, **__: Any) -> Any:
        tries.append(1)
        raise SequenceConflict("not where you thought")

    monkeypatch.setattr(desk.store.log, "append", conflicting)
    assert failed(desk.sessions.advance(place.ack_token or "", "x")).code == "log.sequence_conflict"
    assert len(tries) == 10
