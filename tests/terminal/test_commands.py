"""Commands on a terminal: what is seen while they work, what is left when they end, and Ctrl-C in each.

Work that must be under way when Ctrl-C comes waits for the write lock of a SQLite log, which the test holds.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.fleets import histories
from tests.terminal.conftest import Start, check_in_order

import runstate
from runstate.runtimes.session import linear, open_sessions, unwrap

pytestmark = pytest.mark.slow
_runs = 12
_soon_s = 10.0
"""Within this time a command reacts to Ctrl-C. It takes milliseconds; the rest is for machines with much to do."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet in a SQLite log, an empty log, an archive, and a session: made once, copied for each test."""
    directory = tmp_path_factory.mktemp("made")
    with runstate.open(f"sqlite:{directory}/fleet.db", on_alert=lambda alert: None) as store:
        for lines in histories("engine", 0, _runs).values():
            store.append_events([store.model.parse(line) for line in lines])
    runstate.open(f"sqlite:{directory}/empty.db").close()
    archive = ["archive", "sqlite:fleet.db", "--to", "old", "--older-than", "0s", "--keep"]
    subprocess.run([sys.executable, "-m", "runstate", *archive], cwd=directory, check=True, capture_output=True)
    example = Path(__file__).parents[2] / "examples" / "session" / "agent.py"
    subprocess.run([sys.executable, str(example), "desk"], cwd=directory, check=True, capture_output=True)
    with open_sessions(f"segments:{directory}/desk/sessions", directory / "desk" / "keyring.json") as sessions:
        fork = linear("review", "Read the change", "Run the tests")
        begun = unwrap(sessions.start_run("review-7", fork, run_id="forked"))
        unwrap(sessions.advance(begun.ack_token or "", "Read"))
        unwrap(sessions.advance(unwrap(sessions.rewind("review-7", begun.node_id)).ack_token or "", "Read again"))
    return directory


