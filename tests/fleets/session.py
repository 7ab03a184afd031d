"""Sessions: runs that are advanced, rewound and forked, outputs that are corrected, gaps that are closed or are not.

Some hold lines that are impossible where they stand, as a writer without checks leaves them behind.
"""

from __future__ import annotations

import random
from hashlib import sha256
from typing import Any

import msgspec

from runstate.models.model import stable_uuid

texts = [
    "done",
    "größer\u2028zwei Zeilen",
    'naïve — “quoted” \\ "twice"',
    "\U0001f9ea x\u0301",
    "tab\tnul\0",
    "# Notes\n\n- a",
]
gap_reasons = ["user_choice_needed", "required_output_missing", "unexpected_failure"]


def histories(seed: int, runs: int) -> dict[str, list[bytes]]:
    return {f"session-{seed}-{number:04d}": _Writer(seed, number).lines() for number in range(runs)}


contents: dict[str, bytes] = {}
"""The blobs that the histories made so far refer to."""


def digest(*parts: Any) -> str:
    data = " ".join(map(str, parts)).encode()
    ref = f"sha256:{sha256(data).hexdigest()}"
    contents[ref] = data
    return ref


class _Writer:
    """One session, written without asking whether what it says is possible."""

    def __init__(self, seed: int, number: int) -> None:
        self.luck = random.Random(f"{seed}-{number}")
        self.session, self.number = f"session-{seed}-{number:04d}", number
        self.written: list[bytes] = []
        self.nodes: dict[str, list[str]] = {}
        self.parents: set[str] = set()

    def write(self, kind: str, data: dict[str, Any], run: str = "", node: str = "", key: str = "") -> None:
        place = str(len(self.written))
        members = {
            "eventId": stable_uuid(self.session, place),
            "sessionId": self.session,
            "kind": kind,
            "dedupeKey": f"{kind}:{key or place}",
            **({"runId": run} if run else {}),
            **({"nodeId": node} if node else {}),
            "data": data,
        }
        self.written.append(msgspec.json.encode(members))

    def lines(self) -> list[bytes]:
        if self.number % 6 != 5:
            self.write("session_created", {"title": f"Session {self.number} {self.luck.choice(texts)}"})
        self.write("observation_recorded", {"observationKind": "git_branch", "value": f"feature/ü-{self.number}"})
        self.write("observation_recorded", {"observationKind": "git_head_sha", "value": f"{self.number:040x}"})
        for number in range(1 + self.number % 2):
            self.run(f"run-{number}", ends=self.number % 3 != 1)
        if self.number % 4 == 3:
            self.impossible()
        return self.written

    def run(self, run: str, *, ends: bool) -> None:
        start, self.nodes[run] = f"{run}-0", []
        pinned = {"workflowId": "Fix.Bug", "workflowHash": digest(run)}
        self.write("run_started", {"runId": run, **pinned, "startNodeId": start})
        self.node(run, start)
        for number in range(1, 4 + self.luck.randrange(5)):
            # Now and then the session goes back to an earlier node, and on from there.
            parent = self.nodes[run][-1] if self.luck.random() < 0.7 else self.luck.choice(self.nodes[run])
            self.say(run, parent)
            self.advance(run, parent, f"{run}-{number}")
        if ends:
            self.advance(run, self.nodes[run][-1], f"{run}-end", isTerminal=True)

    def node(self, run: str, node: str, **more: Any) -> None:
        kind = "checkpoint" if self.luck.random() < 0.1 else "step"
        made = {"nodeId": node, "nodeKind": kind, "snapshotRef": digest(node), "workflowHash": digest(run), **more}
        self.write("node_created", made, run, key=f"{run}:{node}")
        self.nodes[run].append(node)

    def advance(self, run: str, parent: str, child: str, **more: Any) -> None:
        self.node(run, child, **more)
        kind = "forked_from_non_tip" if parent in self.parents else "acked_step"
        self.parents.add(parent)
        edge = {"parentNodeId": parent, "childNodeId": child, "edgeKind": kind}
        self.write("edge_created", edge, run, key=f"{run}:{parent}>{child}")

    def say(self, run: str, node: str) -> None:
        luck, first, place = self.luck, f"o-{len(self.written)}", len(self.written)
        output = {"outputId": first, "notes": luck.choice(texts)}
        artifact = {"name": "größe.png", "digest": digest(first), "contentType": "image/png", "byteLength": place}
        self.write("node_output_appended", {"output": output}, run, node)
        if luck.random() < 0.3:
            better = {**output, "outputId": f"{first}-b", "artifacts": [artifact], "supersedesOutputId": first}
            self.write("node_output_appended", {"output": better}, run, node)
        if luck.random() < 0.2:
            changed = {"autonomy": luck.choice(["guided", "full_auto_never_stop"])}
            whole = {"riskPolicy": "balanced", **changed}
            data = {"preferenceDelta": changed, "effectivePreferencesSnapshot": whole}
            self.write("preferences_changed", data, *((run, node) if luck.random() < 0.7 else ()))
        if luck.random() < 0.3:
            how = luck.choice(["probe_step", "manual_claim"])
            seen = {
                "capability": "web_browsing",
                "status": luck.choice(["available", "unavailable"]),
                "provenance": how,
            }
            self.write("capability_observed", seen, run, node)
        if luck.random() < 0.3:
            gap = {"reason": luck.choice(gap_reasons), "severity": luck.choice(["warning", "critical"])}
            self.write("gap_recorded", {"gapId": f"g-{place}", **gap, "summary": luck.choice(texts)}, run, node)
            if luck.random() < 0.6:
                closed = {**gap, "gapId": f"r-{place}", "summary": "found", "resolvesGapId": f"g-{place}"}
                self.write("gap_recorded", closed, run, node)
        if luck.random() < 0.1:
            self.write("divergence_recorded", {"reason": "step_skipped", "summary": luck.choice(texts)}, run, node)
            items = [{"kind": "selected_next_step", "summary": luck.choice(texts), "stepId": "step.2"}]
            self.write("decision_trace_appended", {"items": items}, run, node)

    def impossible(self) -> None:
        edge = {"parentNodeId": "run-0-0", "childNodeId": "nowhere", "edgeKind": "acked_step"}
        self.write("edge_created", edge, "run-0")
        output = {"outputId": "late", "notes": "x", "supersedesOutputId": "unknown"}
        self.write("node_output_appended", {"output": output}, "run-0", "run-0-0")
        self.write("node_output_appended", {"output": {"outputId": "later", "notes": "x"}}, "run-9", "run-0-0")
