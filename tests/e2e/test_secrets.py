"""Every command with a password in its URL: the password is in nothing that is printed or written.

All commands run once, in a directory of their own under umask 022, and every test looks at what they left.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.fleets import histories
from tests.postgres_server import PostgresServer
from tests.secret_commands import (
    Call,
    Server,
    command_names,
    needle,
    not_run,
    password,
    plain_calls,
    spark_calls,
)
from tests.unit.runtimes.loopback import answer, serving

from runstate.pipeline.spark.java import class_archive, find_java
from runstate.runtimes.session import linear, open_sessions, unwrap
from runstate.store import open as open_store

# One worker runs all of it: the commands of the whole module run once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("secrets")]
root = Path(__file__).parents[2]
quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.driver.memory": "1g"}
application = """
import os
from runstate.runtimes.orchestrator import Graph

graph = Graph("app")

@graph.node("make").worker(outputs=["made.txt"])
def make(job):
    job.write("made.txt", "made")

failing = Graph("failing")

@failing.node("make").worker(outputs=["made.txt"])
def fail(job):
    raise ConnectionError(f"cannot connect to {os.environ['APP_URL']}")
"""


class Done:
    """A call, its exit code and what it printed."""

    def __init__(self, call: Call, code: object, printed: bytes) -> None:
        self.call, self.code, self.printed = call, code, printed


class World:
    """A home, a working directory and the directories of XDG, all of them empty at first."""

    def __init__(self, directory: Path) -> None:
        self.root, self.outputs = directory / "world", directory / "outputs"
        self.given = directory / "given"
        self.work, self.event_log = self.root / "work", directory / "spark-events"
        self.done: list[Done] = []
        self.command_lines: set[bytes] = set()
        homes = (self.root / "home", self.root / "tmp", self.work)
        for each in (self.root, self.outputs, self.given, self.event_log, *homes):
            each.mkdir(mode=0o700)
        self._link_class_archive()

    def _link_class_archive(self) -> None:
        """Spark starts from the classes that `make test` has kept: without them, each start takes far longer."""
        archive, cache = class_archive(find_java()), self.root / "home" / ".cache"
        for each in (cache, cache / "runstate", cache / "runstate" / archive.parent.name):
            each.mkdir(mode=0o700)
        (each / archive.name).symlink_to(archive)

    @property
    def environment(self) -> dict[str, str]:
        home = self.root / "home"
        return {name: value for name, value in os.environ.items() if not name.startswith(("PG", "XDG_"))} | {
            "HOME": str(home),
            "TMPDIR": str(self.root / "tmp"),
            "NO_COLOR": "1",
            "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}",
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
        }

    def run(self, calls: Sequence[Call], spark_conf: dict[str, str] | None = None) -> None:
        """Run calls in one process, and watch the command lines of everything that it starts."""
        outputs = self.outputs / str(len(self.done))
        outputs.mkdir()
        # Not by the command line: the calls hold the password.
        process = self.start([sys.executable, "-m", "tests.secret_commands", str(outputs), json.dumps(spark_conf)])
        with _watching(process.pid, self.command_lines):
            said = process.communicate(json.dumps(calls, default=dict).encode(), timeout=900)
        assert process.returncode == 0, said
        codes = json.loads((outputs / "codes").read_text())
        for number, (call, code) in enumerate(zip(calls, codes, strict=True)):
            self.done.append(Done(call, code, (outputs / f"{number:04d}").read_bytes()))

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            umask=0o022,
        )

    def files(self) -> Iterator[Path]:
        found = [*self.root.rglob("*"), *self.event_log.rglob("*")]
        return (path for path in sorted(found) if path.is_file())


@contextmanager
def _watching(pid: int, seen: set[bytes]) -> Iterator[None]:
    """Gather the command lines of a process and of all below it while the block runs."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            seen.update(_command_lines(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _command_lines(pid: int) -> set[bytes]:
    parents, lines = dict[int, int](), dict[int, bytes]()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            lines[int(path.name)] = (path / "cmdline").read_bytes()
        except OSError:
            continue  # It has ended meanwhile.
    ours = {pid}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {lines[each] for each in ours if each in lines}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = PostgresServer(password)
    yield Server(urlsplit(started.url).port or 0)
    started.remove()


