"""Runs from their start to their end: the same trail each time, bounded parallelism, retries, and resume."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runstate.errors import InvalidStream, LogBusy, SequenceConflict, StreamNotFound
from runstate.models.rundir import RUNDIR, RunEvent
from runstate.runtimes.orchestrator import Graph, InvalidGraph, Job, MissingInput, RunExists, RunFailed, RunView


def wide(shop: Any, *, parallel: int = 3, scopes: int = 8, seed: int = 0) -> Graph:
    """Fan-out, a gathering worker, a retry; workers take their time as the seed says."""
    source, chance = shop.file("source", "x"), random.Random(seed)
    delays = [chance.uniform(0, 0.01) for _ in range(scopes)]
    graph = Graph("wide", sources={"source": source}, parallel=parallel)
    node = graph.node("wide")

    @node.worker(inputs=["source"], outputs=["part/{scope}"], scopes=[str(n) for n in range(scopes)], attempts=2)
    def part(job: Job) -> None:
        shop.note(job)
        time.sleep(delays[int(job.scope_key)])
        if job.scope_key in "25" and job.attempt == 1:
            raise ValueError("not yet")
        job.write("part/{scope}", job.read("source") + job.scope_key.encode())

    @node.worker(inputs=["part/{scope}"], outputs=["whole"])
    def whole(job: Job) -> None:
        shop.note(job)
        job.write("whole", b"".join(job.read(name) for name in job.inputs))

    return graph


def normalised(events: list[RunEvent], run_id: str) -> list[Any]:
    """Events without times and ids."""
    return [msgspec.json.encode([e.type, e.payload]).decode().replace(f'"{run_id}:', '"RUN:') for e in events]


def test_the_same_inputs_give_the_same_artifacts_and_trails_that_differ_in_times_and_ids_alone(shop: Any) -> None:
    shop.start(wide(shop, seed=1), "one")
    shop.start(wide(shop, seed=2), "two")
    assert shop.artifacts("one") == shop.artifacts("two")
    assert normalised(shop.events("one"), "one") == normalised(shop.events("two"), "two")
    assert shop.payloads("WORK_ITEM_STARTED", "one") != shop.payloads("WORK_ITEM_STARTED", "two")


def test_a_replay_gives_the_bytes_of_the_snapshot_after_every_event(any_shop: Any) -> None:
    shop = any_shop
    shop.reopen(snapshot_every=1)

    class Replaying:
        looked = 0

        def emit(self, event: RunEvent) -> None:
            kept = shop.store.log.load_snapshot("r", RUNDIR.name)
            self.looked += kept.body == shop.store.rebuild_snapshot("r").body

        def close(self) -> None: ...

    replaying = Replaying()
    graph = wide(shop, scopes=3)
    state = shop.orchestrator(graph, telemetry=[replaying]).start()
    assert replaying.looked == len(shop.events())
    assert RUNDIR.dump(state) == shop.store.fresh_snapshot("r").body
    shop.check_trail()


def test_work_runs_in_parallel_and_never_more_than_allowed_at_once(shop: Any) -> None:
    graph, lock, now, most = Graph("p", parallel=3), threading.Lock(), 0, 0
    together = threading.Barrier(3)

    @graph.node("n").worker(outputs=["{scope}"], scopes=[str(n) for n in range(9)])
    def work(job: Job) -> None:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        together.wait(10)
        with lock:
            now -= 1
        job.write("{scope}", "x")

    shop.start(graph)
    assert most == 3


def test_work_is_settled_in_the_order_in_which_it_was_begun(shop: Any) -> None:
    graph, last_done = Graph("o", parallel=3), threading.Event()

    @graph.node("n").worker(outputs=["{scope}"], scopes=["a", "b", "c"])
    def work(job: Job) -> None:
        if job.scope_key == "c":
            last_done.set()
        else:
            last_done.wait(10)
        job.write("{scope}", "x")

    shop.start(graph)
    assert [p["name"] for p in shop.payloads("ARTIFACT_WRITTEN")] == ["a", "b", "c"]


def test_a_retry_is_a_new_attempt_and_the_failed_one_stays_in_history(shop: Any) -> None:
    state = shop.start(wide(shop, scopes=3))
    assert [(i.attempt, i.status, (i.error or {}).get("code")) for i in state.work_items if i.scope_key == "2"] == [
        (1, "failed", "WORKER_RAISED"),
        (2, "finished", None),
    ]
    assert state.run_state == "COMPLETED"
    assert not state.issues


def test_a_failed_item_gets_a_new_attempt_and_a_finished_one_is_never_run_again(shop: Any) -> None:
    graph, broken = Graph("f", parallel=1), True

    @graph.node("n").worker(outputs=["{scope}"], scopes=["a", "b", "c"])
    def work(job: Job) -> None:
        shop.note(job)
        if broken and job.scope_key == "b":
            raise ValueError("broken")
        job.write("{scope}", "x")

    with pytest.raises(RunFailed):
        shop.start(graph)
    assert shop.ran() == ["work:1:a", "work:1:b"]
    shop.check_trail()
    with pytest.raises(RunFailed):
        shop.resume(graph)
    broken = False
    assert shop.resume(graph).run_state == "COMPLETED"
    assert shop.ran() == ["work:1:c", "work:2:b", "work:3:b"]
    assert [(i.severity, i.status) for i in shop.state().issues] == [("blocker", "RESOLVED")]
    shop.check_trail()


def test_an_interrupted_item_runs_again_under_its_own_id(shop: Any, line_of: Callable[..., Graph]) -> None:
    graph = line_of("a", "b")
    shop.kill_at(8)  # The event that would say that the first item has finished.
    with pytest.raises(shop.Killed):
        shop.start(graph)
    assert [(i.work_item_id, i.status) for i in shop.state().work_items] == [("r:to-a:1:-", "running")]
    state = shop.resume(graph)
    assert shop.ran() == ["to-a:1:-", "to-a:1:-", "to-b:1:-"]
    assert [i.work_item_id for i in state.work_items] == ["r:to-a:1:-", "r:to-b:1:-"]


def test_a_run_that_is_completed_has_nothing_left_to_do(any_shop: Any) -> None:
    graph = wide(any_shop, scopes=3)
    any_shop.start(graph)
    before = len(any_shop.events())
    any_shop.reopen()
    any_shop.ran()
    assert any_shop.resume(graph).run_state == "COMPLETED"
    assert len(any_shop.events()) == before
    assert any_shop.ran() == []


def test_parameters_are_those_of_the_start(shop: Any) -> None:
    graph = Graph("p")

    @graph.node("n").worker(outputs=["out"])
    def work(job: Job) -> None:
        if job.attempt == 1:
            raise ValueError("again")
        job.write_json("out", dict(job.parameters))

    with pytest.raises(RunFailed):
        shop.start(graph, parameters={"n": 1})
    shop.resume(graph)
    assert msgspec.json.decode(shop.path("out").read_bytes()) == {"n": 1}


def test_scopes_may_come_from_sources_parameters_and_artifacts(shop: Any) -> None:
    for name in "ab":
        shop.file(f"posts/{name}", name)
    graph = Graph("s", sources={f"posts/{name}": shop.directory / "posts" / name for name in "ab"})

    def posts(view: RunView) -> list[str]:
        return [*(Path(name).name for name in view.artifacts() if name.startswith("posts/")), *view.parameters["more"]]

    @graph.node("n").worker(outputs=["copy/{scope}"], scopes=posts)
    def copy(job: Job) -> None:
        job.write("copy/{scope}", job.scope_key)

    @graph.node("m").worker(inputs=["posts/{scope}", "copy/{scope}"], outputs=["all"])
    def gather(job: Job) -> None:
        job.write("all", " ".join(job.inputs))

    shop.start(graph, parameters={"more": ["z"]})
    assert shop.path("all").read_text() == "copy/a copy/b copy/z posts/a posts/b"


# --- what is refused before anything begins ------------------------------------------------------------------------


def test_a_run_that_exists_is_not_started_again(any_shop: Any) -> None:
    any_shop.start(wide(any_shop, scopes=1))
    before = len(any_shop.events())
    with pytest.raises(RunExists):
        any_shop.start(wide(any_shop, scopes=1))
    assert len(any_shop.events()) == before


def test_a_run_that_does_not_exist_is_not_resumed(any_shop: Any) -> None:
    with pytest.raises(StreamNotFound):
        any_shop.resume(wide(any_shop))
    assert any_shop.store.log.stream("r") is None


@pytest.mark.parametrize("run_id", ["../x", "", "a/b", ".."])
def test_a_run_id_that_escapes_the_directory_is_refused(any_shop: Any, run_id: str) -> None:
    before = sorted(any_shop.directory.rglob("*"))
    for begin in (any_shop.start, any_shop.resume):
        with pytest.raises(InvalidStream):
            begin(one_item(), run_id)
    assert sorted(any_shop.directory.rglob("*")) == before


def one_item() -> Graph:
    graph = Graph("g")
    graph.node("n").worker(outputs=["a"], name="a")(lambda job: job.write("a", "a"))
    return graph


def test_a_source_that_is_missing_stops_a_run_before_it_begins(shop: Any) -> None:
    graph = wide(shop)
    (shop.directory / "source").unlink()
    with pytest.raises(MissingInput) as refused:
        shop.start(graph)
    assert "source" in str(refused.value)
    assert shop.store.log.stream("r") is None
    assert not (shop.directory / "runs").exists()


def test_an_unknown_node_cannot_be_forced(shop: Any, line_of: Callable[..., Graph]) -> None:
    shop.start(line_of("a"))
    with pytest.raises(InvalidGraph) as refused:
        shop.resume(line_of("a"), force={"nowhere"})
    assert "'nowhere'" in str(refused.value)
    assert "make-a" in str(refused.value)


def test_parameters_that_are_no_json_begin_nothing(shop: Any) -> None:
    with pytest.raises(Exception, match="JSON"):
        shop.start(one_item(), parameters={"x": float("nan")})
    assert shop.store.log.stream("r") is None


def test_two_orchestrators_do_not_work_on_one_run(any_shop: Any) -> None:
    shop = any_shop
    graph, begun, go_on = Graph("two"), threading.Event(), threading.Event()

    @graph.node("n").worker(outputs=["a"])
    def work(job: Job) -> None:
        shop.note(job)
        begun.set()
        go_on.wait(10)
        job.write("a", "a")

    first = threading.Thread(target=shop.start, args=(graph,))
    first.start()
    try:
        assert begun.wait(10)
        with pytest.raises(LogBusy):
            shop.resume(graph)
    finally:
        go_on.set()
        first.join()
    assert shop.ran() == ["work:1:-"]
    shop.check_trail()


def test_somebody_elses_event_in_the_trail_stops_the_run(shop: Any) -> None:
    graph = Graph("alone")

    @graph.node("n").worker(outputs=["a"])
    def work(job: Job) -> None:
        event = msgspec.structs.replace(shop.events()[-1], event_id="another", type="NOTE", payload={})
        shop.store.append_event(event)
        job.write("a", "a")

    with pytest.raises(SequenceConflict):
        shop.start(graph)


# --- whoever watches -------------------------------------------------------------------------------------------------


def test_telemetry_and_progress_never_fail_a_run(shop: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def emit(self, event: RunEvent) -> None:
            raise ValueError("no endpoint")

        def close(self) -> None: ...

    def progress(state: Any) -> None:
        raise BrokenPipeError()

    state = shop.orchestrator(one_item(), telemetry=[Broken()], progress=progress).start()
    assert state.run_state == "COMPLETED"
    assert "no endpoint" in caplog.text


def test_every_event_has_a_trace_and_spans_that_a_resume_keeps(shop: Any, line_of: Callable[..., Graph]) -> None:
    shop.kill_at(8)
    with pytest.raises(shop.Killed):
        shop.start(line_of("a"))
    shop.resume(line_of("a"))
    events = shop.events()
    assert len({event.trace_id for event in events}) == 1
    assert len({e.span_id for e in events if e.payload.get("work_item_id") == "r:to-a:1:-"}) == 1
