"""A graph with any forks is cut into lines that people can read: every node once, the preferred line first."""

from __future__ import annotations

import random
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runstate.cli import session_tree
from runstate.logs.memory.log import MemoryLog
from runstate.models.session import SESSION, Projections, Session
from runstate.models.session.ids import EventIndex, NodeId, RunId
from runstate.models.session.state import Node, Run
from runstate.runtimes.session.node_snapshots import first
from runstate.runtimes.session.stretches import Stretch, every, shown, stretches
from runstate.runtimes.session.workflow import linear

run = RunId("r-1")
workflow = linear("fix", "Find the bug", "Mend it")


def grown(parents: list[int], touched: list[int] | None = None) -> Projections:
    """A run in which node n + 1 follows node `parents[n]`."""
    state: Session = SESSION.initial("s-1")
    state.runs[run] = Run(workflow.workflow_id, workflow.hash, NodeId("n0"), EventIndex(1))
    snapshot = first(workflow).ref
    for number, parent in enumerate([-1, *parents]):
        index = EventIndex(number if touched is None else touched[number])
        node = Node(run, "step", snapshot, False, EventIndex(number), index, None, None, [], None, None, {}, {})
        if parent >= 0:
            above = state.nodes[NodeId(f"n{parent}")]
            node.parent_node_id = NodeId(f"n{parent}")
            node.edge_kind = "forked_from_non_tip" if above.children else "acked_step"
            above.children.append(NodeId(f"n{number}"))
        state.nodes[NodeId(f"n{number}")] = node
    return Projections(state)


trees = st.integers(0, 60).flatmap(lambda count: st.tuples(*(st.integers(0, n) for n in range(count)))).map(list)


def depth(found: list[Stretch]) -> int:
    return 1 + max((depth(stretch.forks) for stretch in found), default=-1)


@given(parents=trees)
def test_every_node_stands_in_one_stretch_and_each_is_a_line(parents: list[int]) -> None:
    seen = grown(parents)
    found = every(stretches(seen, run))
    assert sorted(name for s in found for name in s.nodes) == sorted(seen.state.nodes)
    for stretch in found:
        above = [stretch.forked_from, *stretch.nodes]
        assert [seen.state.nodes[name].parent_node_id for name in stretch.nodes] == above[:-1]
        assert not seen.state.nodes[stretch.nodes[-1]].children
        for fork in stretch.forks:
            assert fork.forked_from in stretch.nodes


@given(parents=trees)
def test_the_first_stretch_leads_to_the_preferred_tip(parents: list[int]) -> None:
    seen = grown(parents)
    (tree,) = stretches(seen, run)
    assert tree.nodes[-1] == seen.preferred_tip(run)
    assert [s.is_preferred for s in every([tree])] == [True] + [False] * (len(every([tree])) - 1)


@given(parents=trees)
def test_stretches_do_not_stand_deep_in_one_another(parents: list[int]) -> None:
    assert depth(stretches(grown(parents), run)) <= log2(len(parents) + 1) + 2


@given(parents=trees, limit=st.integers(1, 20), data=st.data())
def test_what_is_left_out_is_counted_and_the_newest_stays(parents: list[int], limit: int, data: st.DataObject) -> None:
    touched = data.draw(st.permutations(range(len(parents) + 1)))
    total = len(every(stretches(grown(parents, touched), run)))
    kept = every(shown(stretches(grown(parents, touched), run), limit))
    assert kept[0].is_preferred
    assert len(kept) + sum(s.hidden_forks for s in kept) == total
    assert len(kept) >= min(limit, total)
    newest = max(every(stretches(grown(parents, touched), run)), key=lambda s: s.touched_index)
    assert limit == 1 or newest.nodes in [s.nodes for s in kept]


def test_a_line_without_a_fork_is_one_stretch() -> None:
    (tree,) = stretches(grown(list(range(5000))), run)
    assert (len(tree.nodes), tree.forks) == (5001, [])


def test_the_tree_of_a_hundred_thousand_events_over_a_thousand_forks_is_readable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """33,000 nodes, each of which was three events; a thousand forks, from any node."""
    rng, parents = random.Random(6), list[int]()
    for _ in range(1000):
        at = rng.randrange(len(parents) + 1)
        for _ in range(33):
            parents.append(at)
            at = len(parents)
    seen = grown(parents)
    with MemoryLog() as log:
        for blob in (workflow.to_bytes(), first(workflow).to_bytes()):
            log.put_blob(blob)
        session_tree.draw(log, seen, run, 50)
    drawn, told = capsys.readouterr()
    lines = drawn.rstrip("\n").split("\n")
    assert "★ preferred" in lines[1]
    assert 50 <= sum("at step-1: Find the bug" in line for line in lines) <= 60
    assert len(lines) <= 120
    assert max(len(line.rstrip()) for line in lines) <= 120
    forks = len(every(stretches(seen, run)))
    assert f"of {forks} lines of nodes" in told
    assert forks > 900
