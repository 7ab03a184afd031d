"""A command never deletes or changes a file that Runstate did not write, in any directory that it is given."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import other_user
from tests.commands import Cli, Outcome
from tests.foreign_files import Planted, spark_targets, targets
from typer.main import get_command

import runstate
from runstate.cli.main import app
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.runtimes.session import linear, open_sessions, unwrap

_graph = """
from runstate.runtimes.orchestrator import Graph
graph = Graph("small")
@graph.node("write").worker(outputs=["out.txt"])
def write(job):
    job.write("out.txt", "done")
"""
_event = b'{"eventId":"00000000-0000-4000-8000-000000000001","eventType":"RunStarted","runId":"r-9",'
_event += b'"tenantId":"acme","projectId":"p","environmentId":"e","planId":"nightly","planVersion":"1",'
_event += b'"engineAttemptId":1,"logicalAttemptId":1,"idempotencyKey":"k-1",'
_event += b'"emittedAt":"2026-01-01T00:00:00.000Z","payload":{}}\n'
Demo = Callable[[], "subprocess.CompletedProcess[str]"]


def add_run(name: str, work: Path = Path()) -> None:
    """Append a finished run to the log that the commands read."""
    with runstate.open(f"sqlite:{work / 'runs.db'}") as store:
        run = store.run(name, tenant="acme", plan="nightly")
        run.started()
        run.completed()


def prepare(work: Path) -> None:
    """Make everything that the commands read."""
    add_run("r-1", work)
    (work / "graph.py").write_text(_graph)
    archive = ArchiveDirectory(work / "old")
    archive.prepare("engine")
    with open_sessions(f"segments:{work / 'sessions'}", work / "keyring.json") as sessions:
        name = unwrap(sessions.create(session_id="s-1", title="Fix it"))
        unwrap(sessions.start_run(name, linear("fix", "Find it", "Fix it")))
        (work / "bundle.json").write_bytes(unwrap(sessions.export("s-1")))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("prepared")
    prepare(made)
    return made


@pytest.fixture
def work(cli: Cli, tmp_path: Path, prepared: Path) -> Path:
    """The working directory."""
    return shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)


def ask(cli: Cli, command: str) -> Outcome:
    return cli(*all_targets[command].format(to="target").split(), stdin=_event)


def is_refused(outcome: Outcome) -> bool:
    return outcome.code == 2 and "was not written by Runstate" in outcome.err and "Traceback" not in outcome.err


all_targets = {**targets, **spark_targets}
every_target = pytest.mark.parametrize("command", all_targets)


def test_every_option_that_names_a_target_directory_is_listed() -> None:
    """Targets that are URLs of logs are listed by hand."""
    groups = get_command(app).commands  # type: ignore[attr-defined]
    commands = {name: command for name, command in groups.items() if not hasattr(command, "commands")}
    for name, group in groups.items():
        commands |= {f"{name} {each}": command for each, command in getattr(group, "commands", {}).items()}
    found = {
        f"{name} {each}" for name, command in commands.items() for option in command.params for each in option.opts
    }
    writes = {each for each in found if each.endswith((" --to", " --state", " --runs"))}
    reads = {"diff --to", "lag --state", "resume --runs", "status --runs"}
    files = {"seal --to"}
    assert writes - reads - files <= {*targets, *spark_targets}


@every_target
def test_a_directory_of_somebody_else_is_refused_and_left_as_it_is(cli: Cli, work: Path, command: str) -> None:
    planted = Planted(work / "target")
    before = sorted((work / "target").rglob("*"))
    outcome = ask(cli, command)
    planted.check()
    assert is_refused(outcome), outcome.err
    assert sorted((work / "target").rglob("*")) == before


@every_target
def test_one_file_is_enough_and_a_name_that_we_use_too_does_not_make_it_ours(
    cli: Cli, work: Path, command: str
) -> None:
    for name in (".mine", "data/mine", "packs/mine", "inputs/mine.json", "sessions/mine"):
        mine = work / "target" / name
        mine.parent.mkdir(parents=True)
        mine.write_bytes(b"{}")
        assert is_refused(ask(cli, command)), name
        assert mine.read_bytes() == b"{}"
        assert [path for path in (work / "target").rglob("*") if path.is_file()] == [mine]
        shutil.rmtree(work / "target")


@pytest.mark.parametrize("command", [each for each in targets if each != "demo --to"])
def test_a_second_run_keeps_files_that_were_added_to_its_own_directory(cli: Cli, work: Path, command: str) -> None:
    first = ask(cli, command)
    assert first.code == 0, first.err
    planted = Planted(work / "target")
    add_run("r-2")
    outcome = ask(cli, command)
    planted.check()
    assert outcome.code == 0, outcome.err


@pytest.mark.slow
def test_a_daemon_refuses_a_directory_of_somebody_else_and_keeps_files_added_to_its_own(work: Path) -> None:
    planted = Planted(work / "theirs")
    refused = subprocess.run(runstate_command("daemon", "serve", "theirs"), capture_output=True, text=True, timeout=60)
    assert (refused.returncode, "was not written by Runstate" in refused.stderr) == (2, True)
    planted.check()
    for start in (1, 2):
        served = subprocess.Popen(runstate_command("daemon", "serve", "ours"), stderr=subprocess.PIPE, text=True)
        assert served.stderr is not None
        assert served.stderr.readline().startswith("serving")
        if start == 1:
            planted = Planted(work / "ours")
        served.send_signal(signal.SIGTERM)
        assert (served.wait(timeout=60), served.stderr.read().startswith("closing")) == (0, True)
        served.stderr.close()
        planted.check()


def runstate_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "runstate", *arguments]


# --- the demo ----------------------------------------------------------------------------------------------------


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    """The demo without Spark, which is one of seven chapters and most of the time."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')\n")
    path = os.pathsep.join([str(blocked), *sys.path])

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            runstate_command("demo", "--to", "here"),
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def beside(directory: Path) -> dict[Path, bytes]:
    """Files of a user next to the demo's own."""
    mine = {directory / name: name.encode() for name in ("notes.txt", "x.tmp", "data/mine.txt", "photos/one.jpg")}
    for path, data in mine.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return mine


