"""What follows from the facts of a session: tips, what is in force at a node, gaps, statuses.

All of it is a pure function of the state, and none of it looks at a clock. What is inherited is inherited from the
nearest ancestor that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Literal, NamedTuple, TypeVar

from runstate.models.session.ids import GapId, NodeId, OutputId, RunId
from runstate.models.session.payloads import Capability, EdgeKind, Preferences, default_preferences
from runstate.models.session.state import CapabilityReport, Divergence, Gap, Node, Session

RunStatus = Literal["in_progress", "blocked", "complete", "complete_with_gaps"]
T = TypeVar("T")


class Edge(NamedTuple):
    parent: NodeId
    child: NodeId
    kind: EdgeKind


class Dag(NamedTuple):
    """The graph of one run. Nodes stand in the order in which they were created, edges in that of their children."""

    nodes: list[NodeId]
    edges: list[Edge]
    roots: list[NodeId]
    """The start node, and whatever was created without being linked to a parent."""


class Projections:
    """A state looked at. It remembers what it has found: once the state has changed, make another.

    Every answer costs at most the length of a line of ancestors, and asking about every node costs one walk over them
    all. A run or a node that the session does not have is a KeyError.
    """

    def __init__(self, state: Session) -> None:
        self.state = state
        self._leaves: dict[RunId, list[NodeId]] = {}
        self._preferences: dict[NodeId, Preferences | None] = {}
        self._latest: dict[Capability, dict[NodeId, CapabilityReport | None]] = {}
        self._strong: dict[Capability, dict[NodeId, CapabilityReport | None]] = {}

    # --- the graph ---------------------------------------------------------------------------------------------

    def dag(self, run: RunId) -> Dag:
        nodes, found = self.state.nodes, self._nodes_of_runs[run]
        edges = [
            Edge(node.parent_node_id, name, node.edge_kind)
            for name in found
            if (node := nodes[name]).parent_node_id is not None and node.edge_kind is not None
        ]
        return Dag(found, edges, [name for name in found if nodes[name].parent_node_id is None])

    def leaves(self, run: RunId) -> list[NodeId]:
        """The nodes that nothing was advanced from yet, in the order in which they were created."""
        if run not in self._leaves:
            self._leaves[run] = [name for name in self._nodes_of_runs[run] if not self.state.nodes[name].children]
        return self._leaves[run]

    def preferred_tip(self, run: RunId) -> NodeId | None:
        """The leaf to go on from: the one touched last. None for a run without nodes."""
        nodes = self.state.nodes

        def rank(name: NodeId) -> tuple[int, int, NodeId]:
            return nodes[name].touched_index, nodes[name].created_index, name

        return max(self.leaves(run), key=rank, default=None)

    def lineage(self, node: NodeId) -> Iterator[NodeId]:
        """A node and its ancestors, the nearest first."""
        above: NodeId | None = node
        while above is not None:
            yield above
            above = self.state.nodes[above].parent_node_id

    # --- what holds at a node ----------------------------------------------------------------------------------

    def current_output(self, node: NodeId) -> OutputId | None:
        """The latest output of a node that no other supersedes."""
        return self.state.nodes[node].current_output_id

    def effective_preferences(self, node: NodeId | None = None) -> Preferences:
        """Those set at the node, else at the nearest ancestor, else for the session, else the defaults."""
        own = None if node is None else self._nearest(self._preferences, node, lambda found: found.preferences)
        return own or self.state.preferences or default_preferences

    def capability(self, node: NodeId, capability: Capability) -> CapabilityReport | None:
        """The latest report at the node, else at the nearest ancestor, whatever its provenance: for people to see."""

        def latest(found: Node) -> CapabilityReport | None:
            return found.capabilities[capability].latest if capability in found.capabilities else None

        return self._nearest(self._latest.setdefault(capability, {}), node, latest)

    def is_unlocked(self, node: NodeId, capability: Capability) -> bool:
        """Whether the latest report of strong provenance, found like any other, says that it is available."""

        def strong(found: Node) -> CapabilityReport | None:
            return found.capabilities[capability].latest_strong if capability in found.capabilities else None

        report = self._nearest(self._strong.setdefault(capability, {}), node, strong)
        return report is not None and report.status == "available"

    # --- gaps, divergences, statuses ---------------------------------------------------------------------------

    def open_gaps(self, run: RunId | None = None) -> list[GapId]:
        """Gaps that no later event resolves, of one run or of all, in the order of their events."""
        nodes = self.state.nodes
        return [name for name, gap in self._open_gaps if run is None or nodes[gap.node_id].run_id == run]

    def divergences(self, run: RunId | None = None) -> list[Divergence]:
        nodes = self.state.nodes
        return [found for found in self.state.divergences if run is None or nodes[found.node_id].run_id == run]

    def run_status(self, run: RunId) -> RunStatus:
        """How the run stands at its preferred tip. What other branches lack is no matter of it."""
        tip = self.preferred_tip(run)
        if tip is None:
            return "in_progress"
        gaps = [gap for name in self.lineage(tip) for gap in self._open_gaps_of_nodes.get(name, [])]
        if self.state.nodes[tip].is_terminal:
            return "complete_with_gaps" if gaps else "complete"
        stops = self.effective_preferences(tip).autonomy != "full_auto_never_stop"
        return "blocked" if stops and any(gap.severity == "critical" for gap in gaps) else "in_progress"

    def latest_run(self) -> RunId | None:
        """The run that was touched last, or started last where nothing was touched since."""
        runs, nodes = self.state.runs, self.state.nodes

        def rank(run: RunId) -> int:
            return max([nodes[name].touched_index for name in self._nodes_of_runs[run]] + [runs[run].started_index])

        return max(runs, key=rank, default=None)

    # --- how ---------------------------------------------------------------------------------------------------

    def _nearest(self, known: dict[NodeId, T | None], node: NodeId, own: Callable[[Node], T | None]) -> T | None:
        """What a node has itself, or else its nearest ancestor. Every node on the way remembers it."""
        if node in known:
            return known[node]
        nodes, way = self.state.nodes, list[NodeId]()
        above: NodeId | None = node
        found: T | None = None
        while above is not None:
            if above in known:
                found = known[above]
                break
            way.append(above)
            if (found := own(nodes[above])) is not None:
                break
            above = nodes[above].parent_node_id
        for name in way:
            known[name] = found
        return found

    @cached_property
    def _nodes_of_runs(self) -> dict[RunId, list[NodeId]]:
        found: dict[RunId, list[NodeId]] = {run: [] for run in self.state.runs}
        # A snapshot that was loaded has its nodes sorted by name.
        nodes = self.state.nodes
        for name in sorted(nodes, key=lambda name: nodes[name].created_index):
            found[nodes[name].run_id].append(name)
        return found

    @cached_property
    def _open_gaps(self) -> list[tuple[GapId, Gap]]:
        found = [(name, gap) for name, gap in self.state.gaps.items() if gap.is_open]
        return sorted(found, key=lambda item: item[1].event_index)

    @cached_property
    def _open_gaps_of_nodes(self) -> dict[NodeId, list[Gap]]:
        found: dict[NodeId, list[Gap]] = {}
        for _, gap in self._open_gaps:
            found.setdefault(gap.node_id, []).append(gap)
        return found
