"""A run's graph cut into stretches, so that people can read it: lines of nodes, and the forks that leave them.

The first stretch is the line to the preferred tip. Any other goes from where it was forked along the child with most
nodes behind it. So a thousand forks make a thousand stretches, but no more than ten of them stand in one another.
"""

from __future__ import annotations

import msgspec

from runstate.models.session import Projections
from runstate.models.session.ids import NodeId, RunId


class Stretch(msgspec.Struct, kw_only=True, rename="camel"):
    """Nodes that follow each other without a choice having to be told about, up to a tip."""

    nodes: list[NodeId]
    """From the first to the tip."""
    forked_from: NodeId | None
    """The node of another stretch that the first one follows."""
    touched_index: int
    """Of the newest event at any of its nodes."""
    is_preferred: bool = False
    forks: list[Stretch] = []
    """The stretches that leave this one, in the order in which they were begun."""
    hidden_forks: int = 0
    """How many more there are, with all that leave those, that `shown` has left out."""


def stretches(seen: Projections, run: RunId) -> list[Stretch]:
    """One tree of stretches for each root of the run; there is one, unless something was never linked to it."""
    nodes, dag, tip = seen.state.nodes, seen.dag(run), seen.preferred_tip(run)
    weight = dict.fromkeys(dag.nodes, 1)
    for edge in reversed(dag.edges):  # Children are created after their parents.
        weight[edge.parent] += weight[edge.child]
    preferred = set() if tip is None else set(seen.lineage(tip))
    made: list[Stretch] = []
    begun: list[tuple[NodeId, Stretch | None]] = [(root, None) for root in reversed(dag.roots)]
    while begun:
        name, parent = begun.pop()
        stretch = Stretch(nodes=[name], forked_from=nodes[name].parent_node_id, touched_index=0)
        (made if parent is None else parent.forks).append(stretch)
        while children := nodes[stretch.nodes[-1]].children:
            ahead = max(children, key=lambda child: (child in preferred, weight[child], child))
            begun += [(child, stretch) for child in reversed(children) if child != ahead]
            stretch.nodes.append(ahead)
        stretch.touched_index = max(nodes[name].touched_index for name in stretch.nodes)
        stretch.is_preferred = stretch.nodes[-1] == tip
    for stretch in every(made):
        stretch.forks.sort(key=lambda fork: nodes[fork.nodes[0]].created_index)
    return made


def every(trees: list[Stretch]) -> list[Stretch]:
    """All stretches, each after the one that it leaves."""
    found = list(trees)
    for stretch in found:
        found += stretch.forks
    return found


def shown(trees: list[Stretch], limit: int) -> list[Stretch]:
    """The same trees with about `limit` stretches left in them: the preferred one, those touched last, and all on the
    way to them."""
    found = every(trees)
    if len(found) <= limit:
        return trees
    parents = {id(fork): stretch for stretch in found for fork in stretch.forks}
    kept: set[int] = set()
    for stretch in sorted(found, key=lambda each: (not each.is_preferred, -each.touched_index)):
        if len(kept) >= limit:
            break
        way: Stretch | None = stretch
        while way is not None and id(way) not in kept:
            kept.add(id(way))
            way = parents.get(id(way))
    for stretch in found:
        stretch.hidden_forks = len(every([fork for fork in stretch.forks if id(fork) not in kept]))
        stretch.forks = [fork for fork in stretch.forks if id(fork) in kept]
    return [tree for tree in trees if id(tree) in kept]
