"""What follows from a session's events equals what a naive reading of the same events gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.models.session_lines import (
    begun,
    branch,
    capability,
    created,
    divergence,
    edge,
    folded,
    gap,
    node,
    output,
    preferences,
    started,
    stored,
    trace,
)

from runstate.models.session import SESSION, Projections, ids
from runstate.models.session.payloads import Capability, default_preferences

capabilities: list[Capability] = ["delegation", "web_browsing"]

# --- the rules, one by one --------------------------------------------------------------------------------

forked = [
    *begun,
    *(node("a"), edge("n", "a")),
    *(node("b"), edge("a", "b")),
    *(node("c"), edge("a", "c", kind="forked_from_non_tip")),
]
"""n → a → b, and from a, which was no tip any more, c."""


def looked_at(events: list[bytes]) -> Any:
    state = folded(events)
    assert not state.inconsistent
    return Projections(state)


def test_a_fork_leaves_two_leaves_and_both_edges() -> None:
    seen = looked_at(forked)
    assert seen.leaves("r") == ["b", "c"]
    dag = seen.dag("r")
    assert (dag.nodes, dag.roots) == (["n", "a", "b", "c"], ["n"])
    assert dag.edges == [("n", "a", "acked_step"), ("a", "b", "acked_step"), ("a", "c", "forked_from_non_tip")]


def test_the_preferred_tip_is_the_leaf_that_was_touched_last() -> None:
    assert looked_at(forked).preferred_tip("r") == "c"
    for touch in (
        output("o", "b"),
        gap("g", "b"),
        trace("b"),
        divergence("b"),
        branch("x", "b"),
        preferences("guided", "b"),
    ):
        assert looked_at([*forked, touch]).preferred_tip("r") == "b"
    # What is touched behind the leaves decides nothing.
    assert looked_at([*forked, output("o", "b"), output("p", "c"), output("q", "a")]).preferred_tip("r") == "c"


def test_a_tie_goes_to_the_node_created_later_and_then_to_the_greater_id() -> None:
    state = folded(forked)

    def tip() -> Any:
        return Projections(state).preferred_tip(ids.run_id("r"))

    for touched in state.nodes.values():
        touched.touched_index = 50
    assert tip() == "c"
    state.nodes["b"].created_index = state.nodes["c"].created_index
    assert tip() == "c"
    state.nodes["d"] = state.nodes.pop("b")
    assert tip() == "d"


def test_a_run_without_nodes_has_no_tip_and_is_in_progress() -> None:
    seen = looked_at([created(), started()])
    assert (seen.preferred_tip("r"), seen.run_status("r"), seen.leaves("r")) == (None, "in_progress", [])


def test_preferences_come_from_the_node_else_an_ancestor_else_the_session_else_the_defaults() -> None:
    def autonomy(events: list[bytes], name: str | None) -> Any:
        return looked_at([*forked, *events]).effective_preferences(name).autonomy

    never, stop = "full_auto_never_stop", "full_auto_stop_on_user_deps"
    assert autonomy([], "b") == default_preferences.autonomy == "guided"
    assert autonomy([preferences(never)], "b") == autonomy([preferences(never)], None) == never
    assert autonomy([preferences(stop, "n"), preferences(never)], "b") == stop
    assert autonomy([preferences(stop, "n"), preferences("guided", "a")], "c") == "guided"
    assert autonomy([preferences(stop, "b")], "c") == "guided"


def test_only_strong_provenance_unlocks() -> None:
    def unlocked(*reports: bytes) -> Any:
        return looked_at([*forked, *reports]).is_unlocked("b", "delegation")

    assert not unlocked()
    assert not unlocked(capability("available", "manual_claim", "b"))
    assert unlocked(capability("available", "probe_step", "b"))
    assert unlocked(capability("available", "attempted_use", "n"))
    assert unlocked(capability("available", "probe_step", "n"), capability("unavailable", "manual_claim", "b"))
    assert not unlocked(capability("available", "probe_step", "n"), capability("unavailable", "probe_step", "b"))
    assert not unlocked(capability("available", "probe_step", "c"))
    assert not unlocked(capability("available", "probe_step", "b", "web_browsing"))


def test_a_weak_report_is_there_to_see() -> None:
    seen = looked_at([*forked, capability("available", "probe_step", "n"), capability("unknown", "manual_claim", "a")])
    found = seen.capability("b", "delegation")
    assert found is not None
    assert (found.status, found.provenance) == ("unknown", "manual_claim")
    assert seen.capability("b", "web_browsing") is None


ended = [*forked, node("z", isTerminal=True), edge("c", "z")]
statuses: list[tuple[str, list[bytes], str]] = [
    ("nothing missing", forked, "in_progress"),
    ("a warning", [*forked, gap("g", "c", severity="warning")], "in_progress"),
    ("critical at the tip", [*forked, gap("g", "c")], "blocked"),
    ("critical at an ancestor", [*forked, gap("g", "n")], "blocked"),
    ("critical on another branch", [*forked, gap("g", "b"), output("o", "c")], "in_progress"),
    ("critical and resolved", [*forked, gap("g", "c"), gap("h", "c", resolvesGapId="g")], "in_progress"),
    ("never to be stopped", [*forked, preferences("full_auto_never_stop", "n"), gap("g", "c")], "in_progress"),
    ("ended", ended, "complete"),
    ("ended with a warning", [*ended, gap("g", "a", severity="warning")], "complete_with_gaps"),
    ("ended with a gap at its end", [*ended, gap("g", "z")], "complete_with_gaps"),
    ("ended, missing on another branch", [*ended[:-2], gap("g", "b"), *ended[-2:]], "complete"),
    ("ended and gone on elsewhere", [*ended, output("o", "b")], "in_progress"),
]


@pytest.mark.parametrize(("words", "events", "status"), statuses, ids=[words for words, _, _ in statuses])
def test_the_status_of_a_run(words: str, events: list[bytes], status: str) -> None:
    assert looked_at(events).run_status("r") == status


def test_the_status_of_a_session_is_that_of_the_run_touched_last() -> None:
    assert [SESSION.status(folded(events)) for events in ([], [created()])] == ["", "created"]
    both = [*ended, started("r2", "n2"), node("n2", "r2")]
    assert SESSION.status(folded(both)) == "in_progress"
    assert SESSION.status(folded([*both, output("o", "z")])) == "complete"


def test_a_session_is_over_when_every_run_is() -> None:
    verdicts = [SESSION.is_over(folded(events)) for events in ([], [created()], forked, ended)]
    assert verdicts == [False, False, False, True]
    assert SESSION.is_over(folded([*ended, gap("g", "z")]))
    assert not SESSION.is_over(folded([*ended, started("r2", "n2"), node("n2", "r2")]))


def test_what_the_session_does_not_have_is_a_key_error() -> None:
    seen = looked_at(forked)
    for ask in (seen.dag, seen.leaves, seen.preferred_tip, seen.run_status, seen.effective_preferences):
        with pytest.raises(KeyError):
            ask("nowhere")


# --- against a naive reading ------------------------------------------------------------------------------


class Naive:
    """The same answers, each worked out from the whole list of events, as the documentation words it."""

    def __init__(self, lines: list[bytes]) -> None:
        self.events: list[dict[str, Any]] = [msgspec.json.decode(line) for line in lines]

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] in kinds]

    def nodes(self, run: str | None = None) -> list[str]:
        return [e["data"]["nodeId"] for e in self.of("node_created") if run in (None, e["runId"])]

    def edges(self, run: str) -> set[tuple[str, str, str]]:
        edges = [e["data"] for e in self.of("edge_created") if e["runId"] == run]
        return {(data["parentNodeId"], data["childNodeId"], data["edgeKind"]) for data in edges}

    def leaves(self, run: str) -> list[str]:
        parents = {e["data"]["parentNodeId"] for e in self.of("edge_created")}
        return [name for name in self.nodes(run) if name not in parents]

    def tip(self, run: str) -> str | None:
        def touches(event: dict[str, Any], name: str) -> bool:
            return name in (
                event.get("nodeId"),
                *(event["data"].get(n) for n in ("nodeId", "parentNodeId", "childNodeId")),
            )

        def rank(name: str) -> tuple[int, int, str]:
            touching = [e["eventIndex"] for e in self.events if e["kind"] != "run_started" and touches(e, name)]
            return max(touching), min(touching), name

        return max(self.leaves(run), key=rank, default=None)

    def lineage(self, name: str) -> list[str]:
        parents = [e["data"]["parentNodeId"] for e in self.of("edge_created") if e["data"]["childNodeId"] == name]
        return [name, *(self.lineage(parents[0]) if parents else [])]

    def current_output(self, name: str) -> str | None:
        outputs = [e["data"]["output"] for e in self.of("node_output_appended") if e["nodeId"] == name]
        superseded = {output.get("supersedesOutputId") for output in outputs}
        standing = [output["outputId"] for output in outputs if output["outputId"] not in superseded]
        return standing[-1] if standing else None

    def preferences(self, name: str | None) -> Any:
        for owner in [*(self.lineage(name) if name else []), None]:
            changes = [e["data"] for e in self.of("preferences_changed") if e.get("nodeId") == owner]
            if changes:
                return changes[-1]["effectivePreferencesSnapshot"]
        return {"autonomy": "guided", "riskPolicy": "conservative"}

    def report(self, name: str, capability: str, provenances: set[str]) -> str | None:
        for owner in self.lineage(name):
            reports = [e["data"] for e in self.of("capability_observed") if e["nodeId"] == owner]
            fitting = [r for r in reports if r["capability"] == capability and r["provenance"] in provenances]
            if fitting:
                return str(fitting[-1]["status"])
        return None

    def open_gaps(self) -> list[dict[str, Any]]:
        resolved = {e["data"].get("resolvesGapId") for e in self.of("gap_recorded")}
        gaps = [e for e in self.of("gap_recorded") if "resolvesGapId" not in e["data"]]
        return [gap for gap in gaps if gap["data"]["gapId"] not in resolved]

    def status(self, run: str) -> str:
        tip = self.tip(run)
        if tip is None:
            return "in_progress"
        gaps = [gap["data"] for gap in self.open_gaps() if gap["nodeId"] in self.lineage(tip)]
        (made,) = (e["data"] for e in self.of("node_created") if e["data"]["nodeId"] == tip)
        if made.get("isTerminal"):
            return "complete_with_gaps" if gaps else "complete"
        if self.preferences(tip)["autonomy"] == "full_auto_never_stop":
            return "in_progress"
        return "blocked" if any(gap["severity"] == "critical" for gap in gaps) else "in_progress"


def said_at(draw: Callable[[Any], Any], number: int, name: str, run: str, known: dict[str, list[Any]]) -> bytes:
    """Something about a node: new, or a correction or a resolution of what was said before."""
    outputs = [old for old, owner in known["outputs"] if owner == name]
    gaps = known["gaps"]
    match draw(st.integers(0, 8)):
        case 0 | 1:
            older = {"supersedesOutputId": draw(st.sampled_from(outputs))} if outputs and draw(st.booleans()) else {}
            known["outputs"].append((f"o{number}", name))
            return output(f"o{number}", name, run, **older)
        case 2 | 3:
            if gaps and draw(st.booleans()):
                return gap(f"g{number}", name, run, resolvesGapId=draw(st.sampled_from(gaps)))
            known["gaps"].append(f"g{number}")
            return gap(f"g{number}", name, run, draw(st.sampled_from(["warning", "critical"])))
        case 4:
            where = draw(st.sampled_from(["", name]))
            autonomy = draw(st.sampled_from(["guided", "full_auto_never_stop"]))
            return preferences(autonomy, where, run, draw(st.sampled_from(["balanced", "aggressive"])))
        case 5 | 6:
            how = draw(st.sampled_from(["probe_step", "attempted_use", "manual_claim"]))
            line = capability(
                draw(st.sampled_from(["available", "unavailable"])), how, name, draw(st.sampled_from(capabilities))
            )
            return line.replace(b'"runId":"r"', b'"runId":"%b"' % run.encode())
        case 7:
            return divergence(name, run)
        case _:
            return trace(name, run)


@st.composite
def histories(draw: Callable[[Any], Any]) -> list[bytes]:
    """Sessions that are advanced, rewound, forked and corrected, in one or two runs."""
    events, nodes, parents, ends = [created()], dict[str, list[str]](), set[str](), set[str]()
    known: dict[str, list[Any]] = {"outputs": [], "gaps": []}
    for run in ["r", "q"][: draw(st.integers(1, 2))]:
        events += [started(run, f"{run}0"), node(f"{run}0", run)]
        nodes[run] = [f"{run}0"]
    for number in range(draw(st.integers(0, 25))):
        run = draw(st.sampled_from(sorted(nodes)))
        # The newest first: that is what hypothesis tries most; any earlier one is a rewind.
        name = draw(st.sampled_from(nodes[run][::-1]))
        if name in ends or draw(st.booleans()):
            events.append(said_at(draw, number, name, run, known))
            continue
        child, is_end = f"{run}{len(nodes[run])}", draw(st.integers(0, 5)) == 0
        kind = "forked_from_non_tip" if name in parents else "acked_step"
        events += [node(child, run, isTerminal=is_end), edge(name, child, run, kind)]
        nodes[run].append(child)
        parents.add(name)
        ends |= {child} if is_end else set()
    return stored(events)


@given(lines=histories())
@settings(max_examples=250, deadline=None)
def test_projections_equal_a_naive_recomputation(lines: list[bytes]) -> None:
    state = SESSION.fold(SESSION.initial("s-1"), lines)
    assert not state.inconsistent
    # A snapshot that was kept has forgotten the order of its dictionaries, and must say the same.
    for seen in (Projections(state), Projections(SESSION.load(SESSION.dump(state)))):
        agree(seen, Naive(lines))


def agree(seen: Projections, naive: Naive) -> None:
    for run in seen.state.runs:
        dag = seen.dag(run)
        assert (dag.nodes, {(e.parent, e.child, e.kind) for e in dag.edges}) == (naive.nodes(run), naive.edges(run))
        assert dag.roots == [name for name in naive.nodes(run) if naive.lineage(name) == [name]]
        assert (seen.leaves(run), seen.preferred_tip(run)) == (naive.leaves(run), naive.tip(run))
        assert seen.run_status(run) == naive.status(run)
        assert seen.open_gaps(run) == [e["data"]["gapId"] for e in naive.open_gaps() if e["runId"] == run]
        divergences = [e["eventIndex"] for e in naive.of("divergence_recorded") if e["runId"] == run]
        assert [found.event_index for found in seen.divergences(run)] == divergences
    assert seen.open_gaps() == [e["data"]["gapId"] for e in naive.open_gaps()]
    assert msgspec.to_builtins(seen.effective_preferences()) == naive.preferences(None)
    for name in seen.state.nodes:
        assert list(seen.lineage(name)) == naive.lineage(name)
        assert seen.current_output(name) == naive.current_output(name)
        assert msgspec.to_builtins(seen.effective_preferences(name)) == naive.preferences(name)
        for each in capabilities:
            report = seen.capability(name, each)
            latest = naive.report(name, each, {"probe_step", "attempted_use", "manual_claim"})
            assert (None if report is None else report.status) == latest
            strong = naive.report(name, each, {"probe_step", "attempted_use"})
            assert seen.is_unlocked(name, each) == (strong == "available")
