"""resume and status, of runs that nobody works on any more, and of runs whose events are gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import runstate
from runstate.cli import runs
from runstate.models.rundir import RUNDIR, RunEvent
from runstate.runtimes.orchestrator.artifacts import ArtifactFiles
from runstate.storage.disk import Lock

Cli = Callable[..., Any]


def tell(kind: str) -> None:
    """Append an event to the run `r`, as its orchestrator would."""
    with runstate.open("ndjson:runs", RUNDIR) as store:
        event = RunEvent(event_id=kind, run_id="r", type=kind, payload={}, trace_id="a" * 32, span_id="b" * 16)
        store.append_event(event)


@pytest.fixture
def held(cli: Cli) -> Lock:
    """The lock of the orchestrator that is at work on the run `r`."""
    runstate.open("ndjson:runs", RUNDIR).close()
    lock = ArtifactFiles(Path("runs/r").absolute()).lock()
    tell("RUN_CREATED")
    return lock


@pytest.fixture
def abandoned(cli: Cli, held: Lock) -> Cli:
    """The run `r` after its orchestrator was killed: in the middle, and the kernel has freed the lock."""
    held.release()
    return cli


# --- nobody works on it ----------------------------------------------------------------------------------------------


def test_status_says_that_nobody_works_on_a_run_and_how_to_go_on(abandoned: Cli) -> None:
    said = abandoned("status", "r").err
    assert "run r: CREATED, interrupted\n" in said
    assert "nobody works on it any more; go on with: runstate resume runs/r\n" in said


def test_status_as_json_has_it_as_a_field(abandoned: Cli) -> None:
    (row,) = abandoned("status", "r", "--json").rows
    assert (row["run_state"], row["interrupted"]) == ("CREATED", True)


def test_the_way_on_is_a_path_even_where_the_runs_are_in_this_directory(
    abandoned: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("runs")
    assert "go on with: runstate resume ./r\n" in abandoned("status", "r", "--runs", ".").err


def test_a_run_that_is_worked_on_is_not_interrupted(cli: Cli, held: Lock) -> None:
    assert [row["interrupted"] for row in cli("status", "r", "--json").rows] == [False]
    assert "interrupted" not in cli("status", "r").err


@pytest.mark.parametrize("end", ["RUN_COMPLETED", "RUN_FAILED", "RUN_CANCELLED"])
def test_a_run_that_has_ended_is_not_interrupted(abandoned: Cli, end: str) -> None:
    tell(end)
    assert [row["interrupted"] for row in abandoned("status", "r", "--json").rows] == [False]


def test_a_run_that_ends_while_it_is_looked_at_is_not_interrupted(
    cli: Cli, held: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = ArtifactFiles.is_abandoned

    def end_meanwhile(files: ArtifactFiles) -> bool:
        tell("RUN_COMPLETED")
        held.release()
        return really(files)

    monkeypatch.setattr(ArtifactFiles, "is_abandoned", end_meanwhile)
    assert [row["interrupted"] for row in cli("status", "r", "--json").rows] == [False]


def test_a_run_of_somebody_elses_making_is_not_called_interrupted(cli: Cli) -> None:
    tell("RUN_CREATED")
    assert [row["interrupted"] for row in cli("status", "r", "--json").rows] == [False]


def test_watching_ends_when_nobody_works_on_the_run_any_more(
    cli: Cli, held: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = runs._report

    def kill_after_the_first_frame(*arguments: Any) -> None:
        really(*arguments)
        held.release()

    monkeypatch.setattr(runs, "_watch_s", 0.0)
    monkeypatch.setattr(runs, "_report", kill_after_the_first_frame)
    watched = cli("status", "r", "--watch", "--json")
    assert (watched.code, [row["interrupted"] for row in watched.rows]) == (0, [False, True])
    assert "go on with: runstate resume runs/r" in watched.err


@contextmanager
def process(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which does not outlive the test."""
    command = [str(Path(sys.executable).parent / "runstate"), *arguments]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


@pytest.mark.slow
def test_a_killed_orchestrator_is_noticed_by_who_watches_and_resume_goes_on(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import os, time\n"
        "from runstate.runtimes.orchestrator import Graph\n"
        "graph = Graph('k')\n"
        "@graph.node('n').worker(outputs=['out.txt'])\n"
        "def work(job):\n"
        "    open('started', 'w').close()\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "    job.write('out.txt', 'x')\n"
    )
    with process(tmp_path, "run", "app.py:graph", "--id", "r") as run:
        while not (tmp_path / "started").exists():
            assert run.poll() is None
        with process(tmp_path, "status", "r", "--watch", "--json") as watch:
            assert watch.stdout is not None
            assert json.loads(watch.stdout.readline())["interrupted"] is False
            run.kill()
            out, said = watch.communicate(timeout=30)
    assert (watch.returncode, json.loads(out.strip().split("\n")[-1])["interrupted"]) == (0, True)
    assert "go on with: runstate resume runs/r" in said
    (tmp_path / "go").touch()
    with process(tmp_path, "resume", "runs/r") as resume:
        assert resume.communicate(timeout=30)
    assert resume.returncode == 0


