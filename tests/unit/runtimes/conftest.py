"""A place to run graphs in: a store, a run directory, and a way to be killed without a process to lose."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import runstate
from runstate.models.rundir import RUNDIR, RunDirectory, RunEvent
from runstate.runtimes.orchestrator import Graph, Job, Orchestrator
from runstate.runtimes.orchestrator.pool import Pool, ThreadPool
from runstate.runtimes.orchestrator.trail import RunStore


class Killed(BaseException):
    """What a test raises where a process would die. Nothing catches it."""


class Workshop:
    """Runs of graphs in one directory, over one store, with workers in threads."""

    Killed = Killed

    def __init__(self, directory: Path, url: str) -> None:
        self.directory, self.url = directory, url
        self.store: RunStore = runstate.open(url, RUNDIR)
        self._lock, self._ran = threading.Lock(), list[str]()

    # --- what a test does ---------------------------------------------------------------------------

    def orchestrator(self, graph: Graph, run_id: str = "r", pool: Pool | None = None, **options: Any) -> Orchestrator:
        directory = self.directory / "runs" / run_id
        return Orchestrator(graph, self.store, pool or ThreadPool(graph), run_id, directory, **options)

    def start(self, graph: Graph, run_id: str = "r", parameters: dict[str, Any] | None = None) -> RunDirectory:
        return self.orchestrator(graph, run_id).start(parameters)

    def resume(self, graph: Graph, run_id: str = "r", force: set[str] | None = None) -> RunDirectory:
        return self.orchestrator(graph, run_id).resume(force=force)

    def reopen(self, **options: Any) -> None:
        """As another process would find it. What is in memory stays, since nothing else would be left."""
        if self.url != "memory:":
            self.store.close()
            self.store = runstate.open(self.url, RUNDIR, **options)

    def kill_at(self, number: int, *, after: bool = False) -> None:
        """Die at the n-th append from now on: before it, or right after it."""
        append, left = self.store.append_event, number

        def counted(event: RunEvent, **options: Any) -> Any:
            nonlocal left
            left -= 1
            done = append(event, **options) if left or after else None
            if not left:
                self.store.append_event = append  # type: ignore[method-assign]
                raise Killed()
            return done

        self.store.append_event = counted  # type: ignore[method-assign]

    def file(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def note(self, job: Job) -> None:
        """What each worker of a test does first."""
        with self._lock:
            self._ran.append(f"{job._spec.worker}:{job.attempt}:{job.scope_key}")

    # --- what a test looks at -----------------------------------------------------------------------

    def ran(self) -> list[str]:
        """The work items that ran since this was last asked, sorted."""
        with self._lock:
            found, self._ran = sorted(self._ran), []
        return found

    def path(self, name: str, run_id: str = "r") -> Path:
        return self.directory / "runs" / run_id / "artifacts" / name

    def artifacts(self, run_id: str = "r") -> dict[str, bytes]:
        root = self.directory / "runs" / run_id / "artifacts"
        return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}

    def events(self, run_id: str = "r") -> list[RunEvent]:
        return self.store.fetch_events(run_id, limit=100_000)

    def types(self, run_id: str = "r") -> Counter[str]:
        return Counter(event.type for event in self.events(run_id))

    def payloads(self, kind: str, run_id: str = "r") -> list[dict[str, Any]]:
        return [event.payload for event in self.events(run_id) if event.type == kind]

    def state(self, run_id: str = "r") -> RunDirectory:
        return self.store.project_snapshot(run_id)

    def failure(self, run_id: str = "r") -> str:
        return (self.directory / "runs" / run_id / "failure.md").read_text()

    def check_trail(self, run_id: str = "r") -> None:
        """Whatever has happened: the snapshot is what a replay gives, every item that began has ended, and the last
        word is about the run."""
        kept = self.store.snapshots.stored(run_id)
        assert kept is not None
        assert kept.body == self.store.fresh_snapshot(run_id).body
        assert [item.work_item_id for item in self.state(run_id).work_items if item.status == "running"] == []
        assert self.events(run_id)[-1].type in ("RUN_COMPLETED", "RUN_FAILED", "RUN_CANCELLED")
        assert not list(self.store.log.verify(run_id))


def _url(scheme: str, directory: Path) -> str:
    return {"memory": "memory:", "sqlite": f"sqlite:{directory}/log.db", "ndjson": f"ndjson:{directory}/runs"}[scheme]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Workshop]:
    """A workshop over a log in memory."""
    made = Workshop(tmp_path, "memory:")
    yield made
    made.store.close()


@pytest.fixture(params=["memory", "sqlite", "ndjson"])
def any_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workshop]:
    """A workshop, once over each kind of log."""
    made = Workshop(tmp_path, _url(request.param, tmp_path))
    yield made
    made.store.close()


@pytest.fixture
def ndjson_shop(tmp_path: Path) -> Iterator[Workshop]:
    """A workshop whose runs are run directories in full."""
    made = Workshop(tmp_path, _url("ndjson", tmp_path))
    yield made
    made.store.close()


@pytest.fixture
def line_of(shop: Workshop) -> Callable[..., Graph]:
    """`line_of(*names)`: a graph of one node for each name, whose worker copies what the one before it wrote."""

    def made(*names: str) -> Graph:
        source = shop.directory / "source"
        if not source.exists():
            source.write_text("x")
        graph, before = Graph("line", sources={"source": source}), "source"
        for name in names:

            def work(job: Job, name: str = name, before: str = before) -> None:
                shop.note(job)
                job.write(name, job.read(before) + name.encode())

            graph.node(f"make-{name}").worker(inputs=[before], outputs=[name], name=f"to-{name}")(work)
            before = name
        return graph

    return made
