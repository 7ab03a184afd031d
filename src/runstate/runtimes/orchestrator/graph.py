"""What an application declares: nodes in order, the workers of each, and the artifacts that they read and write.

    graph = Graph("report", sources={"sales.csv": "data/sales.csv"})
    load = graph.node("load", entry="LOADING", exit="LOADED")

    @load.worker(inputs=["sales.csv"], outputs=["sales.json"])
    def clean(job): job.write("sales.json", ...)

A node is entered by changing the run's state to `entry`, and left by changing it to `exit`, where the run may rest. The
name of an artifact may hold `{scope}`: the worker then runs once for each key that its `scopes` gives. A worker that
declares no output gets one, its receipt, so that what it has read is known and it runs again when that changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from runstate.errors import RunstateError
from runstate.models.places import load_place, why

if TYPE_CHECKING:
    from runstate.runtimes.orchestrator.job import Job, RunView

Work = Callable[["Job"], None]
Scopes = Callable[["RunView"], Iterable[str]]
Check = Callable[[bytes], None]
"""Raises ValueError when an artifact's bytes are not what they should be."""

_name = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_artifact = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
no_scope = "-"
"""The scope key of a worker that runs once."""


class InvalidGraph(RunstateError):
    """The graph cannot be run as it is declared."""

    code = "graph.invalid"


class Output(msgspec.Struct, frozen=True):
    """An artifact that a worker writes; `check` refuses bytes that break its schema."""

    name: str
    schema_id: str | None = None
    check: Check | None = None


class Worker(msgspec.Struct, frozen=True):
    """A function with declared inputs and outputs: the same inputs always give the same outputs."""

    name: str
    work: Work
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    scopes: Scopes | None = None
    timeout_s: float = 3600.0
    attempts_max: int = 1
    receipt: str | None = None
    """The output that the orchestrator writes in the worker's place: the issues that it has reported."""


class FixLoop(msgspec.Struct, frozen=True):
    """Validate; as long as there are issues, fix the first and validate again."""

    validate: Worker
    fix: Worker
    rounds_max: int


class Node:
    """A stretch of a run between two states."""

    def __init__(self, name: str, entry: str, exit_: str) -> None:
        self.name, self.entry, self.exit = name, entry, exit_
        self.workers: list[Worker] = []
        self.loop: FixLoop | None = None

    def worker(
        self,
        *,
        inputs: Sequence[str] = (),
        outputs: Sequence[str | Output] = (),
        scopes: Scopes | Sequence[str] | None = None,
        name: str | None = None,
        timeout_s: float = 3600.0,
        attempts: int = 1,
    ) -> Callable[[Work], Work]:
        """Declare a worker of this node."""

        def declare(work: Work) -> Work:
            called = name or str(getattr(work, "__name__", ""))
            keys = scopes if scopes is None or callable(scopes) else _Fixed(scopes)
            receipt = None if outputs else f"receipts/{called}{'.json' if keys is None else '/{scope}.json'}"
            made = _outputs(outputs) if receipt is None else (Output(receipt),)
            self.workers.append(Worker(called, work, tuple(inputs), made, keys, timeout_s, attempts, receipt))
            return work

        return declare

    def fix_loop(
        self,
        *,
        validate: Work,
        fix: Work,
        inputs: Sequence[str],
        rewrites: Sequence[str | Output],
        rounds: int = 10,
        timeout_s: float = 3600.0,
    ) -> None:
        """Make this node a loop: `validate` reports issues, `fix` gets the first of them and may rewrite artifacts."""
        changed, report = _outputs(rewrites), f"gates/{validate.__name__}.json"
        # What a fix rewrites it also reads, so the names are those of both.
        names = tuple(dict.fromkeys([*inputs, *(output.name for output in changed)]))
        self.loop = FixLoop(
            Worker(validate.__name__, validate, names, (Output(report),), None, timeout_s, 1, report),
            Worker(fix.__name__, fix, names, changed, None, timeout_s),
            rounds,
        )

    def all_workers(self) -> list[Worker]:
        return self.workers if self.loop is None else [*self.workers, self.loop.validate, self.loop.fix]


