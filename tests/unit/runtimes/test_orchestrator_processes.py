"""Workers in processes of their own: they may crash, hang, print and exit, and none of them is left behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runstate.runtimes.orchestrator import RunCancelled, RunFailed, load_graph
from runstate.runtimes.orchestrator.pool import ProcessPool

app = """
import os, signal, subprocess, sys, time
from pathlib import Path
from runstate.runtimes.orchestrator import Graph

here = Path(__file__).parent
graph = Graph("app", parallel=2)
node = graph.node("n")

def first_time(name):
    try:
        os.close(os.open(here / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

def fine(job): job.write("{scope}", "x" * int(job.parameters.get("size", 1)))
def killed(job): os.kill(os.getpid(), signal.SIGKILL)
def terminated(job): os.kill(os.getpid(), signal.SIGTERM)
def exited(job): os._exit(7)
def left(job): sys.exit(7)
def hung(job):
    (here / job.scope_key).write_text(str(os.getpid()))
    time.sleep(600)
def printed(job):
    print("hello"); sys.stdout.write("{}\\n" * 1000); os.write(1, b"{}\\n"); subprocess.run(["echo", "hello"])
    fine(job)
def asked(job):
    assert sys.stdin.read() == "" and os.read(0, 10) == b""
    fine(job)
def parent(job):
    child = subprocess.Popen(["sleep", "600"])
    (here / job.scope_key).write_text(str(child.pid))
    time.sleep(600)
def forked(job):
    if os.fork() == 0:
        (here / job.scope_key).write_text(str(os.getpid()))
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)
def babbled(job): os.write(int(sys.argv[2]), b"nonsense\\n"); time.sleep(600)
def killed_once(job):
    if first_time("once"): killed(job)
    fine(job)
def remembered(job): job.write("{scope}", str(os.getpid()))

node.worker(outputs=["{scope}"], scopes=SCOPES, **OPTIONS)(WORK)
"""


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Callable[..., tuple[Any, ProcessPool]]]:
    """`application(worker, scopes, **options)`: its graph, and a pool that runs it."""
    pools: list[ProcessPool] = []

    def made(work: str, scopes: str = "a", **options: Any) -> tuple[Any, ProcessPool]:
        path = tmp_path / f"{work}-{len(pools)}.py"
        text = app.replace("SCOPES", repr(list(scopes))).replace("OPTIONS", repr(options)).replace("WORK", work)
        path.write_text(text)
        pools.append(ProcessPool(f"{path}:graph"))
        return load_graph(f"{path}:graph"), pools[-1]

    yield made
    for pool in pools:
        pool.close()
    assert workers() == []


def workers() -> list[str]:
    """The worker processes of this process, dead ones that nobody has waited for too."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and (fields[0] == "Z" or "worker_process" in _command(path.parent)):
            found.append(path.parent.name)
    return found


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("work", ["fine", "printed", "asked"])
def test_a_worker_that_prints_or_reads_its_input_does_no_harm(shop: Any, application: Any, work: str) -> None:
    graph, pool = application(work, "ab")
    assert shop.orchestrator(graph, pool=pool).start().run_state == "COMPLETED"
    assert shop.artifacts() == {"a": b"x", "b": b"x"}


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        ("killed", "WORKER_KILLED", "was killed by SIGKILL"),
        ("terminated", "WORKER_KILLED", "was killed by SIGTERM"),
        ("exited", "WORKER_KILLED", "ended with exit code 7"),
        ("left", "WORKER_RAISED", "7"),
        ("babbled", "WORKER_KILLED", "answered nonsense"),
        ("forked", "WORKER_KILLED", "was killed by SIGKILL"),
    ],
)
def test_a_worker_that_ends_its_process_fails_its_item(
    shop: Any, application: Any, work: str, code: str, said: str
) -> None:
    graph, pool = application(work)
    with pytest.raises(RunFailed) as failed:
        shop.orchestrator(graph, pool=pool).start()
    assert failed.value.details == {"error_code": code}
    assert said in str(failed.value)
    shop.check_trail()


def test_a_killed_worker_is_tried_again_in_a_new_process(shop: Any, application: Any) -> None:
    graph, pool = application("killed_once", attempts=2)
    state = shop.orchestrator(graph, pool=pool).start()
    assert [(i.attempt, i.status) for i in state.work_items] == [(1, "failed"), (2, "finished")]