@pytest.mark.slow
def test_a_second_demo_removes_what_the_first_wrote_and_keeps_what_a_user_put_beside_it(
    demo: Demo, tmp_path: Path
) -> None:
    first = demo()
    assert first.returncode == 0, first.stderr
    mine = beside(tmp_path / "here")
    old = (tmp_path / "here" / "runs" / "site-00" / "events.ndjson").read_bytes()
    second = demo()
    assert second.returncode == 0, second.stderr
    assert {path: path.read_bytes() for path in mine} == mine
    assert (tmp_path / "here" / "runs" / "site-00" / "events.ndjson").read_bytes() != old


@pytest.mark.slow
def test_a_demo_changes_nothing_where_a_user_has_put_a_file_among_its_own(demo: Demo, tmp_path: Path) -> None:
    here = tmp_path / "here"
    assert demo().returncode == 0
    mine, outside = here / "desk" / "mine", tmp_path / "outside"
    mine.write_bytes(b"mine")
    refuse(demo, tmp_path)
    mine.unlink()
    (here / "sources").rename(outside)
    (here / "sources").symlink_to(outside)
    refuse(demo, tmp_path)


def refuse(demo: Demo, directory: Path) -> None:
    def everything() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    before = everything()
    refused = demo()
    assert refused.returncode == 2
    assert "is not in the record of an earlier demo" in refused.stderr
    assert everything() == before


# --- directories that cannot be written -----------------------------------------------------------------------------


Refusals = dict[tuple[str, str], tuple[int, str]]


@pytest.fixture(scope="module")
def refusals() -> Iterator[Refusals]:
    """What another user reads about targets of ours, by the command and by what is closed to that user."""
    with tempfile.TemporaryDirectory(prefix="runstate-other-user-") as name:
        work = Path(name).resolve()
        prepare(work)
        for path in (work, *work.rglob("*")):
            os.chown(path, other_user.nobody if os.getuid() == 0 else -1, -1)
        closed = {"target": work / "theirs", "parent": work / "outer" / "new", "unreadable": work / "secret"}
        closed["target"].mkdir(mode=0o555)
        closed["parent"].parent.mkdir(mode=0o555)
        closed["unreadable"].mkdir(mode=0o000)
        only = {"unreadable": {"append wal:", "project --to", "queue push"}}
        asked = {
            (each, how): command.format(to=to)
            for each, command in all_targets.items()
            for how, to in closed.items()
            if each in only.get(how, all_targets)
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.other_user"],
            cwd=work,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]),
                "HOME": name,
                "NO_COLOR": "1",
                "XDG_CACHE_HOME": f"{name}/.cache",
                "COLUMNS": "500",
            },
            input=json.dumps([command.split() for command in asked.values()]),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        yield dict(zip(asked, map(tuple, json.loads(done.stdout)), strict=True))


@pytest.mark.slow
@pytest.mark.xdist_group("other-user")
@every_target
def test_a_directory_that_cannot_be_written_is_refused_with_what_to_do(refusals: Refusals, command: str) -> None:
    for code, err in (found for (asked, _), found in refusals.items() if asked == command):
        assert code == 2, err
        assert "Traceback" not in err
        # The command line itself refuses a path that it cannot read.
        assert re.search(r"hoose a directory that you can|Ask for read permission|is not readable", err), err
        assert re.search(r"Permission denied|it belongs to root|is not readable", err), err
