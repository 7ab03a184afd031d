"""A graph that cannot be run is refused before anything runs, with what is wrong and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from runstate.runtimes.orchestrator import Graph, InvalidGraph, Job, Node, load_graph
from runstate.runtimes.orchestrator.graph import check_scopes, ordered_workers


def work(job: Job) -> None: ...


def other(job: Job) -> None: ...


def two_nodes() -> tuple[Graph, Node, Node]:
    graph = Graph("g", sources={"source": "source"})
    return graph, graph.node("first"), graph.node("second")


def without_nodes(graph: Graph, first: Node, second: Node) -> None:
    graph.nodes.clear()


def without_parallelism(graph: Graph, first: Node, second: Node) -> None:
    graph.parallel = 0


def with_a_cycle_of_states(graph: Graph, first: Node, second: Node) -> None:
    second.exit = first.entry


def with_a_state_of_the_runs_own(graph: Graph, first: Node, second: Node) -> None:
    second.exit = "COMPLETED"


def with_two_nodes_of_one_name(graph: Graph, first: Node, second: Node) -> None:
    second.name = first.name


def with_a_cycle_of_artifacts(graph: Graph, first: Node, second: Node) -> None:
    first.worker(inputs=["b"], outputs=["a"])(work)
    first.worker(inputs=["a"], outputs=["b"])(other)


def with_a_worker_that_reads_itself(graph: Graph, first: Node, second: Node) -> None:
    first.worker(inputs=["a"], outputs=["a"])(work)


def with_a_cycle_of_nodes(graph: Graph, first: Node, second: Node) -> None:
    first.worker(inputs=["b"], outputs=["a"])(work)
    second.worker(inputs=["a"], outputs=["b"])(other)


def with_two_writers(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["a"])(work)
    second.worker(outputs=["a"])(other)


def with_a_writer_of_a_source(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["source"])(work)


def with_a_file_in_a_file(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["a"])(work)
    second.worker(outputs=["a/b"])(other)


def with_two_workers_of_one_name(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["a"])(work)
    second.worker(outputs=["b"])(work)


def with_an_input_that_nobody_writes(graph: Graph, first: Node, second: Node) -> None:
    first.worker(inputs=["missing"], outputs=["a"])(work)


def with_a_name_that_leaves_the_directory(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["a/../../b"])(work)


def with_an_absolute_name(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["/etc/passwd"])(work)


def with_an_unknown_placeholder(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["{key}/{scope}"], scopes=["a"])(work)


def with_a_source_that_leaves_the_directory(graph: Graph, first: Node, second: Node) -> None:
    graph.sources["../x"] = Path("x")


def with_a_scope_but_no_scopes(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["{scope}"])(work)


def with_scopes_but_no_scope(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["a"], scopes=["x", "y"])(work)


def with_scopes_that_are_one_text(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["{scope}"], scopes="abc")(work)


def with_a_scope_that_leaves_the_directory(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["{scope}"], scopes=["../x"])(work)


def with_a_name_of_a_worker_that_is_none(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["a"], name="a:b")(work)


def with_no_time(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["a"], timeout_s=float("nan"))(work)


def with_no_attempts(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["a"], attempts=0)(work)


def with_less_than_no_rounds(graph: Graph, first: Node, second: Node) -> None:
    first.fix_loop(validate=work, fix=other, inputs=["source"], rewrites=[], rounds=-1)


def with_a_fix_of_a_source(graph: Graph, first: Node, second: Node) -> None:
    first.fix_loop(validate=work, fix=other, inputs=["source"], rewrites=["source"])


def with_a_fix_of_nothing(graph: Graph, first: Node, second: Node) -> None:
    first.fix_loop(validate=work, fix=other, inputs=["source"], rewrites=["missing"])


def with_a_fix_of_what_was_read_before(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["a"], name="make")(work)
    first.worker(inputs=["a"], outputs=["b"], name="read")(work)
    second.fix_loop(validate=work, fix=other, inputs=["a"], rewrites=["a"])


def with_two_loops_over_one_artifact(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["a"], name="make")(work)
    first.fix_loop(validate=work, fix=other, inputs=["a"], rewrites=["a"])
    second.fix_loop(validate=check, fix=repair, inputs=["a"], rewrites=["a"])


def check(job: Job) -> None: ...


def repair(job: Job) -> None: ...


def with_a_writer_of_a_report(graph: Graph, first: Node, second: Node) -> None:
    first.worker(outputs=["gates/check.json"])(work)
    second.fix_loop(validate=check, fix=other, inputs=["source"], rewrites=[])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without_nodes, "at least one node"),
        (without_parallelism, "parallel of at least 1"),
        (with_a_cycle_of_states, "cycle"),
        (with_a_state_of_the_runs_own, "COMPLETED"),
        (with_two_nodes_of_one_name, "two nodes called 'first'"),
        (with_a_cycle_of_artifacts, "wait for each other: other, work"),
        (with_a_worker_that_reads_itself, "wait for each other: work"),
        (with_a_cycle_of_nodes, "Nobody writes 'b' before 'work'"),
        (with_two_writers, "Two workers write the artifact 'a': work and other"),
        (with_a_writer_of_a_source, "'source': a source and work"),
        (with_a_file_in_a_file, "'a' cannot be a file"),
        (with_two_workers_of_one_name, "two workers called 'work'"),
        (with_an_input_that_nobody_writes, "Nobody writes 'missing'"),
        (with_a_name_that_leaves_the_directory, "no name for an artifact"),
        (with_an_absolute_name, "no name for an artifact"),
        (with_an_unknown_placeholder, "no name for an artifact"),
        (with_a_source_that_leaves_the_directory, "no name for an artifact"),
        (with_a_scope_but_no_scopes, "needs {scope}"),
        (with_scopes_but_no_scope, "needs {scope}"),
        (with_scopes_that_are_one_text, "one text"),
        (with_a_scope_that_leaves_the_directory, "no scope key"),
        (with_a_name_of_a_worker_that_is_none, "no name for a worker"),
        (with_no_time, "timeout"),
        (with_no_attempts, "attempt"),
        (with_less_than_no_rounds, "rounds"),
        (with_a_fix_of_a_source, "no worker before it writes"),
        (with_a_fix_of_nothing, "Nobody writes 'missing'"),
        (with_a_fix_of_what_was_read_before, "which 'read' has read"),
        (with_two_loops_over_one_artifact, "which 'work' has read"),
        (with_a_writer_of_a_report, "Two workers write"),
    ],
)
def test_a_graph_is_refused(spoil: Callable[[Graph, Node, Node], None], said: str) -> None:
    graph, first, second = two_nodes()
    graph.check()
    spoil(graph, first, second)
    with pytest.raises(InvalidGraph) as refused:
        graph.check()
    assert said in str(refused.value)


@pytest.mark.parametrize("keys", [["../x"], [""], ["a", "a"], ["a", 7], [None], [b"a"], ["."], [".."], ["a/b"], "ab"])
def test_scope_keys_are_refused(keys: list[str]) -> None:
    _, first, _ = two_nodes()
    first.worker(outputs=["{scope}"], scopes=lambda view: keys)(work)
    with pytest.raises(InvalidGraph):
        check_scopes(first.workers[0], keys)


def test_workers_come_behind_those_they_read_from_else_as_declared() -> None:
    _, node, _ = two_nodes()
    node.worker(inputs=["b"], outputs=["c"], name="last")(work)
    node.worker(outputs=["z"], name="free")(work)
    node.worker(inputs=["a"], outputs=["b"], name="middle")(work)
    node.worker(outputs=["a"], name="first")(work)
    assert [worker.name for worker in ordered_workers(node)] == ["free", "first", "middle", "last"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("graph = 7", "is a int, not a Graph"),
        ("1 / 0", "ZeroDivisionError"),
        ("import no_such_module", "no_such_module"),
        ("def (", "SyntaxError"),
        ("other = 1", "graph"),
        ("from runstate.runtimes.orchestrator import Graph\ngraph = Graph('g')", "at least one node"),
    ],
)
def test_a_place_without_a_graph_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "app.py").write_text(text)
    with pytest.raises(InvalidGraph) as refused:
        load_graph(f"{tmp_path}/app.py:graph")
    assert said in str(refused.value)