@pytest.mark.slow
@pytest.mark.parametrize("work", ["hung", "parent"])
def test_a_worker_that_hangs_is_killed_with_all_that_it_has_started(
    shop: Any, application: Any, tmp_path: Path, work: str
) -> None:
    graph, pool = application(work, "ab", timeout_s=3.0)
    with pytest.raises(RunFailed) as failed:
        shop.orchestrator(graph, pool=pool).start()
    assert failed.value.details == {"error_code": "TIMEOUT"}
    until(lambda: not is_alive(int((tmp_path / "a").read_text())) and not is_alive(int((tmp_path / "b").read_text())))
    shop.check_trail()


@pytest.mark.slow
def test_a_worker_that_hangs_does_not_wait_for_the_one_before_it(shop: Any, tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text(
        "import time, os\n"
        "from pathlib import Path\n"
        "from runstate.runtimes.orchestrator import Graph\n"
        "graph = Graph('g', parallel=2)\n"
        "node = graph.node('n')\n"
        "@node.worker(outputs=['a'])\n"
        "def waits(job):\n"
        "    while not Path(__file__).with_name('pid').exists(): time.sleep(0.01)\n"
        "    pid = int(Path(__file__).with_name('pid').read_text())\n"
        "    while Path(f'/proc/{pid}/stat').exists(): time.sleep(0.01)\n"
        "    job.write('a', 'x')\n"
        "@node.worker(outputs=['b'], timeout_s=2)\n"
        "def hangs(job):\n"
        "    Path(__file__).with_name('pid.tmp').write_text(str(os.getpid()))\n"
        "    Path(__file__).with_name('pid.tmp').rename(Path(__file__).with_name('pid'))\n"
        "    time.sleep(600)\n"
    )
    pool = ProcessPool(f"{path}:graph")
    with pytest.raises(RunFailed):
        shop.orchestrator(load_graph(f"{path}:graph"), pool=pool).start()
    pool.close()
    assert {i.worker: i.status for i in shop.state().work_items} == {"waits": "finished", "hangs": "failed"}


def test_cancelling_kills_those_under_way(shop: Any, application: Any, tmp_path: Path) -> None:
    graph, pool = application("hung", "ab")
    orchestrator = shop.orchestrator(graph, pool=pool)

    def cancel() -> None:
        until(lambda: all((tmp_path / key).exists() and (tmp_path / key).read_text() for key in "ab"))
        orchestrator.cancelled.set()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(RunCancelled):
        orchestrator.start()
    canceller.join()
    assert not is_alive(int((tmp_path / "a").read_text()))
    assert not is_alive(int((tmp_path / "b").read_text()))
    assert shop.state().run_state == "CANCELLED"
    shop.check_trail()


def test_an_orchestrator_that_cannot_go_on_ends_its_workers(shop: Any, application: Any, tmp_path: Path) -> None:
    graph, pool = application("hung", "ab")
    shop.kill_at(7)  # While the second is being started.
    with pytest.raises(shop.Killed):
        shop.orchestrator(graph, pool=pool).start()
    assert workers() == []


def test_processes_are_used_again_and_a_dead_one_is_replaced(shop: Any, application: Any) -> None:
    graph, pool = application("remembered", "abcd")
    shop.orchestrator(graph, pool=pool).start()
    pids = {int(data) for data in shop.artifacts().values()}
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, 9)
    until(lambda: not any(map(is_alive, pids)))
    shop.orchestrator(graph, pool=pool).resume(force={"n"})
    assert not pids & {int(data) for data in shop.artifacts().values()}


def test_a_job_larger_than_a_pipe_reaches_a_process_that_is_slow_to_read(shop: Any, application: Any) -> None:
    graph, pool = application("fine")
    parameters = {"size": 3, "padding": "x" * 500_000}
    assert shop.orchestrator(graph, pool=pool).start(parameters).run_state == "COMPLETED"


def test_a_graph_that_cannot_be_loaded_in_the_process_is_a_blocker(shop: Any, application: Any, tmp_path: Path) -> None:
    graph, pool = application("fine")
    next(tmp_path.glob("fine-*.py")).write_text("raise ValueError('changed meanwhile')")
    with pytest.raises(RunFailed) as failed:
        shop.orchestrator(graph, pool=pool).start()
    assert failed.value.details == {"error_code": "GRAPH_INVALID"}
    assert "changed meanwhile" in str(failed.value)
