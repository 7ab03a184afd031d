"""Logs that a process may only read, as another user or on a read-only mount: with a live writer, a dead one, none.

Every command runs twice in one process: on a copy while it may still write, then on the log when it may not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from itertools import islice
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import pytest
from tests.shared_logs import (
    Answers,
    Outcome,
    Request,
    can_mount_read_only,
    fill,
    listing,
    models,
    read,
    share,
    share_with_group,
    whole_log,
    writable_kinds,
)

import runstate
from runstate.models.daemon import DAEMON
from runstate.runtimes.daemon import Daemon, Server, socket_name
from runstate.runtimes.session import open_sessions, unwrap

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("reading without write permission"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user, and mounting, needs root"),
]

_means = [
    pytest.param(False, id="another user"),
    pytest.param(
        True,
        id="read-only mount",
        marks=pytest.mark.skipif(
            not can_mount_read_only(), reason="needs `unshare -m` and `mount --bind`: CAP_SYS_ADMIN"
        ),
    ),
]


@pytest.fixture(scope="module", params=_means)
def is_mount(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@contextmanager
def reachable_directory() -> Iterator[Path]:
    """A directory that other users can reach. Those that pytest makes belong to one user alone."""
    with TemporaryDirectory() as found:
        Path(found).chmod(0o755)
        yield Path(found)


@pytest.fixture(scope="module")
def place(is_mount: bool) -> Iterator[Path]:
    """For everything that is read in one way."""
    with reachable_directory() as found:
        yield found


class Reading:
    """What a reader found in a directory, and how the directory was before and after."""

    def __init__(
        self, directory: Path, kinds: list[str], *, is_mount: bool, commands: Sequence[list[str]] = ()
    ) -> None:
        twin = directory.with_name(f"twin-of-{directory.name}")
        shutil.copytree(directory, twin)
        self.before = listing(directory)
        scratch = directory.with_name(f"scratch-of-{directory.name}")
        request = Request(str(directory), str(scratch), kinds, str(twin), list(commands))
        self.answers = read(request, is_mount=is_mount)
        self.after = listing(directory)

    def differing(self, kind: str) -> list[tuple[Outcome, Outcome]]:
        expected, found = (map(_timeless, outcomes) for outcomes in (self.answers.expected, self.answers.found))
        return [pair for pair in zip(expected, found, strict=True) if _is_about(pair[0], kind) and pair[0] != pair[1]]


def _timeless(outcome: Outcome) -> Outcome:
    """Without the lag, which grows between two calls, and without the alert and the exit code 1 of a lag above 5 s."""
    lines = [line for line in outcome.out.splitlines() if "PROJECTOR_LAG_HIGH" not in line]
    code = 0 if outcome.command[0] == "lag" and outcome.code == 1 else outcome.code
    return msgspec.structs.replace(outcome, code=code, out=re.sub(r'"lagS":[0-9.]+', "", "\n".join(lines)))


def _is_about(outcome: Outcome, kind: str) -> bool:
    return any(part.startswith((f"{kind}:", f"{kind}/")) for part in outcome.command)


# --- no writer -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def at_rest(place: Path, is_mount: bool) -> Reading:
    directory = place / "at-rest"
    directory.mkdir()
    fill(directory)
    share(directory)
    return Reading(directory, list(models), is_mount=is_mount)


@pytest.mark.parametrize("kind", models)
def test_every_reading_command_gives_the_answer_of_a_reader_that_may_write(at_rest: Reading, kind: str) -> None:
    assert [outcome for outcome in at_rest.answers.expected if outcome.code] == []
    assert at_rest.differing(kind) == []


def test_reading_leaves_no_trace_in_the_directory(at_rest: Reading) -> None:
    assert at_rest.after == at_rest.before


# --- a killed writer -----------------------------------------------------------------------------------------------


@contextmanager
def writers(directory: Path, *, events: int) -> Iterator[None]:
    """A process for each kind of log that appends all the time, and has appended some events already."""
    with ExitStack() as stack:
        started = []
        for kind in writable_kinds:
            command = [sys.executable, "-m", "tests.shared_logs", "write", kind, str(directory), str(events)]
            writer = stack.enter_context(subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True))
            stack.callback(writer.kill)
            started.append(writer)
        for writer in started:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        yield


@pytest.fixture(scope="module")
def left_by_killed(place: Path, is_mount: bool) -> Reading:
    directory = place / "killed"
    directory.mkdir()
    fill(directory)
    with writers(directory, events=30):
        pass
    for name, stub in {
        "ndjson/log/rundir-1-0000/events.ndjson": b'{"event_id":"torn',
        "wal/log/daemon-1-0000/wal.jsonl": b'{"seq":9',
        "segments/log/sessions/session-1-0000/manifest.jsonl": b'{"manifestIndex":',
    }.items():
        with (directory / name).open("ab") as file:
            file.write(stub)
    share(directory)
    return Reading(directory, writable_kinds, is_mount=is_mount)


@pytest.mark.parametrize("kind", writable_kinds)
def test_what_a_killed_writer_has_left_is_read_whole(left_by_killed: Reading, kind: str) -> None:
    assert left_by_killed.differing(kind) == []


def test_what_a_killed_writer_has_left_stays_as_it_is(left_by_killed: Reading) -> None:
    assert {name for name in left_by_killed.before if name.startswith("sqlite/log")} == {
        "sqlite/log",
        "sqlite/log-shm",
        "sqlite/log-wal",
    }
    assert left_by_killed.after == left_by_killed.before


# --- a live writer -------------------------------------------------------------------------------------------------


class Followed(NamedTuple):
    """What a reader saw beside live writers, and what they had written in the end."""

    answers: Answers
    written: dict[str, dict[str, list[str]]]
    daemon_state: str


_following = ["tail", "sqlite:sqlite/log", "--follow", "--limit", "120"]
_asking_a_daemon = [
    ["daemon", "state", "daemon", "--json"],
    ["daemon", "tail", "daemon", "--json"],
    ["queue", "list", "daemon", "builds", "--json"],
    ["queue", "stats", "daemon", "--json"],
]


@pytest.fixture(scope="module")
def beside_writers(place: Path, is_mount: bool) -> Followed:
    directory = place / "written"
    directory.mkdir()
    fill(directory)
    with Daemon.open(directory / "daemon") as daemon, Server(daemon, directory / "daemon" / socket_name("daemon")):
        for number in range(3):
            daemon.push("builds", number)
        share_with_group(directory)
        daemon.checkpoint()
        daemon.compact()
        state = DAEMON.dump(daemon.state).decode()
        with writers(directory, events=10):
            request = Request(str(directory), str(place / "scratch-of-written"), writable_kinds)
            request.commands = [_following, *_asking_a_daemon]
            answers = read(request, is_mount=is_mount)
    with chdir(directory):
        return Followed(answers, {kind: whole_log(kind) for kind in writable_kinds}, state)


@pytest.mark.parametrize("kind", writable_kinds)
def test_every_reading_command_works_beside_a_live_writer(beside_writers: Followed, kind: str) -> None:
    found = [outcome for outcome in beside_writers.answers.found if _is_about(outcome, kind)]
    assert found
    assert [outcome for outcome in found if outcome.code] == []


@pytest.mark.parametrize("kind", writable_kinds)
def test_a_reader_sees_a_growing_part_of_what_a_live_writer_appends(beside_writers: Followed, kind: str) -> None:
    written = beside_writers.written[kind]
    before, after = (seen[kind] for seen in beside_writers.answers.logs)
    for seen in (before, after):
        assert all(events == written[stream][: len(events)] for stream, events in seen.items())
    assert sum(map(len, before.values())) < sum(map(len, after.values()))


def test_a_daemon_that_is_served_is_read_from_its_log_by_those_who_may_not_use_its_socket(
    beside_writers: Followed,
) -> None:
    state, tail, queue, stats = beside_writers.answers.found[-len(_asking_a_daemon) :]
    assert (state.code, state.out) == (0, beside_writers.daemon_state + "\n"), state
    assert [len(outcome.out.split("\n")) - 1 for outcome in (tail, queue, stats)] == [1, 3, 1], (tail, queue, stats)


# --- writing -------------------------------------------------------------------------------------------------------

_graph = "app.py:graph"
_app = """
from runstate.runtimes.orchestrator import Graph

