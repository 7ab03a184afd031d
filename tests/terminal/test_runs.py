"""run, resume and status on a terminal: the display while work is under way, and what is left on the screen."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.terminal.conftest import Start, check_in_order
from tests.terminal.ptys import Terminal

pytestmark = pytest.mark.slow

_app = """\
import os, sys, time
from runstate.runtimes.orchestrator import Graph
graph = Graph('builds', parallel=1)
@graph.node('first').worker(outputs=['compiled.txt'])
def compile_all(job):
    print('compiling with the quick compiler')
    while not os.path.exists('compiled'): time.sleep(0.01)
    job.write('compiled.txt', 'x')
@graph.node('second').worker(inputs=['compiled.txt'], outputs=['linked.txt'])
def link_all(job):
    while not os.path.exists('linked'): time.sleep(0.01)
    job.write('linked.txt', 'x')
"""


@pytest.fixture(autouse=True)
def app(tmp_path: Path) -> None:
    """A graph of two workers; each waits for a file of its own."""
    (tmp_path / "app.py").write_text(_app)


@pytest.fixture
def finished(tmp_path: Path, start: Start) -> Terminal:
    """The terminal of a run that was watched until its end."""
    run = start("run", "app.py:graph", "--id", "r")
    run.wait_for("0/1 done", "compile_all")
    (tmp_path / "compiled").touch()
    run.wait_for("1/2 done", "link_all")
    (tmp_path / "linked").touch()
    assert run.finish() == 0, run.text
    return run


def test_run_leaves_a_table_and_no_progress(finished: Terminal, size: str) -> None:
    assert any(line.startswith("work item") for line in finished.lines), finished.text
    assert "done" not in finished.flat
    check_in_order(finished)


def test_run_says_which_run_it_is_and_how_it_ended(finished: Terminal, size: str) -> None:
    assert finished.lines[0] == "run r"
    assert "run r: COMPLETED" in finished.lines


def test_what_a_worker_prints_has_a_line_of_its_own(finished: Terminal, size: str) -> None:
    assert "compiling with the quick compiler" in finished.lines


def test_an_interrupted_run_says_how_to_continue(tmp_path: Path, start: Start, size: str) -> None:
    run = start("run", "app.py:graph", "--id", "r")
    run.wait_for("compile_all")
    run.interrupt()
    assert run.finish() == 130, run.text
    assert "runstate resume runs/r" in run.flat
    check_in_order(run)


def test_an_interrupted_run_is_resumed(tmp_path: Path, start: Start, size: str) -> None:
    run = start("run", "app.py:graph", "--id", "r")
    run.wait_for("compile_all")
    run.interrupt()
    run.finish()
    (tmp_path / "compiled").touch()
    resume = start("resume", "runs/r")
    resume.wait_for("link_all")
    (tmp_path / "linked").touch()
    assert resume.finish() == 0, resume.text
    assert any(line.startswith("work item") for line in resume.lines), resume.text
    assert "2/2 done" not in resume.flat
    assert "2 work items done now" in resume.flat
    check_in_order(resume)


def test_an_interrupted_resume_says_how_to_continue(tmp_path: Path, start: Start) -> None:
    run = start("run", "app.py:graph", "--id", "r")
    run.wait_for("compile_all")
    run.interrupt()
    run.finish()
    resume = start("resume", "runs/r")
    resume.wait_for("compile_all")
    resume.interrupt()
    assert resume.finish() == 130, resume.text
    assert "runstate resume runs/r" in resume.flat
    check_in_order(resume)


def test_status_watch_follows_a_run_to_its_end(tmp_path: Path, start: Start, size: str) -> None:
    run = start("run", "app.py:graph", "--id", "r")
    run.wait_for("compile_all")
    watch = start("status", "r", "--watch")
    watch.wait_for("compile_all", "running")
    (tmp_path / "compiled").touch()
    watch.wait_for("link_all", "finished")
    (tmp_path / "linked").touch()
    assert watch.finish() == 0, watch.text
    run.finish()
    assert watch.lines.count("run r: COMPLETED") == 1, watch.text
    assert "running" not in watch.flat
    check_in_order(watch)


def test_an_interrupted_watch_leaves_the_last_status_once(tmp_path: Path, start: Start, size: str) -> None:
    run = start("run", "app.py:graph", "--id", "r")
    run.wait_for("compile_all")
    watch = start("status", "r", "--watch")
    watch.wait_for("compile_all", "running")
    time.sleep(1.2)  # Long enough for a second frame, which must replace the first.
    watch.interrupt()
    assert watch.finish() == 0, watch.text
    assert [line.startswith("work item") for line in watch.lines].count(True) == 1, watch.text
    check_in_order(watch)
    run.interrupt()
    run.finish()
