"""The worked example, killed with SIGKILL after every single event: resume ends with the same site, nothing done twice.

This file is also a program: it loads the example once, and forks a process for each kill.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from tests.crash.kills import KillAfter, in_a_fork

import runstate
from runstate.models.rundir import RUNDIR
from runstate.runtimes.orchestrator import Graph, Job, Orchestrator, load_graph
from runstate.runtimes.orchestrator.graph import Worker
from runstate.runtimes.orchestrator.pool import ThreadPool

root = Path(__file__).parents[2]
example = root / "examples/site/site.py"


def watched(graph: Graph, effects: Path) -> Graph:
    """The graph with workers that leave a line behind before they begin."""

    def noting(worker: Worker) -> Worker:
        def work(job: Job) -> None:
            with effects.open("a") as file:
                file.write(f"{worker.name}:{job.scope_key}\n")
            worker.work(job)

        return msgspec.structs.replace(worker, work=work)

    for node in graph.nodes:
        node.workers = [noting(worker) for worker in node.workers]
        if node.loop is not None:
            node.loop = msgspec.structs.replace(
                node.loop, validate=noting(node.loop.validate), fix=noting(node.loop.fix)
            )
    return graph


def go(directory: Path, kill_after: int) -> None:
    """Start or resume the run in a directory, and write down what was finished before, what ran, what came of it."""
    effects = directory / "effects"
    graph = watched(load_graph(f"{example}:graph"), effects)
    with runstate.open(f"ndjson:{directory / 'runs'}", RUNDIR) as store:
        begun = store.log.stream("r") is not None
        items = store.current_state("r").work_items if begun else []
        # Without the attempt: what is done again is done as another one.
        finished = [f"{item.worker}:{item.scope_key}" for item in items if item.status == "finished"]
        effects.write_text("")
        orchestrator = Orchestrator(
            graph, store, ThreadPool(graph), "r", directory / "runs/r", telemetry=[KillAfter(kill_after)]
        )
        state = orchestrator.resume() if begun else orchestrator.start()
        root = directory / "runs/r/artifacts"
        outcome = {
            "state": state.run_state,
            "events": len(store.fetch_events("r")),
            "twice": sorted(set(finished) & set(effects.read_text().split())),
            "artifacts": {str(p.relative_to(root)): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()},
        }
    (directory / "outcome.json").write_text(json.dumps(outcome))


def life(root: Path, kill_after: int) -> dict[str, Any]:
    directory = root / str(kill_after)
    directory.mkdir()
    if kill_after and in_a_fork(lambda: go(directory, kill_after)) != -signal.SIGKILL:
        raise SystemExit(f"the run was not killed after event {kill_after}")
    if in_a_fork(lambda: go(directory, 0)) != 0:
        raise SystemExit(f"the run could not be resumed after event {kill_after}")
    outcome: dict[str, Any] = json.loads((directory / "outcome.json").read_text())
    return outcome


def test_the_example_survives_a_kill_after_every_single_event() -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.test_site_kills"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = program.communicate(timeout=120)
    finally:
        # Its forks too: one that hangs must not outlive the test.
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == 0, err
    unbroken, *broken = [json.loads(line) for line in out.split("\n") if line]
    assert len(broken) == unbroken["events"] > 50
    for kill_after, outcome in enumerate(broken, 1):
        assert (outcome["state"], outcome["twice"]) == ("COMPLETED", []), kill_after
        assert outcome["artifacts"] == unbroken["artifacts"], kill_after


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        whole = life(Path(name), 0)
        sys.stdout.write(json.dumps(whole) + "\n")
        for number in range(1, whole["events"] + 1):
            sys.stdout.write(json.dumps(life(Path(name), number)) + "\n")