graph = Graph("nothing to do")
only = graph.node("only", entry="BEGUN", exit="DONE")


@only.worker(outputs=["note.txt"])
def write(job):
    job.write("note.txt", b"done")
"""
_writing = {
    "sqlite": [
        ["append", "sqlite:sqlite/log"],
        ["replay", "sqlite:sqlite/log"],
        ["project", "sqlite:sqlite/log", "--to", "store", "--state", "{scratch}/state"],
        ["project", "sqlite:sqlite/log", "--to", "console", "--state", "sqlite/state"],
        ["archive", "sqlite:sqlite/log", "--to", "{scratch}/archive", "--older-than", "0s"],
        ["restore", "archive", "sqlite:sqlite/new"],
        ["copy", "archive:archive", "sqlite:sqlite/new"],
        ["copy", "ndjson:ndjson/log", "sqlite:sqlite/log"],
    ],
    "ndjson": [
        ["append", "ndjson:ndjson/log"],
        ["replay", "ndjson:ndjson/log"],
        ["copy", "sqlite:sqlite/log", "ndjson:ndjson/log"],
        ["copy", "sqlite:sqlite/log", "ndjson:ndjson/new"],
        ["archive", "ndjson:ndjson/log", "--to", "{scratch}/archived", "--older-than", "0s"],
        ["archive", "sqlite:sqlite/log", "--to", "archive", "--older-than", "0s", "--keep"],
        ["repair", "ndjson:ndjson/damaged"],
        ["resume", "rundir-0-0000", "--runs", "ndjson/log", "--app", _graph],
        ["run", _graph, "--runs", "ndjson/log", "--id", "new"],
    ],
    "segments": [
        ["append", "segments:segments/log"],
        ["replay", "segments:segments/log"],
        ["repair", "segments:segments/damaged"],
        ["copy", "sqlite:sqlite/log", "segments:segments/log"],
        ["session", "gc", "segments:segments/log"],
        ["session", "import", "segments:segments/log", "session.bundle"],
    ],
    "wal": [
        ["append", "wal:wal/log"],
        ["replay", "wal:wal/log"],
        ["repair", "wal:wal/damaged"],
        ["copy", "sqlite:sqlite/log", "wal:wal/log"],
        ["queue", "push", "wal/log", "q", "1"],
        ["queue", "push", "wal/new", "q", "1"],
        ["daemon", "checkpoint", "wal/log", "--name", "daemon-0-0000"],
    ],
}


_refusal = r"""(?x)
    # What a command says before it writes:
    (logbook:\ [^\n]+\n | run\ new\n | \{"code":[^\n]+\n | nothing\ to\ do;\ 0\ events\n)*
    error\[log\.not_writable\]\ \S+\ cannot\ be\ written:\ it\ (belongs\ to\ root|is\ on\ a\ read-only)[^\n]+\n
"""


@pytest.fixture(scope="module")
def refusals(place: Path, is_mount: bool) -> Reading:
    directory = place / "refusing"
    directory.mkdir()
    fill(directory)
    (directory / "app.py").write_text(_app)
    with open_sessions(f"segments:{directory}/segments/log", "unused") as sessions:
        (directory / "session.bundle").write_bytes(unwrap(sessions.export("s-1")))
    for kind, name in {
        "ndjson": "rundir-0-0001/events.ndjson",
        "wal": "daemon-0-0001/wal.jsonl",
        "segments": "sessions/session-0-0001/events/00000000-00000049.jsonl",
    }.items():
        shutil.copytree(directory / kind / "log", directory / kind / "damaged")
        path = directory / kind / "damaged" / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    share(directory)
    scratch = str(place / "scratch-of-refusing")
    commands = [[part.format(scratch=scratch) for part in line] for lines in _writing.values() for line in lines]
    return Reading(directory, list(models), is_mount=is_mount, commands=commands)


@pytest.mark.parametrize("kind", _writing)
def test_a_write_is_refused_with_one_sentence_that_says_what_to_do(refusals: Reading, kind: str) -> None:
    outcomes = iter(refusals.answers.found[len(refusals.answers.expected) :])
    by_kind = {each: list(islice(outcomes, len(lines))) for each, lines in _writing.items()}
    for outcome in by_kind[kind]:
        assert (outcome.code, outcome.out) == (2, ""), outcome
        assert re.fullmatch(_refusal, outcome.err), outcome


def test_a_refused_write_changes_nothing(refusals: Reading) -> None:
    assert refusals.after == refusals.before


# --- what cannot even be read --------------------------------------------------------------------------------------


@pytest.fixture
def apart() -> Iterator[Path]:
    with reachable_directory() as found:
        yield found


def test_a_file_that_cannot_be_read_is_named_with_its_owner(apart: Path) -> None:
    directory = apart / "closed"
    directory.mkdir()
    fill(directory)
    (directory / "killed").mkdir()
    with runstate.open(f"sqlite:{directory}/sqlite/log") as store:
        store.run("r-1", tenant="acme", plan="nightly").started()
        for name in ("log", "log-wal", "log-shm"):
            shutil.copy(directory / "sqlite" / name, directory / "killed" / name)
    share(directory)
    closed = {
        "sqlite:sqlite/log": "sqlite/log",
        "sqlite:killed/log": "killed/log-shm",
        "ndjson:ndjson/log": "ndjson/log/rundir-0-0001",
        "archive:archive": "archive/packs",
    }
    for name in closed.values():
        (directory / name).chmod(0o600)
    commands = [["verify", url] for url in closed]
    found = read(Request(str(directory), str(apart / "scratch"), [], None, commands), is_mount=False).found
    for name, outcome in zip(closed.values(), found, strict=True):
        assert (outcome.code, outcome.out) == (2, ""), outcome
        refusal = rf"error\[log\.failed\] \S*{name} cannot be read: it belongs to root[^\n]+ Ask for read permission\n"
        assert re.fullmatch(refusal, outcome.err), outcome
