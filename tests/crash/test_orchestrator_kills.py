"""An orchestrator that is killed, at every event of a run and in between: resume ends as if nothing had happened.

This file is also a program: it forks a process for each kill from one that has everything loaded already. On a file
system in memory, if there is one: a SIGKILL loses nothing that was written, so there is no need to wait for a disk.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.crash.kills import KillAfter, die, in_a_fork

import runstate
from runstate.models.rundir import RUNDIR
from runstate.runtimes.orchestrator import Graph, Job, Orchestrator, RunFailed, RunView
from runstate.runtimes.orchestrator.pool import ProcessPool, ThreadPool
from runstate.runtimes.orchestrator.trail import RunStore

effects = os.environ.get("RUNSTATE_TEST_EFFECTS", "effects")
victim = os.environ.get("RUNSTATE_TEST_VICTIM", "")
root = Path(__file__).parents[2]


def note(job: Job) -> None:
    """The side effect of a worker, on record before anything else. One of them is killed, the first time."""
    name = f"{job._spec.worker}:{job.attempt}:{job.scope_key}"
    file = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{name}\n".encode())
    os.close(file)
    if name == victim and Path(effects).read_text().split().count(name) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def make_graph(directory: Path) -> Graph:
    """Fan-out, a retry, a gathering worker, a loop whose fixes show if done twice, and a worker without output."""
    graph = Graph("small", sources={"text.txt": directory / "text.txt"}, parallel=2)
    splitting = graph.node("splitting")
    counting = graph.node("counting")
    mending = graph.node("mending")
    telling = graph.node("telling")

    @splitting.worker(inputs=["text.txt"], outputs=["words.json", "size.json"])
    def split(job: Job) -> None:
        note(job)
        text = job.read("text.txt").decode()
        job.write_json("words.json", sorted(set(text.split())))
        job.write_json("size.json", len(text))

    def words(view: RunView) -> list[str]:
        found: list[str] = view.read_json("words.json")
        return found

    @counting.worker(inputs=["text.txt"], outputs=["count/{scope}.json"], scopes=words, attempts=2)
    def count(job: Job) -> None:
        note(job)
        if job.scope_key == "be" and job.attempt == 1:
            raise ValueError("not at the first attempt")
        job.write_json("count/{scope}.json", job.read("text.txt").decode().split().count(job.scope_key))

    @counting.worker(inputs=["count/{scope}.json"], outputs=["table.txt"])
    def gather(job: Job) -> None:
        note(job)
        job.write("table.txt", "".join(f"{name} {job.read_json(name)}\n" for name in job.inputs))

    def validate(job: Job) -> None:
        note(job)
        lines = job.read("table.txt").decode().split("\n")
        for number in range(2 - lines.count("fixed")):
            job.report(f"line-{number}", "a line is missing", location={"line": number})

    def fix(job: Job) -> None:
        note(job)
        job.write("table.txt", job.read("table.txt") + b"fixed\n")

    mending.fix_loop(validate=validate, fix=fix, inputs=["table.txt"], rewrites=["table.txt"], rounds=2)

    @telling.worker(inputs=["table.txt"], outputs=["page.html"])
    def page(job: Job) -> None:
        note(job)
        job.write("page.html", b"<pre>" + job.read("table.txt"))

    @telling.worker(inputs=["page.html"])
    def announce(job: Job) -> None:
        note(job)
        job.report("announced", "it was announced", severity="info")

    return graph


graph = make_graph(Path(os.environ.get("RUNSTATE_TEST_DIRECTORY", ".")))


# --- the program: one process that forks all others ------------------------------------------------------------------


def kill_before_append(store: RunStore, left: int) -> None:
    append = store.append_event

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        return append(*args, **options) if left else die()

    store.append_event = counted  # type: ignore[method-assign]


def kill_at_replace(left: int, *, after: bool) -> None:
    replace = os.replace

    def counted(*args: Any) -> None:
        nonlocal left
        left -= 1
        if left or after:
            replace(*args)
        if not left:
            die()

    os.replace = counted  # type: ignore[assignment]


def url_of(scheme: str, directory: Path) -> str:
    return f"ndjson:{directory / 'runs'}" if scheme == "ndjson" else f"{scheme}:{directory / 'log.db'}"


def go(scheme: str, directory: Path, how: str, at: int) -> None:
    """Start or resume the run in `directory`, be killed on the way if so told, and write down how it ended."""
    graph = make_graph(directory)
    with runstate.open(url_of(scheme, directory), RUNDIR) as store:
        before = store.log.stream("r")
        finished = [] if before is None else _finished(store.current_state("r").work_items)
        effects_before = len(read_effects(directory))
        orchestrator = Orchestrator(
            graph,
            store,
            ThreadPool(graph),
            "r",
            directory / "runs/r",
            telemetry=[KillAfter(at)] if how == "after" else None,
        )
        if how == "before":
            kill_before_append(store, at)
        if how.startswith("replace"):
            kill_at_replace(at, after=how == "replaced")
        state = orchestrator.start() if before is None else orchestrator.resume()
        kept = store.snapshots.stored("r")
        outcome = {
            "state": json.loads(RUNDIR.dump(state)),
            "events": len(store.fetch_events("r")),
            "finished_before": finished,
            "effects": read_effects(directory)[effects_before:],
            "artifacts": read_artifacts(directory / "runs/r"),
            "left": sorted(path.name for path in (directory / "runs/r").iterdir()),
            "replays": kept is not None and kept.body == store.fresh_snapshot("r").body,
            "findings": [finding.message for finding in store.log.verify("r")],
        }
    (directory / "outcome.json").write_text(json.dumps(outcome))


def _finished(items: list[Any]) -> list[str]:
    return [f"{item.worker}:{item.attempt}:{item.scope_key}" for item in items if item.status == "finished"]


def read_effects(directory: Path) -> list[str]:
    path = directory / "effects"
    return path.read_text().split() if path.exists() else []


def read_artifacts(directory: Path) -> dict[str, str]:
    root = directory / "artifacts"
    return {str(p.relative_to(root)): p.read_bytes().decode() for p in sorted(root.rglob("*")) if p.is_file()}


def life(scheme: str, root: Path, name: str, kills: list[tuple[str, int]]) -> dict[str, Any] | None:
    """A run that is killed as told, each time in another process, and then resumed to its end.

    None: it had ended before the first kill.
    """
    global effects
    directory = root / name
    directory.mkdir()
    (directory / "text.txt").write_text("to be or to be\n")
    effects = str(directory / "effects")
    try:
        for number, (how, at) in enumerate(kills):
            code = in_a_fork(partial(go, scheme, directory, how, at))
            if code == 0 and number == 0:
                return None
            assert code in (0, -signal.SIGKILL), (name, code)
        assert in_a_fork(partial(go, scheme, directory, "", 0)) == 0, name
        outcome: dict[str, Any] = json.loads((directory / "outcome.json").read_text())
        outcome["all_effects"] = read_effects(directory)
        return outcome
    finally:
        shutil.rmtree(directory)


def main(scheme: str, root: Path, how: str) -> None:
    importlib.import_module(f"runstate.logs.{scheme}")  # Here, and not once in each fork.
    sys.stdout.write(json.dumps(life(scheme, root, "unbroken", [])) + "\n")
    first, _, second = how.partition("+")
    at = 1
    # With a second way to be killed, the second life is short too: it ends while it recovers.
    while (outcome := life(scheme, root, str(at), [(first, at)] + [(second, at % 7 + 1)] * bool(second))) is not None:
        sys.stdout.write(json.dumps({"how": how, "at": at, **outcome}) + "\n")
        at += 1


# --- the tests -------------------------------------------------------------------------------------------------------


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory, in memory if possible."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="runstate-") as made:
        yield Path(made)


def timeless(state: dict[str, Any]) -> dict[str, Any]:
    """A snapshot without its times, and without what an interruption may rightly leave behind."""
    state = json.loads(json.dumps(state))
    for item in state["work_items"]:
        del item["started_at"], item["finished_at"]
        if item["error"] is not None:
            del item["error"]["traceback"]
    for artifact in state["artifacts_index"].values():
        del artifact["ts"]
        artifact["path"] = Path(artifact["path"]).name
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "how"),
    [
        # `after+before` is both; each alone runs in the soak.
        *([("ndjson", "after"), ("ndjson", "before")] if "RUNSTATE_KILL_ROUNDS" in os.environ else []),
        ("ndjson", "replace"),
        ("ndjson", "replaced"),
        ("ndjson", "after+before"),
        ("sqlite", "after"),
    ],
)
def test_killed_at_every_step_a_run_ends_as_if_it_had_not_been(place: Path, scheme: str, how: str) -> None:
    command = [sys.executable, "-m", "tests.crash.test_orchestrator_kills", scheme, str(place), how]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    unbroken, *killed = map(json.loads, done.stdout.strip().split("\n"))
    assert 60 <= unbroken["events"] <= 100
    # Every step there is, and not a sample of them.
    files = len([name for name in unbroken["all_effects"] if name != "count:1:be"]) + 1
    steps = files if how.startswith("replace") else unbroken["events"]
    assert [each["at"] for each in killed] == list(range(1, steps + 1))
    for each in killed:
        where = (each["how"], each["at"])
        assert each["artifacts"] == unbroken["artifacts"], where
        assert timeless(each["state"]) == timeless(unbroken["state"]), where
        assert not set(each["effects"]) & set(each["finished_before"]), where
        assert set(each["all_effects"]) == set(unbroken["all_effects"]), where
        assert max(Counter(each["all_effects"]).values()) <= len(each["how"].split("+")) + 1, where
        assert each["replays"], where
        assert each["findings"] == [], where
        assert not {".staging", "failure.md"} & set(each["left"]), where


@pytest.mark.slow
def test_a_worker_process_that_is_killed_is_all_that_is_lost(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "text.txt").write_text("to be or to be\n")
    monkeypatch.setenv("RUNSTATE_TEST_DIRECTORY", str(place))
    monkeypatch.setenv("PYTHONPATH", str(root), prepend=os.pathsep)
    unbroken = run_in_processes(place, "unbroken", monkeypatch, "")
    for victim in dict.fromkeys(unbroken["effects"]):
        killed = run_in_processes(place, victim.replace(":", "-"), monkeypatch, victim)
        assert killed["artifacts"] == unbroken["artifacts"], victim
        assert killed["effects"].count(victim) == 1, victim
        assert killed["codes"] == ["WORKER_KILLED"], victim
        again = {name for name, count in Counter(killed["effects"]).items() if count > 1}
        assert not again, victim


def run_in_processes(place: Path, run_id: str, monkeypatch: pytest.MonkeyPatch, victim: str) -> dict[str, Any]:
    """A run in which the process of one work item is killed; resumed, if that has failed it."""
    noted = place / f"effects-{run_id}"
    monkeypatch.setenv("RUNSTATE_TEST_EFFECTS", str(noted))
    monkeypatch.setenv("RUNSTATE_TEST_VICTIM", victim)
    graph, pool = make_graph(place), ProcessPool(f"{__file__}:graph")
    with runstate.open("memory:", RUNDIR) as store:
        orchestrator = Orchestrator(graph, store, pool, run_id, place / run_id)
        try:
            state = orchestrator.start()
        except RunFailed:
            state = orchestrator.resume()
        finally:
            pool.close()
    codes = [i.error["code"] for i in state.work_items if i.error and i.error["code"] != "WORKER_RAISED"]
    assert state.run_state == "COMPLETED"
    assert children_of(os.getpid()) == []
    return {"effects": noted.read_text().split(), "artifacts": read_artifacts(place / run_id), "codes": codes}


def children_of(parent: int) -> list[int]:
    """The worker processes of a process, by what Linux says; those that are dead but not yet waited for too."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and (fields[0] == "Z" or b"worker_process" in command):
            found.append(int(path.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_workers_die_with_an_orchestrator_that_is_killed(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "import runstate\n"
        "from runstate.models.rundir import RUNDIR\n"
        "from runstate.runtimes.orchestrator import Graph, Orchestrator\n"
        "from runstate.runtimes.orchestrator.pool import ProcessPool\n"
        "graph = Graph('hang', parallel=2)\n"
        "@graph.node('n').worker(outputs=['out/{scope}'], scopes=['a', 'b'])\n"
        "def hang(job):\n"
        "    Path(f'pid-{job.scope_key}.tmp').write_text(str(os.getpid()))\n"
        "    os.rename(f'pid-{job.scope_key}.tmp', f'pid-{job.scope_key}')\n"
        "    while True: time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    store = runstate.open('memory:', RUNDIR)\n"
        "    Orchestrator(graph, store, ProcessPool('app.py:graph'), 'r', Path('r')).start()\n"
    )
    with subprocess.Popen([sys.executable, str(app)], cwd=tmp_path) as orchestrator:
        paths = [tmp_path / "pid-a", tmp_path / "pid-b"]
        until(lambda: all(path.exists() for path in paths))
        pids = [int(path.read_text()) for path in paths]
        assert all(is_alive(pid) for pid in pids)
        orchestrator.kill()
    until(lambda: not any(is_alive(pid) for pid in pids))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
