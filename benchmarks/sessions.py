"""A long session with many forks: folded, and every projection of it asked for, beside decoding its lines alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, get_args

import msgspec

from benchmarks.case import Aim, Case, Side, Thunk
from runstate.models.model import stable_uuid
from runstate.models.session import SESSION, Projections, Session
from runstate.models.session.payloads import Capability

events_full = 100_000
events_quick = 10_000
_hash = f"sha256:{'0' * 64}"


def cases(quick: bool) -> list[Case]:
    lines = large_session(events_quick if quick else events_full)

    def project() -> None:
        state = SESSION.fold(SESSION.initial("s"), lines)
        if state.inconsistent or not everything(state):
            raise RuntimeError("The session is not what it should be; its figures would mean nothing")

    decode = msgspec.json.Decoder(_Line).decode
    ours = _again("fold and all projections", project, len(lines))
    return [
        Case(
            "session-project",
            ours,
            (_again("decode", lambda: [decode(line) for line in lines], len(lines)),),
            Aim("seconds", 1),
        )
    ]


class _Line(msgspec.Struct):
    kind: str
    data: dict[str, Any]


def large_session(count: int) -> list[bytes]:
    """Goes on for long, and every twenty nodes back to any of them and on from there: a thousand forks in all."""
    luck, written = random.Random(6), _Lines()
    written.add("session_created", {})
    written.add("run_started", {"runId": "r", "workflowId": "w", "workflowHash": _hash, "startNodeId": "n0"})
    nodes, parents = ["n0"], set[str]()
    written.node("n0")
    while len(written.lines) < count:
        parent = nodes[-1] if len(nodes) % 20 else luck.choice(nodes)
        child = f"n{len(nodes)}"
        written.add("node_output_appended", {"output": {"outputId": f"o{len(written.lines)}", "notes": "done"}}, parent)
        if luck.random() < 0.2:
            gap = {
                "gapId": f"g{len(written.lines)}",
                "reason": "user_choice_needed",
                "severity": "warning",
                "summary": "?",
            }
            written.add("gap_recorded", gap, parent)
            probed = {"capability": "delegation", "status": "available", "provenance": "probe_step"}
            written.add("capability_observed", probed, parent)
        written.node(child)
        kind = "forked_from_non_tip" if parent in parents else "acked_step"
        written.add("edge_created", {"parentNodeId": parent, "childNodeId": child, "edgeKind": kind}, scope="run")
        parents.add(parent)
        nodes.append(child)
    return written.lines[:count]


class _Lines:
    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def node(self, name: str) -> None:
        data = {"nodeId": name, "nodeKind": "step", "snapshotRef": _hash, "workflowHash": _hash}
        self.add("node_created", data, scope="run")

    def add(self, kind: str, data: dict[str, Any], node: str = "", scope: str = "") -> None:
        number = len(self.lines)
        line = {
            "eventIndex": number,
            "persistedAt": "2026-11-15T09:30:00.000Z",
            "kind": kind,
            "eventId": stable_uuid(str(number)),
            "sessionId": "s",
            "dedupeKey": f"{kind}:{number}",
            **({"runId": "r"} if scope or node else {}),
            **({"nodeId": node} if node else {}),
            "data": data,
        }
        self.lines.append(msgspec.json.encode(line))


def everything(state: Session) -> int:
    """Ask for all projections of all runs and nodes. How often a capability is unlocked."""
    seen, unlocked = Projections(state), 0
    for run in state.runs:
        seen.dag(run), seen.leaves(run), seen.preferred_tip(run), seen.run_status(run), seen.open_gaps(run)
    for node in state.nodes:
        seen.current_output(node), seen.effective_preferences(node)
        unlocked += sum(seen.is_unlocked(node, each) for each in get_args(Capability) if seen.capability(node, each))
    return unlocked


def _again(name: str, thunk: Thunk, events: int) -> Side:
    @contextmanager
    def opened(_: Path) -> Iterator[Iterator[Thunk]]:
        yield repeat(thunk)

    return Side(name, opened, events)