def test_a_run_that_is_there_already_says_how_to_go_on_with_it(abandoned: Cli) -> None:
    Path("app.py").write_text(
        "from runstate.runtimes.orchestrator import Graph\n"
        "graph = Graph('k')\n"
        "@graph.node('n').worker(outputs=['out.txt'])\n"
        "def work(job): job.write('out.txt', 'x')\n"
    )
    refused = abandoned("run", "app.py:graph", "--id", "r")
    assert (refused.code, "error[run.exists]" in refused.err) == (2, True)
    assert "go on with: runstate resume runs/r\n" in refused.err


# --- no events -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["resume", "status"])
def test_a_run_whose_events_are_gone_says_which_file_to_put_back(abandoned: Cli, command: str) -> None:
    os.remove("runs/r/events.ndjson")
    refused = abandoned(command, "r")
    assert refused.code == 3
    assert "runs/r/events.ndjson is gone" in refused.err
    assert "put it back, or begin a new run under another id" in refused.err


def test_a_run_whose_file_of_events_is_empty_says_so(abandoned: Cli) -> None:
    os.truncate("runs/r/events.ndjson", 0)
    assert "runs/r/events.ndjson is empty" in abandoned("resume", "r").err


def test_a_run_that_was_killed_before_its_first_event_is_to_be_begun(abandoned: Cli) -> None:
    shutil.rmtree("runs/r")
    ArtifactFiles(Path("runs/r").absolute()).lock().release()
    refused = abandoned("resume", "r")
    assert (refused.code, "was never begun" in refused.err) == (3, True)
    assert "begin it by runstate run, with --id" in refused.err


def test_a_run_without_a_directory_is_not_there(abandoned: Cli) -> None:
    assert "There is no run 'other' in runs" in abandoned("resume", "other").err


# --- which application a run is resumed with -------------------------------------------------------------------------


@pytest.fixture
def started(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """The run `r` of `app.py:graph`, which leaves the file `loaded` each time it is loaded."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("app.py").write_text(
        "from pathlib import Path\n"
        "from runstate.runtimes.orchestrator import Graph\n"
        "Path('loaded').touch()\n"
        "graph = Graph('k')\n"
        "@graph.node('n').worker(outputs=['out.txt'])\n"
        "def work(job): job.write('out.txt', 'x')\n"
    )
    assert cli("run", "app.py:graph", "--id", "r").code == 0
    os.remove("loaded")
    forget_modules()
    return cli


def forget_modules() -> None:
    """What was loaded stays loaded in a process; a command has one of its own."""
    for name in [name for name in sys.modules if name.startswith("runstate_place_")]:
        del sys.modules[name]


def test_a_run_is_resumed_without_app_where_it_was_started(started: Cli) -> None:
    assert started("resume", "r").code == 0
    assert Path("loaded").exists()


def test_a_run_of_somebody_else_asks_for_app_and_loads_nothing(started: Cli) -> None:
    shutil.rmtree("state")
    refused = started("resume", "r")
    assert (refused.code, "error[run.app_not_recorded]" in refused.err) == (2, True)
    assert "There is no record that you started the run in runs/r." in refused.err
    assert "Its first event names 'app.py:graph'." in refused.err
    assert refused.err.endswith("type: runstate resume runs/r --app app.py:graph\n")
    assert not Path("loaded").exists()


def test_a_run_that_was_started_elsewhere_asks_for_app(started: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    refused = started("resume", "../runs/r")
    assert refused.code == 2
    assert "from another working directory" in refused.err
    assert refused.err.endswith("type: runstate resume ../runs/r --app app.py:graph\n")


def test_a_run_is_resumed_without_app_after_it_was_resumed_with_it(started: Cli) -> None:
    shutil.rmtree("state")
    assert started("resume", "r", "--app", "app.py:graph").code == 0
    assert started("resume", "r").code == 0


@pytest.mark.parametrize("named", ["", "app", "evil.py:\x1b[31mgraph", "x" * 1000 + ":graph", 7, ["app.py:graph"]])
def test_a_first_event_that_names_nothing_usable_is_not_put_into_the_command(
    started: Cli, named: object, tmp_path: Path
) -> None:
    with runstate.open("ndjson:runs", RUNDIR) as store:
        payload = {"config": {"place": named}}
        store.append_event(
            RunEvent(event_id="1", run_id="s", type="RUN_CREATED", payload=payload, trace_id="a" * 32, span_id="b" * 16)
        )
    refused = started("resume", "s")
    assert refused.code == 2
    assert refused.err.endswith("type: runstate resume runs/s --app FILE.py:NAME\n")
    assert refused.err.rstrip("\n").isprintable()


def test_a_run_whose_state_directory_cannot_be_written_runs_and_says_how_to_resume(
    started: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("file").absolute()))
    done = started("run", "app.py:graph", "--id", "s")
    assert done.code == 0
    assert "to resume this run, pass --app app.py:graph\n" in done.err
    assert started("resume", "s").code == 2
    assert started("resume", "s", "--app", "app.py:graph").code == 0


def test_a_run_that_is_there_already_is_not_recorded(started: Cli) -> None:
    shutil.rmtree("state")
    assert started("run", "app.py:graph", "--id", "r").code == 2
    assert started("resume", "r").code == 2