class Graph:
    """The nodes of an application, in the order in which a run goes through them."""

    def __init__(self, name: str, *, sources: Mapping[str, str | Path] | None = None, parallel: int = 2) -> None:
        self.name, self.parallel = name, parallel
        self.sources = {key: Path(path) for key, path in (sources or {}).items()}
        self.nodes: list[Node] = []

    def node(self, name: str, *, entry: str | None = None, exit: str | None = None) -> Node:
        """Add a node behind the ones there are. By default its states are named after it."""
        added = Node(name, entry or f"{name.upper()}_RUNNING", exit or f"{name.upper()}_DONE")
        self.nodes.append(added)
        return added

    def workers(self) -> dict[str, Worker]:
        return {worker.name: worker for node in self.nodes for worker in node.all_workers()}

    def stable_states(self) -> list[str]:
        """Where a run may rest: created, and behind each node."""
        return ["CREATED", *(node.exit for node in self.nodes)]

    def check(self) -> None:
        """Refuse a graph that cannot be run, before anything runs.

        Raises:
            InvalidGraph: what is wrong, and where.
        """
        if not self.nodes or self.parallel < 1:
            raise InvalidGraph("A graph needs at least one node, and parallel of at least 1")
        _check_states(self)
        _check_names(self)
        _check_artifacts(self)


