"""The fix loop: one issue a round, capped, and resumed in the middle as if it had not been left."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from runstate.runtimes.orchestrator import Graph, Job, Output, RunFailed


def mending(shop: Any, *, rounds: int = 10, broken: int = 3, stubborn: bool = False, rules: str = "x") -> Graph:
    """A page with broken lines; each fix mends the one that it is given, by adding to it what shows if done twice."""
    graph = Graph("g", sources={"rules": shop.file("rules", rules)})
    making, checking, using = graph.node("making"), graph.node("checking"), graph.node("using")

    def is_text(data: bytes) -> None:
        data.decode()

    @making.worker(outputs=[Output("page", "page/1", is_text)])
    def make(job: Job) -> None:
        shop.note(job)
        job.write("page", "\n".join(["broken"] * broken + ["fine"]))

    def validate(job: Job) -> None:
        shop.note(job)
        for number, line in enumerate(job.read("page").decode().split("\n")):
            if line.startswith("broken") and not line.endswith(job.read("rules").decode()):
                job.report(f"line-{number}", "it is broken", location={"path": "page", "line": number})
        job.report("note", "only a note", severity="info")

    def fix(job: Job) -> None:
        shop.note(job)
        assert job.issue_to_fix is not None
        assert job.issue_to_fix.location is not None
        lines = job.read("page").decode().split("\n")
        lines[job.issue_to_fix.location["line"]] += "" if stubborn else job.read("rules").decode()
        job.write("page", "\n".join(lines))

    checking.fix_loop(validate=validate, fix=fix, inputs=["page", "rules"], rewrites=["page"], rounds=rounds)

    @using.worker(inputs=["page"], outputs=["used"])
    def use(job: Job) -> None:
        shop.note(job)
        job.write("used", job.read("page"))

    return graph


def test_a_loop_fixes_one_issue_a_round_until_none_is_left(shop: Any) -> None:
    state = shop.start(mending(shop))
    assert shop.path("used").read_text() == "brokenx\nbrokenx\nbrokenx\nfine"
    assert [n for n in shop.ran() if n.startswith("fix")] == ["fix:1:round-1", "fix:1:round-2", "fix:1:round-3"]
    finished = [(p["round"], p["issues"], p["passed"]) for p in shop.payloads("GATE_RUN_FINISHED")]
    assert finished == [(1, 3, False), (2, 2, False), (3, 1, False), (4, 0, True)]
    assert [(i.issue_id, i.status) for i in state.issues] == [
        ("line-0", "RESOLVED"),
        ("line-1", "RESOLVED"),
        ("line-2", "RESOLVED"),
        ("note", "OPEN"),
    ]
    # What is rewritten is what its own worker has declared.
    assert state.artifacts_index["page"].schema_id == "page/1"
    shop.check_trail()


def test_a_loop_that_passes_at_once_fixes_nothing(shop: Any) -> None:
    shop.start(mending(shop, broken=0, rounds=0))
    assert shop.ran() == ["make:1:-", "use:1:-", "validate:1:round-1"]


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_loop_is_capped_and_may_be_resumed_for_another_pass(shop: Any, rounds: int) -> None:
    with pytest.raises(RunFailed) as failed:
        shop.start(mending(shop, rounds=rounds, stubborn=True))
    assert failed.value.details == {"error_code": "FIX_LOOP_EXHAUSTED"}
    assert shop.types()["GATE_RUN_FINISHED"] == rounds + 1
    shop.check_trail()
    assert shop.resume(mending(shop)).run_state == "COMPLETED"
    assert [i.status for i in shop.state().issues if i.severity != "info"] == ["RESOLVED"] * 4


def test_a_killed_loop_has_no_more_rounds_than_one_that_was_not(shop: Any) -> None:
    graph = mending(shop, rounds=2, stubborn=True)
    with pytest.raises(RunFailed):
        shop.start(graph, "unbroken")
    for number in range(20, len(shop.events("unbroken")) - 2, 3):
        shop.kill_at(number)
        with pytest.raises(shop.Killed):
            shop.start(graph, f"r{number}")
        with pytest.raises(RunFailed):
            shop.resume(graph, f"r{number}")
        fixes = {item.scope_key for item in shop.state(f"r{number}").work_items if item.worker == "fix"}
        assert fixes == {"round-1", "round-2"}


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_killed_anywhere_in_a_loop_no_fix_is_done_twice(shop: Any, after: bool) -> None:
    graph = mending(shop)
    shop.start(graph, "unbroken")
    for number in range(1, len(shop.events("unbroken")) + 1):
        run_id = f"r{number}"
        shop.kill_at(number, after=after)
        with pytest.raises(shop.Killed):
            shop.start(graph, run_id)
        if shop.store.log.stream(run_id) is None:
            continue
        assert shop.resume(graph, run_id).run_state == "COMPLETED"
        assert shop.artifacts(run_id) == shop.artifacts("unbroken")
        shop.check_trail(run_id)


def test_what_was_edited_by_hand_is_validated_again(shop: Any) -> None:
    with pytest.raises(RunFailed):
        shop.start(mending(shop, rounds=1, stubborn=True))
    shop.path("page").write_text("fine")
    shop.ran()
    assert shop.resume(mending(shop, rounds=1, stubborn=True)).run_state == "COMPLETED"
    assert shop.ran() == ["use:1:-", "validate:1:round-3"]


def test_new_rules_are_applied_and_reach_what_was_made_behind_the_loop(shop: Any) -> None:
    shop.start(mending(shop))
    shop.ran()
    state = shop.resume(mending(shop, rules="xy"))
    assert shop.path("used").read_text() == "brokenxxy\nbrokenxxy\nbrokenxxy\nfine"
    assert [name for name in shop.ran() if name.startswith(("make", "use"))] == ["use:2:-"]
    assert not any(artifact.stale for artifact in state.artifacts_index.values())


def test_what_the_loop_has_rewritten_is_mended_again_when_it_is_made_again(shop: Any) -> None:
    shop.start(mending(shop))
    before = shop.artifacts()
    shop.resume(mending(shop), force={"making"})
    assert shop.artifacts() == before
    assert shop.state().run_state == "COMPLETED"


def test_forcing_a_loop_validates_again_and_makes_nothing_else(shop: Any) -> None:
    shop.start(mending(shop))
    shop.ran()
    shop.resume(mending(shop), force={"checking"})
    assert shop.ran() == ["validate:1:round-5"]


@pytest.mark.parametrize("failing", ["validate", "fix"])
def test_a_worker_of_a_loop_that_fails_gets_a_new_attempt_in_the_same_round(shop: Any, failing: str) -> None:
    graph = mending(shop, broken=1)
    loop = graph.nodes[1].loop
    assert loop is not None
    work, count = getattr(loop, failing).work, 0

    def once(job: Job) -> None:
        nonlocal count
        count += 1
        if count == 1:
            raise ValueError("once")
        work(job)

    graph.nodes[1].loop = replace(loop, **{failing: replace(getattr(loop, failing), work=once)})
    with pytest.raises(RunFailed):
        shop.start(graph)
    shop.check_trail()
    # A gate that was begun has also ended, one way or the other.
    assert shop.types()["GATE_RUN_STARTED"] == shop.types()["GATE_RUN_FINISHED"] == 1
    assert shop.resume(graph).run_state == "COMPLETED"
    assert [(i.attempt, i.status) for i in shop.state().work_items if i.worker == failing][:2] == [
        (1, "failed"),
        (2, "finished"),
    ]
    assert shop.path("used").read_text() == "brokenx\nfine"


def test_a_fix_may_rewrite_one_scope_of_many_and_leave_the_others(shop: Any) -> None:
    graph = Graph("g")
    making, checking = graph.node("making"), graph.node("checking")

    @making.worker(outputs=["page/{scope}"], scopes=["a", "b", "c"])
    def make(job: Job) -> None:
        job.write("page/{scope}", job.scope_key)

    def validate(job: Job) -> None:
        for name in job.inputs:
            if job.read(name) == b"b":
                job.report(name, "no b", files=[name])

    def fix(job: Job) -> None:
        assert job.issue_to_fix is not None
        job.write(job.issue_to_fix.files[0], "fixed")

    checking.fix_loop(validate=validate, fix=fix, inputs=["page/{scope}"], rewrites=["page/{scope}"])
    shop.start(graph)
    assert [shop.path(f"page/{key}").read_text() for key in "abc"] == ["a", "fixed", "c"]
    written = [p["name"] for p in shop.payloads("ARTIFACT_WRITTEN") if p["writer_worker"] == "fix"]
    assert written == ["page/b"]
    before = len(shop.events())
    shop.resume(graph)
    assert len(shop.events()) == before


def test_an_edit_by_hand_is_not_undone_by_the_recovery_of_a_killed_fix(shop: Any) -> None:
    graph = mending(shop, broken=1)
    shop.start(graph, "unbroken")
    kinds = [(e.type, e.payload.get("writer_worker")) for e in shop.events("unbroken")]
    shop.kill_at(kinds.index(("ARTIFACT_WRITTEN", "fix")) + 1)
    with pytest.raises(shop.Killed):
        shop.start(graph)
    assert shop.path("page").read_text() == "brokenx\nfine"
    shop.path("page").write_text("broken\nby hand")
    shop.resume(graph)
    assert shop.path("used").read_text() == "brokenx\nby hand"
