"""Random sequences of operations: errors are data, replays change nothing, and what is exported arrives as it was."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.runtimes.session_desk import Desk, choices, cut_last_plan, desk_at, failed, three_steps

from runstate.logs.segments import SegmentsLog
from runstate.logs.set_aside import SET_ASIDE
from runstate.models.session.ids import RunId, SessionId
from runstate.models.session.payloads import GitBranch, PreferenceDelta
from runstate.runtimes.session import Failed, Ok, Place, unwrap
from runstate.runtimes.session.bundles import unpack
from runstate.runtimes.session.checking import findings

run = RunId("r-1")
operations = (
    "advance",
    "replay",
    "rewind",
    "fork",
    "checkpoint",
    "say",
    "correct",
    "gap",
    "resolve",
    "prefer",
    "observe",
)
history = st.lists(st.tuples(st.sampled_from(operations), st.integers(0, 1000)), max_size=25)
refusals = ("session.invalid_step", "session.capability_locked", "event.invalid_transition")
text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


class Walker:
    """Does what a history says, to whatever is there by then."""

    def __init__(self, desk: Desk, branching: bool) -> None:
        self.desk, self.sessions = desk, desk.sessions
        self.places: list[Place] = [desk.session(workflow=choices if branching else three_steps)]
        self.acked: list[tuple[str, Place]] = []
        self.outputs: list[tuple[Place, str]] = []
        self.gaps: list[str] = []

    def do(self, operation: str, number: int, said: str) -> None:
        before = self.desk.records()
        answer = getattr(self, operation)(self.places[number % len(self.places)], number, said)
        assert isinstance(answer, Ok | Failed)
        after = self.desk.records()
        assert after[: len(before)] == before
        if isinstance(answer, Failed):
            assert after == before, answer
            assert answer.code in refusals
        elif isinstance(answer.value, Place):
            self.places.append(answer.value)

    def advance(self, place: Place, number: int, said: str) -> Any:
        if place.ack_token is None:
            return self.sessions.rewind("s-1", place.node_id)
        step = None if place.step is None or not place.step.next else place.step.next[number % len(place.step.next)]
        answer = self.sessions.advance(place.ack_token, said, step=step)
        if isinstance(answer, Ok):
            self.acked.append((place.ack_token, answer.value))
        return answer

    def replay(self, place: Place, number: int, said: str) -> Any:
        if not self.acked:
            return self.sessions.rehydrate(place.state_token)
        ack, outcome = self.acked[number % len(self.acked)]
        before = self.desk.records()
        replayed = unwrap(self.sessions.advance(ack, said))
        assert replayed.replayed
        assert (replayed.node_id, replayed.ack_token) == (outcome.node_id, outcome.ack_token)
        assert self.desk.records() == before
        return self.sessions.rehydrate(replayed.state_token)

    def rewind(self, place: Place, number: int, said: str) -> Any:
        return self.sessions.rewind("s-1", place.node_id)

    def fork(self, place: Place, number: int, said: str) -> Any:
        return self.sessions.fork("s-1", place.node_id, attempt_id=f"a-{number % 3}")

    def checkpoint(self, place: Place, number: int, said: str) -> Any:
        return (
            self.rewind(place, number, said) if place.ack_token is None else self.sessions.checkpoint(place.ack_token)
        )

    def say(self, place: Place, number: int, said: str) -> Any:
        answer = self.sessions.append_output(place.state_token, said)
        self.outputs.append((place, unwrap(answer)))
        return answer

    def correct(self, place: Place, number: int, said: str) -> Any:
        _, output = self.outputs[number % len(self.outputs)] if self.outputs else (place, "nothing")
        return self.sessions.supersede_output(place.state_token, output, said)

    def gap(self, place: Place, number: int, said: str) -> Any:
        severity: Any = "critical" if number % 2 else "warning"
        answer = self.sessions.record_gap(place.state_token, "unexpected_failure", severity, said)
        self.gaps.append(unwrap(answer))
        return answer

    def resolve(self, place: Place, number: int, said: str) -> Any:
        gap = self.gaps[number % len(self.gaps)] if self.gaps else "nothing"
        return self.sessions.resolve_gap(place.state_token, gap, said)

    def prefer(self, place: Place, number: int, said: str) -> Any:
        delta = PreferenceDelta(autonomy="full_auto_never_stop" if number % 2 else "guided")
        return self.sessions.set_preferences("s-1", delta, state_token=place.state_token if number % 3 else None)

    def observe(self, place: Place, number: int, said: str) -> Any:
        return self.sessions.observe(
            "s-1", GitBranch(value=said), state_token=place.state_token if number % 2 else None
        )


@given(steps=history, said=st.lists(text, min_size=1, max_size=5), branching=st.booleans())
@settings(max_examples=60)
def test_any_sequence_of_operations_leaves_a_session_that_travels(
    steps: list[tuple[str, int]], said: list[str], branching: bool
) -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        desk_at(Path(place) / "home") as home,
        desk_at(Path(place) / "away") as away,
    ):
        walker = Walker(home, branching)
        for at, (operation, number) in enumerate(steps):
            walker.do(operation, number, said[at % len(said)])
        state, seen = home.state(), home.seen()
        assert not state.inconsistent
        with home.sessions._journal.reading(state.session_id) as kept:
            assert home.store.model.dump(kept) == home.store.model.dump(state)
        for parent in state.nodes.values():
            kinds = [state.nodes[child].edge_kind for child in parent.children]
            assert kinds == ["acked_step", *["forked_from_non_tip"] * (len(kinds) - 1)][: len(kinds)]
        bundle = unwrap(home.sessions.export("s-1"))
        imported = unwrap(away.sessions.import_(bundle))
        assert [r.body for r in away.records()] == [r.body for r in home.records()]
        assert [tip.node_id for tip in imported.tips] == [seen.preferred_tip(run)]
        assert unpack(unwrap(away.sessions.export("s-1"))).events_digest == imported.events_digest
        for given_out in walker.places:
            assert failed(away.sessions.rehydrate(given_out.state_token)).code == "token.invalid"
            assert failed(away.sessions.advance(given_out.ack_token or "")).code == "token.invalid"


class TwoHandles(Walker):
    """The same, through two handles in turn, while the log is merged and cut back behind the back of both."""

    def __init__(self, directory: Path, ours: Desk, theirs: Desk) -> None:
        super().__init__(ours, branching=False)
        self.directory, self.handles = directory, (ours, theirs)

    def do(self, operation: str, number: int, said: str) -> None:
        self.desk = self.handles[number % 2]
        self.sessions = self.desk.sessions
        before = self.desk.records()
        if operation in ("compact", "repair"):
            getattr(self, operation)()
        else:
            answer = getattr(self, operation)(self.places[number % len(self.places)], number, said)
            assert isinstance(answer, Failed) or self.desk.records()[: len(before)] == before
            if isinstance(answer, Failed):
                assert answer.code in (*refusals, "session.node_not_found", "token.invalid"), answer
                assert self.desk.records() == before
            elif isinstance(answer.value, Place):
                self.places.append(answer.value)
        state = self.desk.state()
        assert not state.inconsistent
        for handle in self.handles:
            with handle.sessions._journal.reading(state.session_id) as kept:
                assert handle.store.model.dump(kept) == handle.store.model.dump(state)

    def compact(self) -> None:
        log = self.desk.store.log
        assert isinstance(log, SegmentsLog)
        log.compact("s-1")

    def repair(self) -> None:
        """What the last segment holds is lost, unless that is the whole session."""
        if len([*(self.directory / "log/sessions/sessions/s-1/events").glob("*.jsonl")]) > 2:
            cut_last_plan(self.directory, self.desk)

    def replay(self, place: Place, number: int, said: str) -> Any:
        """A replay of what was cut off is an attempt like the first."""
        return self.sessions.advance(self.acked[number % len(self.acked)][0] if self.acked else "", said)

    def say(self, place: Place, number: int, said: str) -> Any:
        return self.sessions.append_output(place.state_token, said, output_id=f"o-{number % 5}")

    def gap(self, place: Place, number: int, said: str) -> Any:
        return self.sessions.record_gap(
            place.state_token, "unexpected_failure", "warning", said, gap_id=f"g-{number % 5}"
        )


@given(
    steps=st.lists(
        st.tuples(st.sampled_from((*operations, "advance", "say", "compact", "repair")), st.integers(0, 1000)),
        max_size=15,
    ),
    said=st.lists(text, min_size=1, max_size=5),
)
@settings(max_examples=20)
def test_two_handles_never_take_one_history_for_another(steps: list[tuple[str, int]], said: list[str]) -> None:
    with (
        tempfile.TemporaryDirectory() as place,
        desk_at(Path(place), "segments") as ours,
        desk_at(Path(place), "segments") as theirs,
    ):
        walker = TwoHandles(Path(place), ours, theirs)
        for at, (operation, number) in enumerate(steps):
            walker.do(operation, number, said[at % len(said)])
        found = findings(ours.store.log, SessionId("s-1"))
        assert [finding for finding in found if finding.code != SET_ASIDE] == []


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
@settings(max_examples=150)
def test_a_bundle_with_any_bit_changed_is_refused_or_says_the_same(at: int, bit: int) -> None:
    """A changed bit may turn one way of writing JSON into another. What is taken still has the same digest."""
    with tempfile.TemporaryDirectory() as place, desk_at(Path(place)) as desk:
        begun = desk.session()
        unwrap(desk.sessions.advance(begun.ack_token or "", "read it"))
        data = bytearray(unwrap(desk.sessions.export("s-1")))
        honest = unpack(bytes(data)).digest
        data[at % len(data)] ^= 1 << bit
        before = desk.store.log.streams()
        answer = desk.sessions.import_(bytes(data))
        if isinstance(answer, Ok):
            assert answer.value.bundle_digest == honest
        else:
            assert desk.store.log.streams() == before