class _Fixed:
    """Scope keys that are known from the beginning, and so can be checked before anything runs."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys

    def __call__(self, view: RunView) -> Iterable[str]:
        return self.keys


def _outputs(outputs: Sequence[str | Output]) -> tuple[Output, ...]:
    return tuple(Output(output) if isinstance(output, str) else output for output in outputs)


def _check_states(graph: Graph) -> None:
    seen = {"CREATED", "COMPLETED", "FAILED", "CANCELLED"}
    for node in graph.nodes:
        for state in (node.entry, node.exit):
            if state in seen:
                raise InvalidGraph(f"The state {state} of node {node.name!r} was passed before: the graph has a cycle")
            seen.add(state)


def _check_names(graph: Graph) -> None:
    nodes, names = set[str](), set[str]()
    for node in graph.nodes:
        if node.name in nodes:
            raise InvalidGraph(f"There are two nodes called {node.name!r}")
        if node.loop is not None and node.loop.rounds_max < 0:
            raise InvalidGraph(f"The loop of {node.name!r} needs a number of rounds, not {node.loop.rounds_max}")
        nodes.add(node.name)
        for worker in node.all_workers():
            if not _name.fullmatch(worker.name):
                raise InvalidGraph(f"{worker.name!r} is no name for a worker: letters, digits, dot, dash, underscore")
            if worker.name in names:
                raise InvalidGraph(f"There are two workers called {worker.name!r}")
            if not worker.timeout_s > 0 or worker.attempts_max < 1:
                raise InvalidGraph(f"The worker {worker.name!r} needs a timeout above 0 and at least one attempt")
            if isinstance(worker.scopes, _Fixed):
                check_scopes(worker, worker.scopes.keys)
            names.add(worker.name)


def _check_artifacts(graph: Graph) -> None:
    written: dict[str, str] = {}
    read: dict[str, str] = {}
    for name in graph.sources:
        _check_artifact(name, "the sources", has_scopes=False)
        written[name] = "a source"
    for node in graph.nodes:
        for worker in node.workers:
            _claim(worker, written)
        _ordered(node.workers, node.name)
        for worker in node.all_workers():
            for name in worker.inputs:
                if name not in written and not matching_sources(graph, name):
                    raise InvalidGraph(f"Nobody writes {name!r} before {worker.name!r} in {node.name!r} reads it")
        read.update((name, worker.name) for worker in node.workers for name in worker.inputs)
        if node.loop is not None:
            _check_rewrites(graph, node.loop.fix, written, read)
            _claim(node.loop.validate, written)
            read.update((name, node.loop.validate.name) for name in node.loop.validate.inputs)
    for name in written:
        if inner := next((other for other in written if other.startswith(f"{name}/")), None):
            raise InvalidGraph(f"{name!r} cannot be a file, since {inner!r} needs it to be a directory")


def _claim(worker: Worker, written: dict[str, str]) -> None:
    for output in worker.outputs:
        name = output.name
        _check_artifact(name, f"the worker {worker.name!r}", has_scopes=worker.scopes is not None)
        if name in written:
            raise InvalidGraph(f"Two workers write the artifact {name!r}: {written[name]} and {worker.name}")
        written[name] = worker.name


def _check_rewrites(graph: Graph, fix: Worker, written: dict[str, str], read: dict[str, str]) -> None:
    """A fix changes only what was made in this run, and what nothing but its own loop has read: nothing goes stale."""
    for output in fix.outputs:
        if output.name not in written or output.name in graph.sources:
            raise InvalidGraph(f"{fix.name!r} rewrites {output.name!r}, which no worker before it writes")
        if output.name in read:
            reader = read[output.name]
            raise InvalidGraph(f"{fix.name!r} rewrites {output.name!r}, which {reader!r} has read; put that behind it")


def _check_artifact(name: str, whose: str, *, has_scopes: bool) -> None:
    if not _artifact.fullmatch(name.replace("{scope}", "x")) or len(name) > 200:
        raise InvalidGraph(f"{name!r} of {whose} is no name for an artifact: a relative path without '..'")
    if ("{scope}" in name) != has_scopes:
        raise InvalidGraph(f"{name!r} of {whose} needs {{scope}} if it has scopes, and only then")


def _ordered(workers: list[Worker], node: str) -> list[Worker]:
    """The workers of a node in an order in which each comes after those it reads from, else as declared.

    Raises:
        InvalidGraph: they wait for each other.
    """
    makers = {output.name: worker.name for worker in workers for output in worker.outputs}
    done: set[str] = set()
    order: list[Worker] = []
    while len(order) < len(workers):
        ready = [w for w in workers if w.name not in done and {makers[i] for i in w.inputs if i in makers} <= done]
        if not ready:
            waiting = ", ".join(sorted(w.name for w in workers if w.name not in done))
            raise InvalidGraph(f"The graph has a cycle: in node {node!r} these wait for each other: {waiting}")
        order.append(ready[0])
        done.add(ready[0].name)
    return order


def ordered_workers(node: Node) -> list[Worker]:
    """The workers of a checked node, each after those it reads from."""
    return _ordered(node.workers, node.name)


def scoped(name: str, scope_key: str) -> str:
    """The name of an artifact within one scope."""
    return name.replace("{scope}", scope_key)


def matching_sources(graph: Graph, name: str) -> list[str]:
    """The sources that an input with `{scope}` in its name stands for."""
    first, *others = (re.escape(part) for part in name.split("{scope}"))
    pattern = f"{first}(?P<key>{_name.pattern})" + "(?P=key)".join(others)
    return sorted(source for source in graph.sources if others and re.fullmatch(pattern, source))


def check_scopes(worker: Worker, keys: Iterable[Any]) -> list[str]:
    """The scope keys of a worker, sorted, each usable in a name and an id.

    Raises:
        InvalidGraph: one is not.
    """
    if isinstance(keys, str):
        raise InvalidGraph(f"The scopes of {worker.name!r} are one text, {keys!r}; give a list of keys")
    found = list(keys)
    for key in found:
        if not isinstance(key, str) or not _name.fullmatch(key) or key in (".", ".."):
            raise InvalidGraph(f"{key!r} of {worker.name!r} is no scope key: letters, digits, dot, dash, underscore")
    if len(set(found)) != len(found):
        raise InvalidGraph(f"The worker {worker.name!r} has a scope key twice")
    return sorted(found)


def load_graph(place: str) -> Graph:
    """The graph at a place: `app.py:graph`, or `package.module:graph`.

    Raises:
        InvalidGraph: nothing is there, it cannot be loaded, or what is there is no graph that can be run.
    """
    try:
        graph = load_place(place)
    except Exception as error:
        raise InvalidGraph(f"The graph {place!r} cannot be loaded: {why(place, error)}") from error
    if not isinstance(graph, Graph):
        raise InvalidGraph(f"{place!r} is a {type(graph).__name__}, not a Graph")
    graph.check()
    return graph
