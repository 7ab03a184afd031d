"""The fold of a session: what each event does, which are impossible, and that those change nothing."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from tests.fleets.session import histories
from tests.unit.models.session_lines import (
    begun,
    branch,
    capability,
    created,
    divergence,
    edge,
    event,
    folded,
    gap,
    node,
    other_workflow,
    output,
    preferences,
    snapshot,
    started,
    stored,
    trace,
    typed,
    workflow,
)

import runstate
from runstate.errors import InvalidEvent, InvalidTransition
from runstate.models.model import Alert
from runstate.models.session import SESSION

linked = [*begun, node("m"), edge("n", "m")]
two_runs = [*begun, started("r2", "n2"), node("n2", "r2")]
ended = [*begun, node("z", isTerminal=True), edge("n", "z")]

impossible: dict[str, tuple[list[bytes], bytes]] = {
    "session_missing": ([], started()),
    "session_missing by an observation": ([], branch("main")),
    "session_exists": ([created()], created()),
    "session_differs": (begun, event("session_created", {}, sessionId="s-2")),
    "run_exists": (begun, started("r", "n9")),
    "run_unknown": (begun, node("x", "r9")),
    "run_unknown by an edge": (linked, edge("n", "m", "r9")),
    "run_unknown by an output": (begun, output("o", "n", "r9")),
    "node_exists": (begun, node("n")),
    "node_exists in another run": (two_runs, node("n", "r2")),
    "node_exists as a start": (begun, started("r2", "n")),
    "node_unknown": (begun, output("o", "x")),
    "node_unknown by a gap": (begun, gap("g", "x")),
    "node_unknown by a preference": (begun, preferences("guided", "x")),
    "node_unknown by a capability": (begun, capability("available", "probe_step", "x")),
    "node_unknown by a divergence": (begun, divergence("x")),
    "node_unknown by a trace": (begun, trace("x")),
    "node_unknown by an observation": (begun, branch("main", "x")),
    "node_of_another_run": (two_runs, output("o", "n", "r2")),
    "node_of_another_run by a gap": (two_runs, gap("g", "n2", "r")),
    "workflow_differs": (begun, node("m", workflow_hash=other_workflow)),
    "parent_unknown": (begun, edge("x", "n")),
    "child_unknown": (begun, edge("n", "x")),
    "edge_across_runs": ([*two_runs, node("m", "r2")], edge("n", "m", "r")),
    "edge_across_runs from the other side": ([*two_runs, node("m")], edge("n2", "m", "r")),
    "edge_across_runs by its scope": ([*two_runs, node("m")], edge("n", "m", "r2")),
    "edge_to_start": ([*begun, node("m")], edge("m", "n")),
    "child_linked": ([*linked, node("k"), edge("m", "k")], edge("n", "k", kind="forked_from_non_tip")),
    "child_linked to itself": ([*begun, node("m")], edge("m", "m")),
    "child_linked in a circle": ([*begun, node("a"), node("b"), edge("a", "b")], edge("b", "a")),
    "child_linked twice": (linked, edge("n", "m", kind="forked_from_non_tip")),
    "parent_terminal": ([*ended, node("y")], edge("z", "y")),
    "edge_kind_wrong": ([*linked, node("k")], edge("n", "k")),
    "edge_kind_wrong without a fork": ([*begun, node("k")], edge("n", "k", kind="forked_from_non_tip")),
    "output_exists": ([*begun, output("o")], output("o")),
    "output_exists at another node": ([*linked, output("o")], output("o", "m")),
    "output_unknown": (begun, output("o", supersedesOutputId="x")),
    "output_unknown, its own": (begun, output("o", supersedesOutputId="o")),
    "output_of_another_node": ([*linked, output("o")], output("p", "m", supersedesOutputId="o")),
    "gap_exists": ([*begun, gap("g")], gap("g")),
    "gap_unknown": (begun, gap("g", resolvesGapId="x")),
    "gap_unknown, its own": (begun, gap("g", resolvesGapId="g")),
    "gap_unknown, a resolution": ([*begun, gap("g"), gap("h", resolvesGapId="g")], gap("i", resolvesGapId="h")),
}


def members(state: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(state)
    return found


@pytest.mark.parametrize("case", impossible)
def test_an_impossible_event_is_named_and_changes_nothing(case: str) -> None:
    before, event = impossible[case]
    raised: list[Alert] = []
    lines = stored(before)
    (line,) = stored([event], len(lines))
    state = SESSION.fold(SESSION.initial("s-1"), lines)
    assert not state.inconsistent
    expected = members(state) | {"inconsistent": True, "lastEventIndex": len(lines)}
    (refusal,) = SESSION.refusals(state, SESSION.decode(line))
    assert members(SESSION.fold(state, [line], raised.append)) == expected
    assert raised == [refusal]
    assert (refusal.code, refusal.details["reason"]) == ("INVALID_TRANSITION", case.split()[0].strip(","))
    assert refusal.details["eventIndex"] == len(lines)


@pytest.mark.parametrize("case", [case for case, (before, _) in impossible.items() if before])
def test_a_store_that_checks_refuses_an_impossible_event_and_writes_nothing(case: str) -> None:
    before, event = impossible[case]
    if case == "session_differs":
        return  # Its session is another stream, which a store appends to as such.
    with runstate.open("memory:", SESSION, check_transitions=True) as store:
        # One by one under keys of their own, as `stored` gives them.
        for index, line in enumerate(before):
            given = msgspec.json.decode(line) | {"eventId": f"e-{index}", "dedupeKey": f"k:{index}"}
            store.append_event(SESSION.parse(msgspec.json.encode(given)))
        new = msgspec.json.decode(event) | {"eventId": "e-new", "dedupeKey": "new"}
        with pytest.raises(InvalidTransition, match=r"is impossible: (the|there|an|both)") as refused:
            store.append_event(SESSION.parse(msgspec.json.encode(new)))
        assert refused.value.details["reason"] == case.split()[0].strip(",")
        assert len(store.fetch_events("s-1")) == len(before)


def test_a_whole_plan_is_refused_for_one_impossible_event() -> None:
    plan = [created(), started(), node("n"), edge("n", "nowhere")]
    events = [
        SESSION.parse(msgspec.json.encode(msgspec.json.decode(e) | {"dedupeKey": f"k:{i}"})) for i, e in enumerate(plan)
    ]
    with runstate.open("memory:", SESSION, check_transitions=True) as store:
        with pytest.raises(InvalidTransition) as refused:
            store.append_events(events)
        assert (refused.value.details["index"], store.log.stream("s-1")) == (3, None)


# --- unlike anywhere else, a kind that is not known is refused --------------------------------------------


def test_an_unknown_kind_is_refused_by_every_way_in() -> None:
    line = event("node_deleted", {"nodeId": "n"})
    (good,) = stored([created()])
    renamed = good.replace(b"session_created", b"session_deleted")
    ways: list[Callable[[], Any]] = [
        lambda: SESSION.parse(line),
        lambda: SESSION.check_line(line),
        lambda: SESSION.envelope(line),
        lambda: SESSION.check_line(renamed),
        lambda: SESSION.decode(renamed),
        lambda: SESSION.fold(SESSION.initial("s-1"), [renamed]),
    ]
    for way in ways:
        with pytest.raises(InvalidEvent, match=r"_deleted|kind"):
            way()


@pytest.mark.parametrize(
    "spoil",
    [
        (b'"eventIndex":2,', b""),
        (b'"persistedAt":"2026-11-15T09:30:00.500Z",', b""),
        (b'"nodeId":"n",', b'"nodeId":"N",'),
        (b'"nodeKind":"step"', b'"nodeKind":"leap"'),
        (b'"runId":"r",', b""),
        (b'"runId":"r",', b'"runId":"r","nodeId":"n",'),
        (b'"eventId"', b'"unknown":1,"eventId"'),
        (b'"nodeKind"', b'"unknown":1,"nodeKind"'),
        (b"}}", b"}"),
        (b'"sessionId":"s-1"', b'"sessionId":7'),
    ],
    ids=str,
)
def test_a_line_that_is_no_event_is_refused_by_the_fold_as_by_the_decoder(spoil: tuple[bytes, bytes]) -> None:
    lines = stored(begun)
    spoilt = lines[2].replace(*spoil)
    assert spoilt != lines[2]
    for read in (SESSION.decode, lambda line: SESSION.fold(SESSION.initial("s-1"), [*lines[:2], line])):
        with pytest.raises(InvalidEvent):
            read(spoilt)


def test_a_line_of_another_scope_is_refused_by_the_fold_as_by_the_decoder() -> None:
    one_of_each = [*linked, branch("x", "n"), output("o"), preferences("guided", "n"), gap("g"), divergence(), trace()]
    one_of_each += [capability("available", "probe_step")]
    refused = 0
    for line in stored(one_of_each, 10):
        given = {n: v for n, v in msgspec.json.decode(line).items() if n not in ("runId", "nodeId")}
        for scope in ({}, {"runId": "r"}, {"nodeId": "n"}, {"runId": "r", "nodeId": "n"}):
            changed = msgspec.json.encode(given | scope)
            verdicts = []
            for read in (SESSION.decode, SESSION.check_line, lambda line: SESSION.fold(folded(linked), [line])):
                try:
                    read(changed)
                    verdicts.append(True)
                except InvalidEvent:
                    verdicts.append(False)
            assert len(set(verdicts)) == 1, changed
            refused += not verdicts[0]
    assert refused == 3 * len(one_of_each) - 2  # Two kinds may be about a node or about the session.


# --- what the possible ones do ----------------------------------------------------------------------------


def test_a_run_and_its_nodes_are_kept_with_the_indexes_of_their_events() -> None:
    state = folded([*linked, output("o", "m")])
    assert members(state.runs["r"]) == {
        "workflowId": "Fix",
        "workflowHash": workflow,
        "startNodeId": "n",
        "startedIndex": 1,
    }
    first, second = state.nodes["n"], state.nodes["m"]
    assert (first.created_index, first.touched_index, first.children, first.parent_node_id) == (2, 4, ["m"], None)
    assert (second.created_index, second.touched_index, second.edge_kind) == (3, 5, "acked_step")
    assert (second.parent_node_id, second.snapshot_ref, second.current_output_id) == ("n", snapshot, "o")


def test_a_correction_leaves_the_corrected_output_in_place() -> None:
    state = folded([*begun, output("o"), output("p", supersedesOutputId="o")])
    assert state.nodes["n"].current_output_id == "p"
    assert state.outputs["o"].notes == "notes of o"
    assert (state.outputs["o"].superseded_by_output_id, state.outputs["p"].supersedes_output_id) == ("p", "o")


def test_a_resolution_closes_the_gap_that_it_names_and_opens_none() -> None:
    state = folded([*begun, gap("g"), gap("h", resolvesGapId="g")])
    assert (state.gaps["g"].resolved_by_gap_id, state.gaps["h"].resolves_gap_id) == ("h", "g")
    assert [state.gaps[name].is_open for name in "gh"] == [False, False]


def test_weak_provenance_never_replaces_strong() -> None:
    state = folded([*begun, capability("available", "probe_step"), capability("unavailable", "manual_claim")])
    known = state.nodes["n"].capabilities["delegation"]
    assert known.latest_strong is not None
    assert (known.latest.status, known.latest_strong.status) == ("unavailable", "available")


def test_observations_are_the_nodes_or_the_sessions() -> None:
    state = folded([*begun, branch("main"), branch("fix", "n"), branch("dev")])
    assert members(state)["observations"] == {"git_branch": {"value": "dev", "eventIndex": 5}}
    assert members(state.nodes["n"])["observations"] == {"git_branch": {"value": "fix", "eventIndex": 4}}


def test_a_trace_changes_nothing_but_when_its_node_was_touched() -> None:
    before, after = members(folded(begun)), members(folded([*begun, trace()]))
    before["nodes"]["n"]["touchedIndex"] = 3
    assert after == before | {"lastEventIndex": 3}


# --- the fold as such -------------------------------------------------------------------------------------


def fleet() -> list[tuple[str, list[bytes]]]:
    made = []
    for stream, events in histories(7, 12).items():
        drafts = [SESSION.draft(SESSION.parse(line))[1] for line in events]
        made.append((stream, [draft.render(seq, "2026-11-15T09:30:00.500Z") for seq, draft in enumerate(drafts, 1)]))
    return made


def test_the_fold_is_evolve_over_every_event_with_the_same_alerts() -> None:
    inconsistent = []
    for stream, lines in fleet():
        raised: list[Alert] = []
        expected: list[Alert] = []
        state = SESSION.initial(stream)
        for line in lines:
            decoded = SESSION.decode(line)
            expected += SESSION.refusals(state, decoded)
            before = deepcopy(state)
            after = SESSION.evolve(state, decoded)
            assert state == before
            state = after
        whole = SESSION.fold(SESSION.initial(stream), iter(lines), raised.append)
        assert (SESSION.dump(whole), raised) == (SESSION.dump(state), expected)
        inconsistent.append(whole.inconsistent)
    assert set(inconsistent) == {True, False}


def test_folding_on_from_a_snapshot_anywhere_gives_the_same_bytes() -> None:
    for stream, lines in fleet()[:4]:
        whole = SESSION.dump(SESSION.fold(SESSION.initial(stream), lines))
        for cut in range(0, len(lines), 7):
            kept = SESSION.load(SESSION.dump(SESSION.fold(SESSION.initial(stream), lines[:cut])))
            assert SESSION.dump(SESSION.fold(kept, lines[cut:])) == whole


def test_events_that_were_folded_before_change_nothing() -> None:
    for stream, lines in fleet():
        state = SESSION.fold(SESSION.initial(stream), lines)
        once = SESSION.dump(state)
        assert SESSION.dump(SESSION.fold(state, lines)) == once


def test_no_clock_takes_part() -> None:
    for stream, lines in fleet():
        moved = [line.replace(b"2026-11-15T09:30:00.500Z", b"1999-01-01T00:00:00.000Z") for line in lines]
        first, second = (SESSION.fold(SESSION.initial(stream), each) for each in (lines, moved))
        assert SESSION.dump(first) == SESSION.dump(second)


def test_every_kind_says_what_it_says_about_work() -> None:
    told = [(a.kind, a.name, a.scope) for line in [*ended, output("o")] for a in SESSION.activities(typed(line))]
    assert told == [
        ("run_queued", "", ""),
        ("run_resumed", "Fix", ""),
        ("started", "step", "n"),
        ("run_finished", "", ""),
        ("finished", "", "n"),
    ]