@pytest.fixture(scope="module")
def world(server: Server, tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("secrets"))
    fleets = {model: histories(model, 0, 4) for model in ("engine", "rundir", "session", "daemon")}
    for model, fleet in fleets.items():
        (made.given / f"{model}.ndjson").write_bytes(b"\n".join(line for lines in fleet.values() for line in lines))
    (made.given / "app.py").write_text(application)
    with open_store(server.url("second"), on_alert=lambda alert: None) as store:
        # The same streams in another log: what an ingest quarantines, and an audit finds.
        for lines in fleets["engine"].values():
            store.append_events([store.model.parse(line) for line in lines[:2]])
    with open_sessions(server.url("session"), made.given / "keyring.json") as sessions:
        unwrap(sessions.create(session_id="s-1", title="A session"))
        place = unwrap(sessions.start_run("s-1", linear("review", "Read", "Judge"), run_id="r-1"))
    streams = {"engine": next(iter(fleets["engine"])), "session": "s-1"}
    with serving(lambda request, body: answer(request, 500, request.path.encode())) as endpoint:
        url = f"{endpoint}?token={needle.decode()}"
        made.run(plain_calls(server, made.given, url, streams, str(place.node_id)))
    # Its files have a mode of Spark's own choice, and are no work of ours.
    event_log = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": str(made.event_log)}
    made.run(spark_calls(server), quick | event_log)
    conf = [word for name, value in quick.items() for word in ("--conf", f"{name}={value}")]
    conf += ["--master", "local[2]", "--conf", f"spark.hadoop.fs.s3a.secret.key={needle.decode()}"]
    made.run(
        [
            Call("pipeline run", [server.url("engine"), "--to", "pipeline/one", *conf], (0, 1)),
            Call("pipeline resume", ["pipeline/one", *conf], (2,)),
            Call("pipeline resume", ["pipeline/one", *conf], (0, 1), {"PGPASSWORD": password}),
        ]
    )
    return made


def test_every_command_is_run_with_a_secret() -> None:
    server = Server(1)
    calls = [*plain_calls(server, Path(), "", {"engine": "", "session": ""}, ""), *spark_calls(server)]
    tried = {call.command for call in calls} | {"pipeline run", "pipeline resume"}
    assert sorted(tried | not_run.keys()) == command_names()


def test_every_command_did_what_it_was_called_for(world: World) -> None:
    wrong = [
        (done.call.command, done.code, done.printed[-300:]) for done in world.done if done.code not in done.call.codes
    ]
    assert not wrong


def test_no_command_prints_a_secret(world: World) -> None:
    leaking = [(done.call.command, done.printed[-600:]) for done in world.done if _has_secret(done.printed)]
    assert not leaking


def test_no_file_holds_a_secret(world: World) -> None:
    leaking = [
        str(path.relative_to(world.root.parent)) for path in world.files() if any(map(_has_secret, _contents(path)))
    ]
    assert not leaking


def test_no_name_of_a_file_holds_a_secret(world: World) -> None:
    assert not [path for path in world.root.rglob("*") if _has_secret(os.fsencode(path))]


def test_no_command_line_of_a_process_holds_a_secret(world: World) -> None:
    assert any(b"java" in line for line in world.command_lines), "Spark was not seen"
    assert not [line for line in world.command_lines if _has_secret(line)]


def test_whatever_the_commands_create_is_for_its_owner_alone(world: World) -> None:
    open_to_others = {
        str(path.relative_to(world.root)): stat.filemode(path.lstat().st_mode)
        for path in world.root.rglob("*")
        if not path.is_symlink() and path.lstat().st_mode & 0o077
    }
    assert not open_to_others


def test_a_resumed_pipeline_without_its_password_says_where_to_put_it(world: World) -> None:
    (refused,) = [
        done for done in world.done if done.call.command == "pipeline resume" and "pipeline/one" in done.call.arguments
    ][:1]
    assert refused.code == 2
    assert b"PGPASSWORD" in refused.printed
    assert b"runstate pipeline run" in refused.printed


def test_a_daemon_on_a_server_shows_no_password(world: World, server: Server) -> None:
    command = [sys.executable, "-m", "runstate", "daemon", "serve", server.url("served"), "--socket", "served.sock"]
    process = world.start(command)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert b"served.sock" in first
    assert stat.S_IMODE((world.work / "served.sock").stat().st_mode) == 0o600
    process.send_signal(signal.SIGTERM)
    out, rest = process.communicate(timeout=60)
    assert process.returncode == 0
    assert not _has_secret(first + out + rest)


# --- looking into files ------------------------------------------------------------------------------------------

_needles = [needle, base64.b64encode(b"postgres:" + password.encode())[:16]]


def _has_secret(content: bytes) -> bool:
    return any(each in content for each in _needles)


def _contents(path: Path) -> Iterator[bytes]:
    """A file's bytes, and what is in it where it is compressed."""
    data = path.read_bytes()
    yield data
    if data[:4] == b"PAR1":
        import pyarrow.parquet as pq

        yield repr(pq.read_table(path).to_pylist()).encode()
    elif data[:6] == b"ARROW1":
        import pyarrow.ipc

        yield repr(pyarrow.ipc.open_file(path).read_all().to_pylist()).encode()
    elif data[:16] == b"SQLite format 3\0":
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        yield "\n".join(connection.iterdump()).encode("utf-8", "surrogateescape")
        connection.close()
    elif data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        import zstandard

        yield zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    elif data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(path) as archive:
            yield from map(archive.read, archive.namelist())
