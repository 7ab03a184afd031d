"""Whatever goes wrong: a blocker, a complete trail, a summary that a person can read, and a resume that goes on."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runstate.errors import LogFull, NotALog, SnapshotTooNew
from runstate.logs.log import StoredSnapshot
from runstate.models.canonical import digest
from runstate.models.rundir import RUNDIR
from runstate.runtimes.orchestrator import Graph, Job, Output, RunCancelled, RunExists, RunFailed, RunView
from runstate.storage.descriptors import RealDescriptor


def one_worker(work: Callable[[Job], None], **options: Any) -> Graph:
    graph = Graph("one")
    graph.node("n").worker(**{"outputs": ["out"], "name": "work", **options})(work)
    return graph


def raises(job: Job) -> None:
    raise ValueError("no luck\nat all")


def leaves(job: Job) -> None:
    sys.exit(3)


def interrupts(job: Job) -> None:
    raise KeyboardInterrupt


def writes_nothing(job: Job) -> None: ...


def writes_something_else(job: Job) -> None:
    job.write("other", "x")


def reads_something_else(job: Job) -> None:
    job.read("other")


def says_what_cannot_be_stored(job: Job) -> None:
    raise ValueError("\ud800" + "x" * 3_000_000)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def cannot_even_say(job: Job) -> None:
    raise Unspeakable


def reports_what_cannot_be_stored(job: Job) -> None:
    job.report("x", "x", location={"line": float("nan")})


def reports_too_much(job: Job) -> None:
    job.report("x", "x" * 100_000)


def reports_an_unknown_severity(job: Job) -> None:
    job.report("x", "x", severity="dreadful")  # type: ignore[arg-type]


def writes_a_lone_surrogate(job: Job) -> None:
    job.write("out", "\ud800")


def makes_a_directory(job: Job) -> None:
    Path(job._spec.staging, "out").mkdir()


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        (raises, "WORKER_RAISED", "no luck"),
        (leaves, "WORKER_RAISED", "SystemExit"),
        (interrupts, "WORKER_RAISED", "KeyboardInterrupt"),
        (writes_nothing, "OUTPUT_MISSING", "'out' was declared and not written"),
        (writes_something_else, "WORKER_RAISED", "no declared output"),
        (reads_something_else, "WORKER_RAISED", "no declared input"),
        (says_what_cannot_be_stored, "WORKER_RAISED", "(cut, it has 3000001 characters)"),
        (cannot_even_say, "WORKER_RAISED", "no words"),
        (reports_what_cannot_be_stored, "WORKER_RAISED", "no JSON number"),
        (reports_too_much, "WORKER_RAISED", "report less"),
        (reports_an_unknown_severity, "WORKER_RAISED", "dreadful"),
        (writes_a_lone_surrogate, "WORKER_RAISED", "surrogates not allowed"),
        (makes_a_directory, "OUTPUT_MISSING", "not written"),
    ],
)
def test_a_worker_that_fails_leaves_a_blocker_and_a_complete_trail(
    shop: Any, work: Callable[[Job], None], code: str, said: str
) -> None:
    with pytest.raises(RunFailed) as failed:
        shop.start(one_worker(work))
    assert failed.value.details == {"error_code": code}
    state = shop.state()
    assert state.run_state == "FAILED"
    assert [(i.issue_id, i.severity, i.error_code, i.status) for i in state.issues] == [
        ("work:-", "blocker", code, "OPEN")
    ]
    assert [(i.status, i.error["code"]) for i in state.work_items] == [("failed", code)]
    assert said in shop.failure()
    assert not shop.artifacts()
    shop.check_trail()
    shop.resume(one_worker(lambda job: job.write("out", "x")))
    assert [i.status for i in shop.state().issues] == ["RESOLVED"]
    assert not (shop.directory / "runs/r/failure.md").exists()
    shop.check_trail()


def test_a_failure_summary_says_what_failed_and_how_to_go_on(shop: Any) -> None:
    graph = Graph("g", parallel=1)

    @graph.node("n").worker(outputs=["{scope}"], scopes=["a", "b", "c"], attempts=2)
    def work(job: Job) -> None:
        if job.scope_key == "b":
            raise ValueError(f"attempt {job.attempt} in vain")
        job.write("{scope}", "x")

    with pytest.raises(RunFailed):
        shop.start(graph)
    lines = shop.failure().split("\n")
    assert lines[:3] == ["# The run r has failed", "", "r:work:2:b failed: attempt 2 in vain"]
    assert "- `r:work:2:b`: WORKER_RAISED attempt 2 in vain" in lines
    assert "- blocker: r:work:2:b failed: attempt 2 in vain (work:b)" in lines
    assert "1 work items are finished and will not run again." in lines
    assert "attempt 1 in vain" not in shop.failure()
    assert any("raise ValueError" in line for line in lines)


def test_an_artifact_that_breaks_its_schema_never_becomes_one(shop: Any) -> None:
    def is_json(data: bytes) -> None:
        msgspec.json.decode(data)

    def work(job: Job) -> None:
        job.write("first", "fine")
        job.write("second", "{")

    with pytest.raises(RunFailed) as failed:
        shop.start(one_worker(work, outputs=["first", Output("second", "json/1", is_json)]))
    assert failed.value.details == {"error_code": "ARTIFACT_INVALID"}
    assert shop.artifacts() == {}
    assert shop.state().artifacts_index == {}
    shop.check_trail()


def test_those_under_way_are_brought_to_their_end_before_the_run_fails(shop: Any) -> None:
    graph, failing = Graph("g", parallel=2), threading.Event()

    @graph.node("n").worker(outputs=["{scope}"], scopes=["a", "b", "c"])
    def work(job: Job) -> None:
        if job.scope_key == "a":
            failing.set()
            raise ValueError("broken")
        failing.wait(10)
        job.write("{scope}", "x")

    with pytest.raises(RunFailed):
        shop.start(graph)
    assert {i.scope_key: i.status for i in shop.state().work_items} == {"a": "failed", "b": "finished", "c": "queued"}
    shop.check_trail()


def test_a_worker_that_takes_too_long_is_given_up_and_the_others_are_not(shop: Any) -> None:
    graph, never = Graph("g", parallel=2), threading.Event()

    @graph.node("n").worker(outputs=["{scope}"], scopes=["a", "b", "c", "d"], timeout_s=0.3)
    def work(job: Job) -> None:
        if job.scope_key == "a":
            never.wait(10)
        job.write("{scope}", "x")

    with pytest.raises(RunFailed) as failed:
        shop.start(graph)
    never.set()
    assert failed.value.details == {"error_code": "TIMEOUT"}
    assert {i.scope_key: i.status for i in shop.state().work_items}["b"] == "finished"
    shop.check_trail()


def test_an_input_that_vanishes_during_the_run_is_a_blocker_and_comes_back_by_resume(
    shop: Any, line_of: Callable[..., Graph]
) -> None:
    graph = line_of("a", "b")

    class Deleting:
        def emit(self, event: Any) -> None:
            if event.payload.get("new_state") == "MAKE-A_DONE":
                shop.path("a").unlink()

        def close(self) -> None: ...

    with pytest.raises(RunFailed) as failed:
        shop.orchestrator(graph, telemetry=[Deleting()]).start()
    assert failed.value.details == {"error_code": "MISSING_INPUT"}
    shop.check_trail()
    shop.resume(graph)
    assert shop.path("b").read_bytes() == b"xab"


@pytest.mark.parametrize("keys", [["../x"], ["a", "a"], ["a", 7], 7, "ab", None])
def test_scopes_that_are_none_are_a_blocker(shop: Any, keys: Any) -> None:
    given = keys

    def scopes(view: RunView) -> Any:
        return given

    graph = one_worker(lambda job: job.write("{scope}", "x"), outputs=["{scope}"], scopes=scopes)
    with pytest.raises(RunFailed) as failed:
        shop.start(graph)
    assert failed.value.details == {"error_code": "SCOPES_FAILED"}
    shop.check_trail()
    given = ["fine"]
    assert shop.resume(graph).run_state == "COMPLETED"
    assert [i.status for i in shop.state().issues] == ["RESOLVED"]


def test_scopes_that_raise_are_a_blocker(shop: Any) -> None:
    graph = one_worker(raises, outputs=["{scope}"], scopes=lambda view: view.read_json("nothing"))
    with pytest.raises(RunFailed) as failed:
        shop.start(graph)
    assert failed.value.details == {"error_code": "SCOPES_FAILED"}
    assert "no artifact 'nothing' yet" in shop.failure()


def test_two_workers_that_meet_in_one_artifact_through_a_scope_are_a_blocker(shop: Any) -> None:
    graph = Graph("g")
    node = graph.node("n")
    node.worker(outputs=["out/{scope}"], scopes=["a"], name="one")(lambda job: job.write("out/{scope}", "1"))
    node.worker(outputs=["out/a"], name="two")(lambda job: job.write("out/a", "2"))
    with pytest.raises(RunFailed) as failed:
        shop.start(graph)
    assert failed.value.details == {"error_code": "TWO_WRITERS"}
    assert shop.artifacts() == {}
    shop.check_trail()


# --- issues --------------------------------------------------------------------------------------------------------


def test_issues_keep_one_order_and_go_when_they_are_no_longer_reported(shop: Any) -> None:
    graph, rounds = Graph("g"), 0

    @graph.node("n").worker(outputs=["out"])
    def work(job: Job) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            job.report("z", "info", severity="info")
            job.report("b", "later line", severity="warn", location={"path": "p", "line": 9})
            job.report("a", "other gate", severity="warn", gate="zeta")
            job.report("c", "first line", severity="warn", location={"path": "p", "line": 2})
        job.write("out", "x")

    shop.start(graph)
    assert [(i.issue_id, i.gate) for i in shop.state().issues] == [
        ("c", "work"),
        ("b", "work"),
        ("a", "zeta"),
        ("z", "work"),
    ]
    shop.resume(graph, force={"n"})
    assert {i.issue_id: i.status for i in shop.state().issues} == {
        "a": "OPEN",
        "b": "RESOLVED",
        "c": "RESOLVED",
        "z": "RESOLVED",
    }


def test_a_blocker_says_why_it_stands_now_and_not_why_it_stood_before(shop: Any) -> None:
    with pytest.raises(RunFailed):
        shop.start(one_worker(raises))
    with pytest.raises(RunFailed):
        shop.resume(one_worker(writes_nothing))
    assert [i.error_code for i in shop.state().issues] == ["OUTPUT_MISSING"]


# --- cancelling ----------------------------------------------------------------------------------------------------


def test_a_cancelled_run_has_a_complete_trail_and_resume_goes_on(any_shop: Any) -> None:
    shop = any_shop
    graph, begun, never = Graph("g", parallel=2), threading.Barrier(3), threading.Event()

    @graph.node("n").worker(outputs=["{scope}"], scopes=["a", "b", "c"])
    def work(job: Job) -> None:
        shop.note(job)
        if job.attempt == 1 and job.scope_key != "c":
            begun.wait(10)
            never.wait(10)
        job.write("{scope}", "x")

    orchestrator = shop.orchestrator(graph)

    def cancel() -> None:
        begun.wait(10)
        orchestrator.cancelled.set()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(RunCancelled):
        orchestrator.start()
    canceller.join()
    never.set()
    state = shop.state()
    assert state.run_state == "CANCELLED"
    assert [(i.status, i.error and i.error["code"]) for i in state.work_items] == [
        ("failed", "CANCELLED"),
        ("failed", "CANCELLED"),
        ("queued", None),
    ]
    assert not state.issues
    shop.check_trail()
    shop.ran()
    assert shop.resume(graph).run_state == "COMPLETED"
    assert shop.ran() == ["work:1:c", "work:2:a", "work:2:b"]
    shop.check_trail()


# --- the disk ------------------------------------------------------------------------------------------------------


class FullDisk:
    """Refuses the n-th write from now on, or all from there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, call: str) -> None:
        self.left, self.refused = number, 0
        target = {"write": "runstate.storage.descriptors.RealDescriptor.write", "replace": "os.replace"}[call]
        real = os.replace if call == "replace" else RealDescriptor.write

        def counted(*args: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                self.refused += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args)

        monkeypatch.setattr(target, counted)