@pytest.fixture
def fleet(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@contextmanager
def locked(log: Path) -> Iterator[None]:
    """Hold the write lock of a SQLite log, as another process would."""
    with closing(sqlite3.connect(log, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


_waiting: list[tuple[str, str, list[str]]] = [
    ("empty.db", "copying", ["copy", "sqlite:fleet.db", "sqlite:empty.db"]),
    ("fleet.db", "archiving", ["archive", "sqlite:fleet.db", "--to", "new", "--older-than", "0s"]),
    ("empty.db", "restoring", ["restore", "old", "sqlite:empty.db"]),
    ("fleet.db", "replaying", ["replay", "sqlite:fleet.db"]),
    ("empty.db", "appending", ["append", "sqlite:empty.db", "events.ndjson"]),
]


@pytest.mark.parametrize(("log", "doing", "command"), _waiting, ids=[doing for _, doing, _ in _waiting])
def test_work_under_way_is_shown_and_ends_at_ctrl_c(
    fleet: Path, start: Start, log: str, doing: str, command: list[str]
) -> None:
    write_events(fleet / "events.ndjson", seed=1)
    with locked(fleet / log):
        working = start(*command)
        working.wait_for(doing)
        began = time.monotonic()
        working.interrupt()
        assert working.finish() == 130, working.text
        assert time.monotonic() - began < _soon_s
    assert doing not in working.text
    assert "interrupted" in working.flat
    check_in_order(working)


@pytest.mark.parametrize(("log", "doing", "command"), _waiting, ids=[doing for _, doing, _ in _waiting])
def test_nothing_of_the_display_is_left_when_the_work_is_done(
    fleet: Path, start: Start, log: str, doing: str, command: list[str], size: str
) -> None:
    write_events(fleet / "events.ndjson", seed=1)
    with locked(fleet / log):
        working = start(*command)
        working.wait_for(doing)
    assert working.finish() == 0, working.text
    assert doing not in working.text
    check_in_order(working)


def write_events(path: Path, seed: int) -> None:
    path.write_bytes(b"".join(line + b"\n" for lines in histories("engine", seed, 3).values() for line in lines))


def test_what_append_answers_stays_intact(fleet: Path, start: Start) -> None:
    write_events(fleet / "events.ndjson", seed=1)
    with locked(fleet / "empty.db"):
        appending = start("append", "sqlite:empty.db", "events.ndjson", columns=400)
        appending.wait_for("appending")
    assert appending.finish() == 0
    *answers, last = appending.lines
    assert all(isinstance(json.loads(line), dict) for line in answers), appending.text
    assert "appended" in last


def test_findings_stand_on_lines_of_their_own(fleet: Path, start: Start, size: str) -> None:
    lines = b"\n".join(b"nonsense %d" % number for number in range(5)) + b"\n"
    os.mkfifo(fleet / "events.ndjson")
    checking = start("validate", "events.ndjson")
    with (fleet / "events.ndjson").open("wb", buffering=0) as fifo:
        checking.wait_for("checking")
        fifo.write(lines)
    assert checking.finish() == 1
    assert [line.split(":")[1] for line in checking.lines if line.startswith("events.ndjson:")] == list("12345")
    assert "0 good, 5 bad" in checking.text
    check_in_order(checking)


def test_an_interrupted_validation_ends_at_once(fleet: Path, start: Start) -> None:
    os.mkfifo(fleet / "events.ndjson")
    checking = start("validate", "events.ndjson")
    with (fleet / "events.ndjson").open("wb", buffering=0):
        checking.wait_for("checking")
        checking.interrupt()
        assert checking.finish() == 130, checking.text
    check_in_order(checking)


def test_verify_says_that_a_log_is_intact(fleet: Path, start: Start, size: str) -> None:
    verify = start("verify", "segments:desk/sessions")
    assert verify.finish() == 0
    assert verify.lines == ["intact"]
    check_in_order(verify)


def test_verify_names_impossible_events_and_counts_them(fleet: Path, start: Start, size: str) -> None:
    verify = start("verify", "sqlite:fleet.db")
    assert verify.finish() == 0
    assert "engine-0-0001:10: event.invalid_transition: StepCompleted is intact, and impossible" in verify.unwrapped
    assert verify.lines[-1] == "0 damaged, 6 warnings"
    check_in_order(verify)


def test_the_summary_of_an_archive_names_what_was_done(fleet: Path, start: Start, size: str) -> None:
    archive = start("archive", "sqlite:fleet.db", "--to", "new", "--older-than", "0s")
    assert archive.finish() == 0
    assert archive.lines[0].startswith("stream")
    assert "9 archived" in archive.flat
    check_in_order(archive)


# --- until interrupted: that is their normal end ---------------------------------------------------------------------


def test_tail_follow_shows_new_events_until_ctrl_c(fleet: Path, start: Start, size: str) -> None:
    tail = start("tail", "sqlite:fleet.db", "--follow", "--limit", "1000")
    tail.wait_for("engine-0-0011")
    with runstate.open(f"sqlite:{fleet}/fleet.db") as store:
        store.run("brand-new", tenant="acme", plan="nightly").started()
    tail.wait_for("brand-new", "RunStarted")
    tail.interrupt()
    assert tail.finish() == 0, tail.text
    assert "--after" in tail.lines[-1]
    check_in_order(tail)


def test_lag_watch_shows_the_lag_until_ctrl_c(fleet: Path, start: Start, size: str) -> None:
    assert start("project", "sqlite:fleet.db", "--state", "state").finish() == 0
    lag = start("lag", "sqlite:fleet.db", "--state", "state", "--watch")
    lag.wait_for("sqlite:fleet.db", "engine")
    with runstate.open(f"sqlite:{fleet}/fleet.db") as store:
        store.run("brand-new", tenant="acme", plan="nightly").started()
    lag.wait_for_match(r"[1-9]\.[0-9] s")
    lag.interrupt()
    assert lag.finish() == 0, lag.text
    assert [line.startswith("log") for line in lag.lines].count(True) == 1, lag.text
    check_in_order(lag)


def test_project_follow_shows_how_much_it_has_projected_until_ctrl_c(fleet: Path, start: Start, size: str) -> None:
    project = start("project", "sqlite:fleet.db", "--state", "state", "--follow")
    project.wait_for("caught up", "following")
    with runstate.open(f"sqlite:{fleet}/fleet.db") as store:
        events = sum(info.events for info in store.log.streams())
        store.run("brand-new", tenant="acme", plan="nightly").started()
    project.wait_for(f"{events + 1} events")
    project.interrupt()
    assert project.finish() == 0, project.text
    assert project.lines[-1].startswith(f"{events + 1} events projected")
    check_in_order(project)


def test_daemon_serve_closes_in_order_at_ctrl_c(start: Start, size: str) -> None:
    serve = start("daemon", "serve", "farm")
    serve.wait_for("serving", "listening at")
    serve.interrupt()
    assert serve.finish() == 0, serve.text
    assert "closing" in serve.flat
    check_in_order(serve)


def test_daemon_tail_follow_ends_at_ctrl_c(start: Start, size: str) -> None:
    assert start("queue", "push", "farm", "builds", "{}", "--id", "build-1").finish() == 0
    tail = start("daemon", "tail", "farm", "--follow")
    tail.wait_for("build-1")
    tail.interrupt()
    assert tail.finish() == 0, tail.text
    check_in_order(tail)


# --- drawings ---------------------------------------------------------------------------------------------------------


def test_a_session_tree_fits_the_terminal(fleet: Path, start: Start, size: str) -> None:
    tree = start("session", "tree", "segments:desk/sessions", "review-7")
    assert tree.finish() == 0
    assert "preferred" in tree.flat
    assert any("fork at" in line for line in tree.lines), tree.text
    check_in_order(tree)


_tables: dict[str, Callable[[Path], list[str]]] = {
    "streams": lambda fleet: ["streams", "sqlite:fleet.db"],
    "fetch": lambda fleet: ["fetch", "sqlite:fleet.db", "engine-0-0001"],
    "tail": lambda fleet: ["tail", "sqlite:fleet.db"],
    "diff": lambda fleet: ["diff", "sqlite:fleet.db", "engine-0-0001", "--from", "1", "--to", "5"],
    "session list": lambda fleet: ["session", "list", "segments:desk/sessions"],
}


@pytest.mark.parametrize("columns", [100, 60, 20])
@pytest.mark.parametrize("table", _tables)
def test_no_row_is_broken_over_two_lines(fleet: Path, start: Start, table: str, columns: int) -> None:
    wide = start(*_tables[table](fleet), columns=1000)
    assert wide.finish() == 0
    shown = start(*_tables[table](fleet), columns=columns)
    assert shown.finish() == 0, shown.text
    first = [line.split()[0] for line in wide.lines if line.strip()]
    rows = [line for line in shown.lines if line.strip()]
    # Sentences below the table may be broken; its rows may not: each begins with what it begins with on a wide screen.
    table_rows = len([line for line in wide.lines if "  " in line.strip()])
    for begins, row in zip(first[:table_rows], rows, strict=False):
        assert row.lstrip().startswith(begins[: columns - 1]), shown.text
