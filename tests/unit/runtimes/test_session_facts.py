"""What is said in sessions: outputs, corrections, preferences, gaps, capabilities; and how sessions are found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.unit.runtimes.session_desk import Desk, cut_last_plan, desk_at, failed, three_steps

from runstate.errors import LogDamaged
from runstate.logs.log import BlobRef
from runstate.models.session import keys
from runstate.models.session.ids import AttemptId, ContentDigest, GapId, OutputId, RunId
from runstate.models.session.payloads import (
    Artifact,
    GitBranch,
    GitHeadSha,
    PreferenceDelta,
    Preferences,
    RepoRootDigest,
    TraceItem,
)
from runstate.runtimes.session import Wanted, plans, unwrap
from runstate.runtimes.session.checking import findings
from runstate.runtimes.session.tokens import StateToken, check

run = RunId("r-1")


@pytest.fixture(params=["memory", "segments"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path, request.param) as made:
        yield made


# --- outputs -----------------------------------------------------------------------------------------------------


def test_an_output_is_corrected_by_a_later_one_and_stays_in_the_history(desk: Desk) -> None:
    place = desk.session()
    first = unwrap(desk.sessions.append_output(place.state_token, "four tests fail"))
    second = unwrap(desk.sessions.supersede_output(place.state_token, first, "three tests fail"))
    assert desk.seen().current_output(place.node_id) == second
    assert set(desk.state().outputs) == {first, second}
    told = unwrap(desk.sessions.rehydrate(place.state_token))
    assert [output.notes for output in told.outputs] == ["three tests fail"]


def test_an_output_with_the_same_id_is_said_once(desk: Desk) -> None:
    place = desk.session()
    said = desk.sessions.append_output(place.state_token, "once", output_id="o-1")
    with desk.untouched():
        assert desk.sessions.append_output(place.state_token, "once", output_id="o-1") == said


def test_a_session_goes_on_behind_seqs_that_stand_for_lost_events(tmp_path: Path) -> None:
    with desk_at(tmp_path, "wal") as desk:
        place = desk.session("s-1")
    wal = tmp_path / "log/sessions/s-1/wal.jsonl"
    wal.write_bytes(wal.read_bytes() + bytes(100))
    with desk_at(tmp_path, "wal") as desk:
        said = unwrap(desk.sessions.append_output(place.state_token, "still here"))
        assert desk.seen().current_output(place.node_id) == said


def test_the_output_of_another_node_cannot_be_superseded(desk: Desk) -> None:
    place = desk.session()
    said = unwrap(desk.sessions.append_output(place.state_token, "mine"))
    following = unwrap(desk.sessions.advance(place.ack_token or ""))
    with desk.untouched():
        refused = failed(desk.sessions.supersede_output(following.state_token, said, "now mine"))
        assert (refused.code, refused.details["reason"]) == ("event.invalid_transition", "output_of_another_node")
        refused = failed(desk.sessions.supersede_output(place.state_token, "nothing", "now mine"))
        assert (refused.code, refused.details["reason"]) == ("event.invalid_transition", "output_unknown")


def test_an_artifact_is_kept_under_its_digest(desk: Desk) -> None:
    place = desk.session()
    kept = unwrap(desk.sessions.keep_artifact("report.txt", b"all is well", "text/plain"))
    unwrap(desk.sessions.advance(place.ack_token or "", "see the report", artifacts=[kept]))
    assert desk.sessions.log.get_blob(BlobRef(kept.digest)) == b"all is well"
    (output,) = desk.state().outputs.values()
    assert output.artifacts == (kept,)


# --- what was seen, wanted and missed ----------------------------------------------------------------------------


def test_preferences_hold_from_a_node_on_or_for_the_whole_session(desk: Desk) -> None:
    place = desk.session()
    whole = unwrap(desk.sessions.set_preferences("s-1", PreferenceDelta(risk_policy="balanced")))
    assert whole == Preferences(autonomy="guided", risk_policy="balanced")
    here = unwrap(
        desk.sessions.set_preferences(
            "s-1", PreferenceDelta(autonomy="full_auto_never_stop"), state_token=place.state_token
        )
    )
    assert here == Preferences(autonomy="full_auto_never_stop", risk_policy="balanced")
    following = unwrap(desk.sessions.advance(place.ack_token or ""))
    assert unwrap(desk.sessions.rehydrate(following.state_token)).preferences == here
    assert desk.seen().effective_preferences() == whole


def test_no_preference_at_all_is_refused(desk: Desk) -> None:
    desk.session()
    with desk.untouched():
        assert failed(desk.sessions.set_preferences("s-1", PreferenceDelta())).code == "event.invalid"


def test_a_gap_blocks_until_it_is_resolved_and_is_resolved_once(desk: Desk) -> None:
    place = desk.session()
    token = place.state_token
    gap = unwrap(
        desk.sessions.record_gap(
            token, "user_secret_needed", "critical", "No key", how_to_resolve="Ask", related_step_id="step-1"
        )
    )
    told = unwrap(desk.sessions.rehydrate(token))
    assert (told.status, list(told.open_gaps)) == ("blocked", [gap])
    resolved = desk.sessions.resolve_gap(token, gap, "Got it")
    told = unwrap(desk.sessions.rehydrate(token))
    assert (told.status, told.open_gaps) == ("in_progress", {})
    with desk.untouched():
        assert desk.sessions.resolve_gap(token, gap, "Got it") == resolved


def test_a_gap_that_is_not_there_cannot_be_resolved(desk: Desk) -> None:
    place = desk.session()
    with desk.untouched():
        refused = failed(desk.sessions.resolve_gap(place.state_token, GapId("nothing"), "Done"))
    assert (refused.code, refused.details["reason"]) == ("event.invalid_transition", "gap_unknown")


def test_divergences_and_traces_are_kept_and_capabilities_are_told(desk: Desk) -> None:
    place = desk.session()
    unwrap(desk.sessions.record_divergence(place.state_token, "step_skipped", "Not needed", related_step_id="step-1"))
    unwrap(desk.sessions.trace(place.state_token, [TraceItem(kind="selected_next_step", summary="only one")]))
    unwrap(desk.sessions.report_capability(place.state_token, "delegation", "available", "manual_claim"))
    assert [found.reason for found in desk.seen().divergences(run)] == ["step_skipped"]
    assert desk.kinds()[-2] == "decision_trace_appended"
    following = unwrap(desk.sessions.advance(place.ack_token or ""))
    told = unwrap(desk.sessions.rehydrate(following.state_token)).capabilities
    assert {name: (report.status, report.provenance) for name, report in told.items()} == {
        "delegation": ("available", "manual_claim")
    }


def test_what_is_outside_a_closed_set_is_refused(desk: Desk) -> None:
    place = desk.session()
    sessions, token = desk.sessions, place.state_token
    with desk.untouched():
        for refused in (
            sessions.record_gap(token, "bored", "critical", "x"),  # type: ignore[arg-type]
            sessions.record_divergence(token, "bored", "x"),  # type: ignore[arg-type]
            sessions.report_capability(token, "flying", "available", "probe_step"),  # type: ignore[arg-type]
            sessions.report_capability(token, "\ud800", "available", "probe_step"),  # type: ignore[arg-type]
        ):
            assert failed(refused).code == "request.invalid"
        for refused in (
            sessions.trace(token, []),
            sessions.observe("s-1", GitHeadSha(value="not a commit")),
        ):
            assert failed(refused).code == "event.invalid"


def test_a_fact_with_the_same_attempt_is_written_once(desk: Desk) -> None:
    place = desk.session()
    for _ in range(2):
        unwrap(desk.sessions.observe("s-1", GitBranch(value="main"), attempt_id="a-1"))
        unwrap(desk.sessions.record_divergence(place.state_token, "safety_stop", "x", attempt_id="a-1"))
    assert desk.kinds()[3:] == ["observation_recorded", "divergence_recorded"]


def test_a_token_speaks_for_its_own_session_alone(desk: Desk) -> None:
    place = desk.session()
    desk.session("s-2")
    with desk.untouched():
        observation = RepoRootDigest(value=ContentDigest(f"sha256:{'a' * 64}"))
        assert failed(desk.sessions.observe("s-2", observation, state_token=place.state_token)).code == "token.invalid"


def test_an_observation_at_a_node_touches_it(desk: Desk) -> None:
    place = desk.session()
    unwrap(desk.sessions.observe("s-1", GitBranch(value="main"), state_token=place.state_token))
    assert desk.state().nodes[place.node_id].observations["git_branch"].value == "main"


# --- finding -----------------------------------------------------------------------------------------------------

head, other_head = "a" * 40, "b" * 40


@pytest.fixture
def many(desk: Desk) -> Desk:
    """Sessions that have less and less of what is wanted, begun in an order that says nothing."""
    for name in ("words", "longer", "head", "nothing", "branch", "both"):
        place = desk.session(name)
        notes = "The lexer and the parser" if name == "words" else "The lexer"
        unwrap(desk.sessions.advance(place.ack_token or "", notes))
    for name in ("head", "both"):
        unwrap(desk.sessions.observe(name, GitHeadSha(value=head)))
    for name in ("branch", "both"):
        unwrap(desk.sessions.observe(name, GitBranch(value="fix")))
    unwrap(desk.sessions.observe("longer", GitHeadSha(value=other_head)))
    return desk


def test_sessions_are_ranked_by_head_then_branch_then_words_then_length(many: Desk) -> None:
    wanted = Wanted(head_sha=head[:10], branch="fix", words=("Lexer, PARSER", "fix"))
    found = unwrap(many.sessions.find(wanted)).found
    assert [f.session_id for f in found] == ["both", "head", "branch", "longer", "nothing", "words"]
    assert [f.same_head for f in found] == [True, True, False, False, False, False]
    assert found[0].words == ["fix", "lexer", "parser"]
    assert unwrap(many.sessions.find(wanted, limit=2)).found == found[:2]


def test_only_what_has_something_of_it_is_found(many: Desk) -> None:
    def names(wanted: Wanted) -> list[str]:
        return [f.session_id for f in unwrap(many.sessions.find(wanted)).found]

    assert names(Wanted(head_sha=other_head)) == ["longer"]
    assert names(Wanted(words=("absent",))) == []
    assert names(Wanted(branch="fi")) == []
    assert len(names(Wanted())) == 6


def test_more_words_come_before_more_events(many: Desk) -> None:
    place = many.session("more")
    unwrap(many.sessions.advance(place.ack_token or "", "Both words: zebra, giraffe"))
    place = many.session("longest")
    for notes in ("zebra", "and", "on"):
        place = unwrap(many.sessions.advance(place.ack_token or "", notes))
    found = unwrap(many.sessions.find(Wanted(words=("zebra", "giraffe")))).found
    assert [(f.session_id, f.words) for f in found] == [("more", ["giraffe", "zebra"]), ("longest", ["zebra"])]


def test_what_was_superseded_is_not_found(desk: Desk) -> None:
    place = desk.session()
    said = unwrap(desk.sessions.append_output(place.state_token, "zebra"))
    assert unwrap(desk.sessions.find(Wanted(words=("zebra",)))).found
    unwrap(desk.sessions.supersede_output(place.state_token, said, "giraffe"))
    assert not unwrap(desk.sessions.find(Wanted(words=("zebra",)))).found


def test_finding_says_where_to_go_on_and_writes_nothing(desk: Desk) -> None:
    place = desk.session()
    tip = unwrap(desk.sessions.advance(place.ack_token or "", "on"))
    with desk.untouched():
        (found,) = unwrap(desk.sessions.find(Wanted())).found
    assert (found.run_id, found.tip, found.status) == ("r-1", tip.node_id, "in_progress")


def test_a_session_that_cannot_be_read_hides_no_other(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.session("damaged")
    desk.session("intact")
    desk.sessions._journal._kept.clear()
    really = desk.store.current_state

    def reading(stream: str) -> object:
        if stream == "damaged":
            raise LogDamaged("a bit is flipped")
        return really(stream)

    monkeypatch.setattr(desk.store, "current_state", reading)
    search = unwrap(desk.sessions.find(Wanted()))
    assert [f.session_id for f in search.found] == ["intact"]
    assert {name: f.code for name, f in search.unreadable.items()} == {"damaged": "log.damaged"}


def test_an_entry_that_is_no_session_hides_no_other(tmp_path: Path) -> None:
    with desk_at(tmp_path, "segments") as desk:
        desk.session("intact")
        entries = tmp_path / "log/sessions/sessions"
        (entries / "loop").symlink_to("loop")
        (entries / "odd/manifest.jsonl").mkdir(parents=True)
        search = unwrap(desk.sessions.find(Wanted()))
        assert [f.session_id for f in search.found] == ["intact"]
        assert set(search.unreadable) == {"loop", "odd"}


def test_a_preference_at_a_node_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    with desk_at(tmp_path, "segments") as desk, desk_at(tmp_path, "segments") as other:
        place = desk.session()
        cut_off = unwrap(desk.sessions.advance(place.ack_token or "", "lost"))
        cut_last_plan(tmp_path, other)
        refused = desk.sessions.set_preferences(
            "s-1", PreferenceDelta(autonomy="guided"), state_token=cut_off.state_token
        )
        assert failed(refused).code == "session.node_not_found"


def test_an_artifact_that_was_never_kept_is_found_by_a_check(desk: Desk) -> None:
    place = desk.session()
    assert list(findings(desk.store.log, place.session_id)) == []
    at = check(desk.sessions._keyring, place.state_token, StateToken)
    artifact = Artifact(name="a", digest=ContentDigest("sha256:" + "0" * 64), content_type="text/plain", byte_length=1)
    desk.store.append_event(plans.output_given(at, plans.output(OutputId("o-1"), "see it", [artifact])))
    assert [finding.code for finding in findings(desk.store.log, place.session_id)] == ["blob.not_found"]


def test_an_event_under_the_key_of_another_is_found_by_a_check(desk: Desk) -> None:
    place = desk.session()
    at = check(desk.sessions._keyring, place.state_token, StateToken)
    stealing = plans.observed(at.session_id, GitBranch(value="main"), AttemptId("a-1"), at)
    desk.store.append_event(msgspec.structs.replace(stealing, dedupe_key=keys.gap_recorded(GapId("g-1"))))
    assert [finding.code for finding in findings(desk.store.log, place.session_id)] == ["event.key_mismatch"]


def test_the_state_in_memory_is_the_one_in_the_log(tmp_path: Path) -> None:
    """Two who write in turns each see what the other wrote, and fold only what is new."""
    with desk_at(tmp_path, "sqlite") as ours, desk_at(tmp_path, "sqlite") as theirs:
        place = ours.session(workflow=three_steps)
        for number in range(6):
            one, other = (ours, theirs) if number % 2 else (theirs, ours)
            unwrap(one.sessions.append_output(place.state_token, f"said {number}"))
            told = unwrap(other.sessions.rehydrate(place.state_token)).outputs
            assert [output.notes for output in told] == [f"said {n}" for n in range(number + 1)]
            with other.sessions._journal.reading(place.session_id) as state:
                assert other.store.model.dump(state) == other.store.model.dump(other.state())