def rewriting(shop: Any) -> Graph:
    """Two artifacts from one worker, and a loop whose fix rewrites both."""
    graph = Graph("g")
    node = graph.node("n")

    @node.worker(outputs=["a", "b"])
    def make(job: Job) -> None:
        job.write("a", "a")
        job.write("b", "b")

    def validate(job: Job) -> None:
        if job.read("a") != b"a!" or job.read("b") != b"b!":
            job.report("dull", "more enthusiasm")

    def fix(job: Job) -> None:
        for name in "ab":
            job.write(name, job.read(name) + b"!")

    node.fix_loop(validate=validate, fix=fix, inputs=["a", "b"], rewrites=["a", "b"], rounds=1)
    return graph


@pytest.mark.parametrize("call", ["write", "replace"])
def test_a_disk_that_is_full_at_any_moment_is_a_blocker_and_half_of_nothing_is_published(
    shop: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    for number in range(1, 20):
        run_id = f"r{number}"
        with monkeypatch.context() as patched:
            disk = FullDisk(patched, number, call)
            with suppress(RunFailed):
                shop.start(rewriting(shop), run_id)
        state = shop.state(run_id)
        if not disk.refused:
            assert state.run_state == "COMPLETED"
            break
        assert [i.error_code for i in state.issues if i.severity == "blocker"] == ["PUBLISH_FAILED"]
        finished = {name for item in state.work_items if item.status == "finished" for name in item.outputs}
        for name in finished:
            artifact = state.artifacts_index[name]
            assert digest(shop.path(name, run_id).read_bytes()) == artifact.sha256
        shop.check_trail(run_id)
        assert shop.resume(rewriting(shop), run_id).run_state == "COMPLETED"
        assert (shop.path("a", run_id).read_bytes(), shop.path("b", run_id).read_bytes()) == (b"a!", b"b!")
        shop.check_trail(run_id)
    assert number > 5


def test_a_log_that_is_full_is_a_clear_error_and_the_run_goes_on_later(
    shop: Any, line_of: Callable[..., Graph]
) -> None:
    append, graph = shop.store.append_event, line_of("a", "b")

    def full(event: Any, **options: Any) -> Any:
        if event.payload.get("work_item_id") == "r:to-b:1:-":
            raise LogFull()
        return append(event, **options)

    shop.store.append_event = full
    with pytest.raises(LogFull):
        shop.start(graph)
    shop.store.append_event = append
    assert shop.resume(graph).run_state == "COMPLETED"
    assert shop.ran() == ["to-a:1:-", "to-b:1:-"]


def test_a_run_directory_that_cannot_be_written_to_is_refused_before_anything_begins(shop: Any) -> None:
    (shop.directory / "runs").write_text("a file stands in its place")
    with pytest.raises(NotALog, match="is a file, or is below one"):
        shop.start(one_worker(raises))
    assert shop.store.log.stream("r") is None


def test_staging_that_is_refused_is_a_blocker(shop: Any) -> None:
    def blocked(job: Job) -> None:
        shop.note(job)

    with pytest.raises(RunFailed):
        shop.start(one_worker(raises))
    staging = shop.directory / "runs/r/.staging"
    shutil.rmtree(staging)
    staging.write_text("a file stands in its place")
    with pytest.raises(RunFailed) as failed:
        shop.resume(one_worker(blocked))
    assert failed.value.details == {"error_code": "STAGING_FAILED"}
    assert shop.ran() == []
    shop.check_trail()


def test_a_directory_in_an_artifacts_place_is_a_blocker(shop: Any) -> None:
    with pytest.raises(RunFailed):
        shop.start(one_worker(raises))
    shop.path("out").mkdir(parents=True)
    with pytest.raises(RunFailed) as failed:
        shop.resume(one_worker(lambda job: job.write("out", "x")))
    assert failed.value.details == {"error_code": "PUBLISH_FAILED"}
    shop.check_trail()
    shop.path("out").rmdir()
    assert shop.resume(one_worker(lambda job: job.write("out", "x"))).run_state == "COMPLETED"


# --- snapshots -----------------------------------------------------------------------------------------------------


def spoil(shop: Any, body: bytes) -> None:
    kept = shop.store.log.load_snapshot("r", RUNDIR.name)
    spoilt = StoredSnapshot(RUNDIR.name, RUNDIR.version, kept.seq, digest(body), body)
    shop.store.log.save_snapshot("r", spoilt)
    shop.store.snapshots.forget("r")


@pytest.mark.parametrize("body", [b"garbage", b"{}", b'{"run_id":"r","work_items":7}', b'{"run_id":"another"}'])
def test_a_snapshot_that_is_garbage_is_rebuilt_from_the_log(
    shop: Any, line_of: Callable[..., Graph], body: bytes
) -> None:
    shop.start(line_of("a"))
    before = shop.store.log.load_snapshot("r", RUNDIR.name)
    spoil(shop, body)
    shop.ran()
    assert shop.resume(line_of("a")).run_state == "COMPLETED"
    assert shop.store.log.load_snapshot("r", RUNDIR.name) == before
    assert shop.ran() == []


def test_a_snapshot_file_that_is_garbage_is_rebuilt_from_the_log(ndjson_shop: Any) -> None:
    shop = ndjson_shop
    graph = one_worker(lambda job: job.write("out", "x"))
    shop.start(graph)
    path = shop.directory / "runs/r/snapshot.json"
    before = path.read_bytes()
    path.write_bytes(b"garbage")
    shop.reopen()
    assert shop.resume(graph).run_state == "COMPLETED"
    assert path.read_bytes() == before


def test_a_snapshot_of_a_newer_version_is_refused_and_left_as_it_is(shop: Any, line_of: Callable[..., Graph]) -> None:
    shop.start(line_of("a"))
    newer = msgspec.json.decode(shop.store.log.load_snapshot("r", RUNDIR.name).body) | {"schema_version": 99}
    spoil(shop, msgspec.json.encode(newer))
    before = (shop.store.log.load_snapshot("r", RUNDIR.name), len(shop.events()))
    with pytest.raises(SnapshotTooNew):
        shop.resume(line_of("a"))
    assert (shop.store.log.load_snapshot("r", RUNDIR.name), len(shop.events())) == before


def test_without_a_snapshot_and_with_a_damaged_log_the_run_fails_with_snapshot_invalid(
    shop: Any, line_of: Callable[..., Graph]
) -> None:
    shop.start(line_of("a"))
    spoil(shop, b"garbage")
    records = shop.store.log._streams["r"]
    records[3] = msgspec.structs.replace(records[3], body=b"garbage")
    with pytest.raises(RunFailed) as failed:
        shop.resume(line_of("a"))
    assert failed.value.details == {"error_code": "SnapshotInvalid"}
    assert "SnapshotInvalid" in shop.failure()
    last = [msgspec.json.decode(record.body) for record in records[-2:]]
    assert [(e["type"], e["payload"].get("issue", {}).get("severity")) for e in last] == [
        ("ISSUE_OPENED", "blocker"),
        ("RUN_FAILED", None),
    ]


def test_a_damaged_ndjson_log_fails_the_run_with_snapshot_invalid(ndjson_shop: Any) -> None:
    shop = ndjson_shop
    graph = one_worker(lambda job: job.write("out", "x"))
    shop.start(graph)
    log, snapshot = shop.directory / "runs/r/events.ndjson", shop.directory / "runs/r/snapshot.json"
    lines = log.read_bytes().split(b"\n")
    lines[3] = b"garbage"
    snapshot.write_bytes(b"garbage")
    shop.store.close()
    log.write_bytes(b"\n".join(lines))
    shop.reopen()
    with pytest.raises(RunFailed) as failed:
        shop.resume(graph)
    assert failed.value.details == {"error_code": "SnapshotInvalid"}
    assert "SnapshotInvalid" in shop.failure()
    assert log.read_bytes() == b"\n".join(lines)


def test_a_lost_events_file_fails_the_run_with_snapshot_invalid(ndjson_shop: Any) -> None:
    shop = ndjson_shop
    graph = one_worker(lambda job: job.write("out", "x"))
    shop.start(graph)
    shop.store.close()
    (shop.directory / "runs/r/events.ndjson").unlink()
    before = (shop.directory / "runs/r/snapshot.json").read_bytes()
    shop.reopen()
    with pytest.raises(RunExists):
        shop.start(graph)
    with pytest.raises(RunFailed) as failed:
        shop.resume(graph)
    assert failed.value.details == {"error_code": "SnapshotInvalid"}
    assert "SnapshotInvalid" in shop.failure()
    assert (shop.directory / "runs/r/snapshot.json").read_bytes() == before
    assert not (shop.directory / "runs/r/events.ndjson").exists()


def test_without_its_log_a_run_fails_with_snapshot_invalid_and_is_not_begun_anew(shop: Any) -> None:
    graph = one_worker(lambda job: job.write("out", "x"))
    shop.start(graph)
    for kept in (shop.store.log._streams, shop.store.log._keys):
        del kept["r"]
    with pytest.raises(RunFailed) as failed:
        shop.resume(graph)
    assert failed.value.details == {"error_code": "SnapshotInvalid"}
    assert "SnapshotInvalid" in shop.failure()
    assert shop.store.log.stream("r") is None


# --- files of somebody else ----------------------------------------------------------------------------------------


def fails_once(job: Job) -> None:
    if job.attempt == 1:
        raise ValueError("not yet")
    job.write("out", "done")


def test_a_run_does_not_start_in_a_directory_that_holds_something_else(shop: Any) -> None:
    mine = shop.file("runs/r/artifacts/out", "mine")
    with pytest.raises(NotALog, match="was not written by Runstate"):
        shop.start(one_worker(fails_once))
    assert mine.read_text() == "mine"
    assert list(mine.parents[1].iterdir()) == [mine.parent]


def test_a_run_that_goes_on_keeps_what_others_put_into_its_directory(shop: Any) -> None:
    with pytest.raises(RunFailed):
        shop.start(one_worker(fails_once))
    outside = shop.file("outside/mine", "mine")
    mine = [shop.file(f"runs/r/{name}", "mine") for name in ("failure.md", ".staging/mine", "x.tmp", "artifacts/mine")]
    (mine[1].parent / "link").symlink_to(outside.parent)
    shop.resume(one_worker(fails_once))
    assert [path.read_text() for path in (*mine, outside)] == ["mine"] * 5
    assert (shop.directory / "runs/r/artifacts/out").read_text() == "done"
