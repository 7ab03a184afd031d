"""What changed is made again with all that depends on it, and nothing else; also if the orchestrator dies meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runstate.runtimes.orchestrator import Graph, Job, RunView


def fifty(shop: Any) -> Graph:
    """24 sources, each copied and turned around, one worker that reads all copies, and one behind it."""
    keys = [f"{number:02}" for number in range(24)]
    for key in keys:
        if not (shop.directory / key).exists():
            shop.file(key, key)
    graph = Graph("fifty", sources={f"in/{key}": shop.directory / key for key in keys}, parallel=4)
    first, second = graph.node("first"), graph.node("second")

    @first.worker(inputs=["in/{scope}"], outputs=["copy/{scope}"], scopes=keys)
    def copy(job: Job) -> None:
        shop.note(job)
        job.write("copy/{scope}", job.read("in/{scope}"))

    @first.worker(inputs=["copy/{scope}"], outputs=["turned/{scope}"], scopes=keys)
    def turn(job: Job) -> None:
        shop.note(job)
        job.write("turned/{scope}", job.read("copy/{scope}")[::-1])

    @second.worker(inputs=["copy/{scope}"], outputs=["all"])
    def gather(job: Job) -> None:
        shop.note(job)
        job.write("all", b" ".join(job.read(name) for name in job.inputs))

    @second.worker(inputs=["all"], outputs=["size"])
    def size(job: Job) -> None:
        shop.note(job)
        job.write("size", str(len(job.read("all"))))

    return graph


def test_editing_one_source_of_fifty_items_makes_exactly_its_dependents_again(shop: Any) -> None:
    shop.start(fifty(shop))
    assert len(shop.ran()) == 50
    shop.file("07", "new")
    assert shop.resume(fifty(shop)).run_state == "COMPLETED"
    assert shop.ran() == ["copy:2:07", "gather:2:-", "size:2:-", "turn:2:07"]
    assert shop.path("turned/07").read_text() == "wen"
    assert [p["name"] for p in shop.payloads("ARTIFACT_STALED")] == ["copy/07", "turned/07", "all", "size"]
    shop.check_trail()


def test_editing_one_artifact_of_fifty_items_makes_exactly_its_dependents_again(shop: Any) -> None:
    shop.start(fifty(shop))
    shop.ran()
    shop.path("copy/07").write_text("edited")
    shop.resume(fifty(shop))
    assert shop.ran() == ["gather:2:-", "size:2:-", "turn:2:07"]
    assert shop.path("copy/07").read_text() == "edited"
    assert shop.path("turned/07").read_text() == "detide"
    shop.check_trail()


def test_touching_files_makes_nothing_again(shop: Any) -> None:
    shop.start(fifty(shop))
    shop.ran()
    before = len(shop.events())
    for path in shop.directory.rglob("*"):
        os.utime(path, (1, 1))
    shop.path("copy/07").write_bytes(shop.path("copy/07").read_bytes())
    shop.resume(fifty(shop))
    assert shop.ran() == []
    assert len(shop.events()) == before


def test_deleting_an_artifact_makes_it_and_its_dependents_again(shop: Any) -> None:
    shop.start(fifty(shop))
    before = shop.artifacts()
    shop.ran()
    shop.path("copy/07").unlink()
    shop.resume(fifty(shop))
    assert shop.ran() == ["copy:2:07", "gather:2:-", "size:2:-", "turn:2:07"]
    assert shop.artifacts() == before
    assert not shop.state().issues


def test_an_edited_artifact_below_an_edited_source_is_made_again(shop: Any) -> None:
    shop.start(fifty(shop))
    shop.ran()
    shop.file("07", "new")
    shop.path("copy/07").write_text("lost")
    shop.resume(fifty(shop))
    assert shop.path("copy/07").read_text() == "new"


def test_forcing_a_node_makes_it_and_what_depends_on_it_again(shop: Any, line_of: Callable[..., Graph]) -> None:
    graph = line_of("a", "b", "c")
    shop.start(graph)
    shop.ran()
    shop.resume(graph, force={"make-b"})
    assert shop.ran() == ["to-b:2:-", "to-c:2:-"]
    assert not shop.state().issues
    assert all(not artifact.stale for artifact in shop.state().artifacts_index.values())


def test_a_worker_without_outputs_runs_again_when_its_inputs_change(shop: Any) -> None:
    source = shop.file("source", "x")
    graph = Graph("g", sources={"source": source})

    @graph.node("n").worker(inputs=["source"])
    def tell(job: Job) -> None:
        shop.note(job)

    shop.start(graph)
    shop.resume(graph)
    assert shop.ran() == ["tell:1:-"]
    source.write_text("y")
    shop.resume(graph)
    assert shop.ran() == ["tell:2:-"]
    shop.resume(graph, force={"n"})
    assert shop.ran() == ["tell:3:-"]


def listed(shop: Any, keys: list[str]) -> Graph:
    """Scopes that come from somewhere else than the inputs."""
    graph = Graph("listed", sources={"source": shop.directory / "source"})

    def scopes(view: RunView) -> list[str]:
        return keys

    @graph.node("n").worker(inputs=["source"], outputs=["part/{scope}"], scopes=scopes)
    def part(job: Job) -> None:
        shop.note(job)
        job.write("part/{scope}", job.scope_key)

    @graph.node("m").worker(inputs=["part/{scope}"], outputs=["whole"])
    def whole(job: Job) -> None:
        shop.note(job)
        job.write("whole", b"".join(job.read(name) for name in job.inputs))

    @graph.node("o").worker(inputs=["whole"], outputs=["copy"])
    def copy(job: Job) -> None:
        shop.note(job)
        job.write("copy", job.read("whole"))

    return graph


def test_a_new_scope_or_one_that_is_gone_reaches_whoever_gathers_them(shop: Any) -> None:
    shop.file("source", "x")
    shop.start(listed(shop, ["a", "b"]))
    shop.ran()
    shop.resume(listed(shop, ["a", "b", "c"]))
    assert shop.ran() == ["copy:2:-", "part:1:c", "whole:2:-"]
    assert shop.path("copy").read_text() == "abc"
    shop.resume(listed(shop, ["c"]))
    assert shop.ran() == ["copy:3:-", "whole:3:-"]
    assert shop.path("copy").read_text() == "c"
    assert not shop.state().issues


def test_work_that_is_no_longer_part_of_the_graph_is_skipped(shop: Any) -> None:
    shop.file("source", "x")
    shop.kill_at(9)
    with pytest.raises(shop.Killed):
        shop.start(listed(shop, ["a", "b", "c"]))
    shop.resume(listed(shop, ["c"]))
    status = {item.scope_key: item.status for item in shop.state().work_items if item.worker == "part"}
    assert status == {"a": "skipped", "b": "skipped", "c": "finished"}
    shop.check_trail()


def test_a_source_that_is_no_longer_declared_takes_its_scope_along(shop: Any) -> None:
    def posts(names: str) -> Graph:
        graph = Graph("posts", sources={f"posts/{name}": shop.file(name, name) for name in names})

        def slugs(view: RunView) -> list[str]:
            return [Path(name).name for name in view.artifacts() if name.startswith("posts/")]

        @graph.node("n").worker(inputs=["posts/{scope}"], outputs=["page/{scope}"], scopes=slugs)
        def page(job: Job) -> None:
            shop.note(job)
            job.write("page/{scope}", job.read("posts/{scope}"))

        @graph.node("m").worker(inputs=["page/{scope}"], outputs=["index"])
        def index(job: Job) -> None:
            shop.note(job)
            job.write("index", " ".join(job.inputs))

        return graph

    shop.start(posts("ab"))
    shop.ran()
    shop.resume(posts("abc"))
    assert shop.ran() == ["index:2:-", "page:1:c"]
    shop.resume(posts("bc"))
    assert shop.ran() == ["index:3:-"]
    assert shop.path("index").read_text() == "page/b page/c"


def test_a_worker_that_gives_other_bytes_from_the_same_inputs_is_reported(shop: Any) -> None:
    graph, count = Graph("g"), 0
    node = graph.node("n")

    @node.worker(outputs=["steady"])
    def steady(job: Job) -> None:
        job.write("steady", "x")

    @node.worker(inputs=["steady"], outputs=["random"])
    def changing(job: Job) -> None:
        nonlocal count
        count += 1
        job.write("random", str(count))

    @node.worker(inputs=["random"], outputs=["behind"])
    def behind(job: Job) -> None:
        job.write("behind", job.read("random"))

    shop.start(graph)
    shop.path("random").unlink()
    shop.resume(graph)
    found = shop.state().issues
    assert [(i.error_code, i.severity, i.files) for i in found] == [("NONDETERMINISTIC_WORKER", "warn", ["random"])]
    assert shop.state().run_state == "COMPLETED"


def test_an_interrupted_worker_that_then_gives_other_bytes_is_reported(shop: Any) -> None:
    graph, count = Graph("g"), 0

    @graph.node("n").worker(outputs=["random"])
    def changing(job: Job) -> None:
        nonlocal count
        count += 1
        job.write("random", str(count))

    shop.kill_at(7)
    with pytest.raises(shop.Killed):
        shop.start(graph)
    assert shop.events()[-1].type == "ARTIFACT_WRITTEN"
    shop.resume(graph)
    assert [i.error_code for i in shop.state().issues] == ["NONDETERMINISTIC_WORKER"]


def edit_the_source(shop: Any, run_id: str) -> None:
    shop.file("source", "new")


def edit_an_artifact(shop: Any, run_id: str) -> None:
    shop.path("a", run_id).write_text("edited")


def delete_an_artifact(shop: Any, run_id: str) -> None:
    shop.path("b", run_id).unlink()


def delete_two_and_edit_one(shop: Any, run_id: str) -> None:
    shop.path("a", run_id).unlink()
    shop.path("b", run_id).write_text("edited")
    shop.path("c", run_id).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("change", [edit_the_source, edit_an_artifact, delete_an_artifact, delete_two_and_edit_one])
def test_killed_anywhere_while_it_takes_in_a_change_nothing_stays_stale(
    shop: Any, line_of: Callable[..., Graph], change: Callable[[Any, str], None], after: bool
) -> None:
    graph = line_of("a", "b", "c")
    shop.start(graph, "unbroken")
    change(shop, "unbroken")
    steps = -len(shop.events("unbroken"))
    shop.resume(graph, "unbroken")
    steps += len(shop.events("unbroken"))
    assert steps > 5
    for step in range(1, steps + 1):
        run_id = f"r{step}"
        shop.file("source", "x")
        shop.start(graph, run_id)
        change(shop, run_id)
        shop.kill_at(step, after=after)
        with pytest.raises(shop.Killed):
            shop.resume(graph, run_id)
        state = shop.resume(graph, run_id)
        assert state.run_state == "COMPLETED"
        assert not any(artifact.stale for artifact in state.artifacts_index.values())
        assert shop.artifacts(run_id) == shop.artifacts("unbroken")
