"""Data made by a stranger: reading it runs no code, leaves everything else alone, and ends with a documented exit code.

Beside the data lies a module whose import leaves a canary file behind. Every file that could name code names it.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import sys
import time
import unittest.mock
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.commands import Cli, Outcome
from tests.fleets import histories

from runstate.errors import RunstateError
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archive.packs import ArchiveInfo, sealed
from runstate.logs.archive.writing import PackWriter
from runstate.logs.log import Record
from runstate.logs.registry import open_log
from runstate.models.canonical import digest
from runstate.models.model import stable_uuid
from runstate.store import open as open_store

evil_source = """
from pathlib import Path
Path({canary!r}).write_text("code ran")
from runstate.models.engine import ENGINE as Model
from runstate.runtimes.orchestrator import Graph
graph = Graph("stranger")
"""
places = ("evil.py:Model", "./evil.py:Model", "{here}/evil.py:Model", "evil:Model", "evil", "evil.py", "evil:graph")
"""What a stranger writes where a model or an application is named. `evil` is on the module path, too."""
seconds_max = 20.0


class Scene:
    """A working directory with a stranger's data in it, and a directory beside it that is somebody else's."""

    def __init__(self, root: Path, cli: Cli) -> None:
        self.here, self.outside, self.canary = root / "work", root / "outside", root / "canary"
        self._cli = cli
        self.here.mkdir()
        self.outside.mkdir()
        (self.outside / "precious.txt").write_text("precious")
        (self.here / "evil.py").write_text(evil_source.format(canary=str(self.canary)))

    def run(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        """Run a command, and check what holds for every command over hostile data."""
        started, before = time.monotonic(), listing(self.outside)
        done = self._cli(*arguments, stdin=stdin)
        assert time.monotonic() - started < seconds_max
        assert not self.canary.exists(), f"{arguments} ran a stranger's code"
        assert listing(self.outside) == before
        assert done.code in (0, 1, 2, 3, 4), done.err
        assert "Traceback" not in done.err
        return done


def listing(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def scene(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, cli)
    monkeypatch.chdir(made.here)
    monkeypatch.syspath_prepend(made.here)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    known = set(sys.modules)
    yield made
    for name in set(sys.modules) - known:
        if name == "evil" or name.startswith("runstate_place_"):
            del sys.modules[name]


def fill(url: str, model: str, seed: int = 0) -> str:
    """Write a small fleet; the id of its first stream."""
    found = histories(model, seed, 1)
    with open_store(url, model, on_alert=lambda alert: None) as store:
        for lines in found.values():
            store.append_events([store.model.parse(line) for line in lines])
    return next(iter(found))


def make_archive(to: Path, model: str = "engine") -> str:
    """An archive of a small fleet; the id of its first stream."""
    stream = fill(f"sqlite:{to}.db", "engine")
    with open_log(f"sqlite:{to}.db") as log:
        write_archive(to, model, stream, log.read(stream))
    return stream


def write_archive(to: Path, model: str, stream: str, records: list[Record]) -> None:
    directory = ArchiveDirectory(to)
    directory.prepare(model)
    writer = PackWriter(directory, model)
    writer.add(stream, records)
    writer.commit()


# --- archives ---------------------------------------------------------------------------------------------------

log_readers: list[Callable[[str, str], tuple[str, ...]]] = [
    lambda url, stream: ("streams", url),
    lambda url, stream: ("fetch", url, stream),
    lambda url, stream: ("tail", url),
    lambda url, stream: ("snapshot", url, stream, "--project"),
    lambda url, stream: ("diff", url, stream, "--from", "0", "--to", "1"),
    lambda url, stream: ("replay", url, "--check"),
    lambda url, stream: ("verify", url),
    lambda url, stream: ("repair", url, "--dry-run"),
    lambda url, stream: ("copy", url, "sqlite:copied.db"),
    lambda url, stream: ("copy", url, "ndjson:copied"),
    lambda url, stream: ("archive", url, "--to", "kept", "--keep", "--older-than", "0s"),
    lambda url, stream: ("project", url),
    lambda url, stream: ("lag", url),
]


own_readers: dict[str, list[Callable[[str, str], tuple[str, ...]]]] = {
    "ndjson": [lambda url, stream: ("status", stream, "--runs", "log")],
    "segments": [
        lambda url, stream: ("session", "list", url),
        lambda url, stream: ("session", "show", url, stream),
        lambda url, stream: ("session", "tree", url, stream),
        lambda url, stream: ("session", "verify", url),
        lambda url, stream: ("session", "export", url, stream),
        lambda url, stream: ("session", "gc", url, "--dry-run"),
    ],
    "wal": [
        lambda url, stream: ("daemon", "state", "log", "--name", stream),
        lambda url, stream: ("daemon", "verify", "log"),
        lambda url, stream: ("queue", "list", "log", "any", "--name", stream),
        lambda url, stream: ("queue", "stats", "log", "--name", stream),
    ],
    "archive": [lambda url, stream: ("restore", "log", "ndjson:copied")],
}


def reader_name(reader: Any) -> Any:
    return reader("url", "stream")[0] if callable(reader) else None


@pytest.mark.parametrize("place", places)
@pytest.mark.parametrize("reader", log_readers, ids=reader_name)
def test_an_archive_that_names_code_runs_none(
    scene: Scene, reader: Callable[[str, str], tuple[str, ...]], place: str
) -> None:
    stream = make_archive(scene.here / "archive")
    name_model(scene.here / "archive", place.format(here=scene.here))
    scene.run(*reader("archive:archive", stream))


def name_model(archive: Path, model: str) -> None:
    (archive / "archive.json").write_bytes(sealed(ArchiveInfo(model)))


@pytest.mark.parametrize("place", places)
def test_restoring_an_archive_that_names_code_runs_none(scene: Scene, place: str) -> None:
    make_archive(scene.here / "archive")
    name_model(scene.here / "archive", place.format(here=scene.here))
    scene.run("restore", "archive", "sqlite:restored.db")


# --- tables and pipelines ---------------------------------------------------------------------------------------


def make_table(directory: Path, model: str, **info: Any) -> None:
    """An event table with one commit and no rows."""
    from runstate.pipeline.table import Commit, Table, TableInfo

    table = Table.make(directory, TableInfo("events", "engine", 1))
    table.commit(Commit(number=1, files=[], consumed={"urls": []}))
    (directory / "table.json").write_bytes(msgspec.json.encode(TableInfo("events", model, 1)))


@pytest.mark.parametrize("place", places)
@pytest.mark.parametrize("command", ["ingest", "replay", "audit", "report", "run", "stream"])
def test_a_table_that_names_code_runs_none(scene: Scene, command: str, place: str) -> None:
    make_table(scene.here / "table", place.format(here=scene.here))
    refused = scene.run("pipeline", command, "table:table", "--to", "out")
    assert refused.code == 2


@pytest.mark.parametrize("place", places)
def test_a_pipeline_directory_that_names_code_runs_none(scene: Scene, place: str) -> None:
    fill("sqlite:log.db", "engine")
    named = place.format(here=scene.here)
    inputs = {"model": named, "urls": ["sqlite:log.db"], "directory": str(scene.here / "out"), "versions": {}}
    (scene.here / "out" / "inputs").mkdir(parents=True)
    (scene.here / "out" / "inputs" / f"{named.replace('/', '_')}.json").write_bytes(msgspec.json.encode(inputs))
    assert scene.run("pipeline", "resume", "out").code == 2


# --- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", places)
@pytest.mark.parametrize("command", ["resume", "status"])
def test_a_run_whose_first_event_names_code_runs_none(scene: Scene, command: str, place: str) -> None:
    created = {
        "event_id": stable_uuid("r", "1"),
        "run_id": "r",
        "type": "RUN_CREATED",
        "trace_id": "0" * 31 + "1",
        "span_id": "0" * 15 + "1",
        "payload": {"config": {"graph": "stranger", "place": place.format(here=scene.here), "nodes": []}},
    }
    assert scene.run("append", "ndjson:runs", stdin=msgspec.json.encode(created) + b"\n").code == 0
    assert scene.run(command, "r").code == (2 if command == "resume" else 0)


# --- links ------------------------------------------------------------------------------------------------------

file_logs = {"ndjson": "rundir", "segments": "session", "wal": "daemon"}


@pytest.mark.parametrize("is_torn", [False, True], ids=["intact", "torn"])
@pytest.mark.parametrize("scheme", file_logs)
def test_no_command_writes_through_a_link_inside_a_log(scene: Scene, scheme: str, is_torn: bool) -> None:
    """Every file and every directory of a log in turn is a link to somewhere else."""
    model, pristine, linked = file_logs[scheme], scene.here / "pristine", scene.outside / "linked"
    later = write_half(f"{scheme}:{pristine}", model)
    for path in pristine.rglob("*") if is_torn else ():
        if path.name in ("events.ndjson", "manifest.jsonl", "wal.jsonl"):
            path.write_bytes(path.read_bytes() + b'{"torn')
    followed = set()
    for place in sorted(path.relative_to(pristine) for path in pristine.rglob("*")):
        shutil.copytree(pristine, scene.here / "log")
        (scene.here / "log" / place).rename(linked)
        (scene.here / "log" / place).symlink_to(linked)
        before = listing(scene.outside)
        write_all(f"{scheme}:log", model, later)
        scene.run("replay", f"{scheme}:log")
        scene.run("repair", f"{scheme}:log")
        if listing(scene.outside) != before:
            followed.add(str(place))
        shutil.rmtree(scene.here / "log")
        shutil.rmtree(linked) if linked.is_dir() else linked.unlink()
    assert followed == set()


def write_half(url: str, model: str) -> list[bytes]:
    """Write the first half of every stream of a small fleet, and a blob; the lines that are left."""
    later = []
    with open_store(url, model, on_alert=lambda alert: None) as store:
        for lines in histories(model, 0, 2).values():
            half = len(lines) // 2
            store.append_events([store.model.parse(line) for line in lines[:half]])
            later += lines[half:]
        store.log.put_blob(b"a blob")
    return later


def write_all(url: str, model: str, lines: list[bytes]) -> None:
    """Try to append every line, and a blob. What is refused is not the point here."""
    with open_store(url, model, on_alert=lambda alert: None) as store:
        for line in lines:
            with suppress(RunstateError):
                store.append_event(store.model.parse(line))
        with suppress(RunstateError):
            store.log.put_blob(b"another blob")


# --- anything in place of a file --------------------------------------------------------------------------------


def dangle(path: Path) -> None:
    path.symlink_to("nowhere")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def upwards(path: Path) -> None:
    path.symlink_to("..")


def fill_with(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


deep = 100_000
instead: dict[str, Callable[[Path], None]] = {
    "dangling link": dangle,
    "link to itself": loop,
    "link to an endless device": endless,
    "link to the directory above": upwards,
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "empty": fill_with(b""),
    "zeros": fill_with(bytes(10_000)),
    "deep array": fill_with(b"[" * deep + b"]" * deep + b"\n"),
    "deep object": fill_with(b'{"a":' * deep + b"1" + b"}" * deep + b"\n"),
    "escapes": fill_with(b'{"\x1b]0;owned\x07":"\xe2\x80\xae"}\n'),
    "not UTF-8": fill_with(b'\xff\xfe{"a":"\xff"}\n'),
}


@pytest.mark.parametrize("kind", instead)
@pytest.mark.parametrize("scheme", [*file_logs, "sqlite", "archive"])
def test_whatever_lies_in_place_of_a_file_every_reader_ends_in_good_order(scene: Scene, scheme: str, kind: str) -> None:
    """Every file and every directory of a log in turn is replaced by something that no log wrote."""
    pristine = scene.here / "pristine"
    stream = make_log(scheme, pristine)
    for place in sorted(path.relative_to(pristine.parent) for path in [pristine, *pristine.rglob("*")]):
        shutil.copytree(pristine, scene.here / "log") if pristine.is_dir() else shutil.copy(
            pristine, scene.here / "log"
        )
        replaced = scene.here / "log" / place.relative_to("pristine")
        shutil.rmtree(replaced) if replaced.is_dir() else replaced.unlink()
        instead[kind](replaced)
        for reader in [*log_readers, *own_readers.get(scheme, ())]:
            scene.run(*reader(f"{scheme}:log", stream))
        for path in [scene.here / "log", *scene.here.glob("copied*"), *scene.here.glob("kept")]:
            remove(path)


def make_log(scheme: str, path: Path) -> str:
    """A log with a small fleet and its snapshots; the id of its first stream."""
    if scheme == "archive":
        return make_archive(path)
    return fill(f"{scheme}:{path}", file_logs.get(scheme, "engine"))


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


# --- anything in place of an event ------------------------------------------------------------------------------

nested = b"[" * deep + b"]" * deep
bodies: dict[str, Callable[[bytes], bytes]] = {
    "deep array": lambda body: nested,
    "deep member": lambda body: body[:-1] + b',"more":' + nested + b"}",
    "deep payload": lambda body: re.sub(rb'"(payload|data)":\{', rb'"\1":{"more":' + nested + b",", body, count=1),
    "deep key": lambda body: b'{"a":' * deep + b"1" + b"}" * deep,
    "a number": lambda body: b"1" * 5000,
    "an enormous exponent": lambda body: body[:-1] + b',"more":1e999999}',
    "a lone surrogate": lambda body: body[:-1] + b',"more":"\\ud800"}',
    "escapes": lambda body: body[:-1] + b',"\\u001b[31m\\u202e":"\\u0000\\u001b]0;owned\\u0007"}',
    "a long string": lambda body: body[:-1] + b',"more":"' + b"x" * 5_000_000 + b'"}',
    "many members": lambda body: body[:-1] + b"," + b",".join(b'"m%d":0' % n for n in range(100_000)) + b"}",
    "other types": lambda body: re.sub(rb':("[^"]*"|\d+)', b":[null]", body),
}


@pytest.mark.parametrize("kind", bodies)
@pytest.mark.parametrize("scheme", [*file_logs, "sqlite", "archive"])
def test_whatever_stands_in_place_of_an_event_every_reader_ends_in_good_order(
    scene: Scene, scheme: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is intact in every other way: it was written without the checks that refuse such events."""
    model = file_logs.get(scheme, "engine")
    stream = fill("sqlite:honest.db", model)
    with open_log("sqlite:honest.db") as log:
        first, *others = log.read(stream)
    hostile = [first, *(msgspec.structs.replace(record, body=bodies[kind](record.body)) for record in others[:1])]
    with monkeypatch.context() as patch:
        for checked in ("ndjson.lines.check_writable", "segments.lines.check_writable", "wal.buffer.check_body"):
            patch.setattr(f"runstate.logs.{checked}", lambda body: None)
        patch.setattr("runstate.logs.archive.packs.decode_line", lambda line: unittest.mock.ANY)
        if scheme == "archive":
            write_archive(scene.here / "log", model, stream, hostile)
        else:
            with open_log(f"{scheme}:log") as log:
                log.adopt(stream, hostile)
    for reader in [*log_readers, *own_readers.get(scheme, ())]:
        scene.run(*reader(f"{scheme}:log", stream))


app = """
import time
from runstate.runtimes.orchestrator import Graph
graph = Graph("honest")
@graph.node("n").worker(outputs=["deep/er/out.txt"])
def work(job):
    job.write("deep/er/out.txt", str(time.time_ns()))
"""


@pytest.mark.parametrize(
    "place", [".", "artifacts", "artifacts/deep", "artifacts/deep/er", ".staging", ".orchestrator.lock", "failure.md"]
)
def test_resume_writes_through_no_link_inside_a_run(scene: Scene, place: str) -> None:
    (scene.here / "app.py").write_text(app)
    assert scene.run("run", "app.py:graph", "--id", "r").code == 0
    move_outside(scene, scene.here / "runs" / "r" / place)
    scene.run("resume", "r", "--app", "app.py:graph", "--force", "n")


@pytest.mark.parametrize("place", ["packs", "archive.json", ".lock"])
def test_archiving_writes_through_no_link_inside_an_archive(scene: Scene, place: str) -> None:
    make_archive(scene.here / "archive")
    fill("sqlite:more.db", "engine", seed=2)
    move_outside(scene, scene.here / "archive" / place)
    scene.run("archive", "sqlite:more.db", "--to", "archive", "--keep", "--older-than", "0s")


@pytest.mark.parametrize("place", ["data", "commits", ".lock"])
def test_nothing_is_written_through_a_link_inside_a_table(scene: Scene, place: str) -> None:
    from runstate.pipeline.table import Commit, Table

    make_table(scene.here / "table", "engine")
    (scene.here / "table" / "data" / "left.parquet").touch()
    move_outside(scene, scene.here / "table" / place)
    before, table = listing(scene.outside), Table.open(scene.here / "table")
    with suppress(RunstateError), table.writing():
        table.commit(Commit(number=2, files=[]))
    assert listing(scene.outside) == before


def test_projected_rows_are_not_written_through_a_link(scene: Scene) -> None:
    fill("sqlite:log.db", "engine")
    (scene.here / "rows").mkdir()
    move_outside(scene, scene.here / "rows" / "data")
    assert scene.run("project", "sqlite:log.db", "--to", "parquet:rows").code == 2


@pytest.mark.parametrize("place", ["inputs", "inputs/engine.json", "events", "runs", ".spark", "spark.log", ".lock"])
def test_a_pipeline_that_has_links_inside_is_not_resumed(scene: Scene, place: str) -> None:
    fill("sqlite:log.db", "engine")
    inputs = {"model": "engine", "urls": ["sqlite:log.db"], "directory": str(scene.here / "out"), "versions": {}}
    (scene.here / "out" / "inputs").mkdir(parents=True)
    (scene.here / "out" / "inputs" / "engine.json").write_bytes(msgspec.json.encode(inputs))
    move_outside(scene, scene.here / "out" / place)
    assert scene.run("pipeline", "resume", "out").code == 2


def move_outside(scene: Scene, path: Path) -> None:
    """Put a link in place of a file or a directory, or of what may come to be there."""
    target = scene.outside / "linked"
    if path.exists():
        path.rename(target)
    elif path.name in (".lock", "spark.log", "failure.md"):
        target.touch()
    else:
        target.mkdir()
    path.symlink_to(target)


# --- databases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["STREAMS", "events", "snapshots", "schema_version"])
def test_a_view_in_place_of_a_table_is_not_read(scene: Scene, table: str) -> None:
    """A view is a query that its author chose. This one has no end."""
    stream = fill("sqlite:log.db", "engine")
    with closing(sqlite3.connect("log.db")) as database:
        names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        database.execute(f"ALTER TABLE {table} RENAME TO old")
        columns = ", ".join(f"x AS {name}" for name in names)
        endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
        database.execute(f"CREATE VIEW {table} AS {endless} SELECT {columns} FROM c")
        database.commit()
    for reader in log_readers:
        assert scene.run(*reader("sqlite:log.db", stream)).code in (2, 3)


# --- names ------------------------------------------------------------------------------------------------------

names = {
    "above": "../escaped",
    "far above": "../../escaped",
    "absolute": "{root}/escaped",
    "inside": "escaped/../../escaped",
    "dots": "..",
    "a dot": ".",
    "empty": "",
    "NUL": "a\0b",
    "long": "x" * 100_000,
    "newline": "a\nb",
    "escapes": "\x1b]0;owned\x07\u202e",
    "hidden": ".locks",
    "option": "--help",
}


@pytest.mark.parametrize("kind", names)
@pytest.mark.parametrize("scheme", ["sqlite", "archive"])
def test_whatever_a_stream_is_called_nothing_is_written_beside_the_target(scene: Scene, scheme: str, kind: str) -> None:
    name = names[kind].format(root=scene.here.parent)
    honest = fill("sqlite:honest.db", "engine")
    if scheme == "archive":
        with open_log("sqlite:honest.db") as log:
            records = [msgspec.structs.replace(record, stream=name) for record in log.read(honest)]
        write_archive(scene.here / "log", "engine", name, records)
    else:
        shutil.copy("honest.db", "log")
        with closing(sqlite3.connect("log")) as database:
            database.execute("UPDATE streams SET stream = ?", (name,))
            database.commit()
    for target in ("ndjson:to-1", "segments:to-2", "wal:to-3", "sqlite:to-4"):
        scene.run("copy", f"{scheme}:log", target)
        if scheme == "archive":
            scene.run("restore", "log", f"{target}-restored")
    for reader in log_readers:
        scene.run(*reader(f"{scheme}:log", honest))
    ours = ("evil.py", "__pycache__", "honest.db", "log", "to-", "copied", "kept")
    assert [path.name for path in scene.here.iterdir() if not path.name.startswith(ours)] == []
    assert {path.name for path in scene.here.parent.iterdir()} <= {"work", "outside", "state"}


def make_rows(directory: Path) -> dict[str, Any]:
    """An event table with one file of each kind, as plain data: its only commit."""
    from runstate.pipeline.event_table import quarantine_schema
    from runstate.pipeline.rows import event_schema
    from runstate.pipeline.sorted_files import SortedWriter
    from runstate.pipeline.table import Commit, Table, TableInfo

    table, files = Table.make(directory, TableInfo("events", "engine", 1)), []
    for kind, schema in (("events", event_schema), ("quarantine", quarantine_schema)):
        row = {field.name: [1 if str(field.type) == "int64" else "a"] for field in schema}
        if kind == "quarantine":
            row["content"] = [b"a"]
        with SortedWriter(table.data, kind, schema) as writer:
            writer.write(pa.RecordBatch.from_pydict(row, schema))
        files += writer.entries
    table.commit(Commit(number=1, files=files, consumed={"urls": ["sqlite:x"]}))
    found: dict[str, Any] = msgspec.json.decode((directory / "commits" / "00000001.json").read_bytes())["commit"]
    return found


def entry_with(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(commit: dict[str, Any]) -> None:
        for entry in commit["files"]:
            entry |= changes

    return change


def commit_with(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda commit: commit.update(changes)


def chunk_with(place: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(commit: dict[str, Any]) -> None:
        for entry in commit["files"]:
            entry["chunks"][0][place] = value

    return change


commits: dict[str, Callable[[dict[str, Any]], None]] = {
    "a name above": entry_with(name="../../../outside/precious.parquet"),
    "an absolute name": entry_with(name="/etc/passwd"),
    "a device": entry_with(name="../../../../../../../../../dev/zero"),
    "an unknown suffix": entry_with(name="events.exe"),
    "a name with NUL": entry_with(name="a\0b.parquet"),
    "a long name": entry_with(name="x" * 5000 + ".parquet"),
    "no chunks": entry_with(chunks=[]),
    "a size": entry_with(bytes=2**62),
    "a footer": entry_with(footer=[-(2**62), 2**62, 0]),
    "rows": chunk_with(2, 2**62),
    "a section": chunk_with(3, [0, -1, 0]),
    "a chunk out of order": chunk_with(0, "zzz"),
    "consumed files": commit_with(consumed={"files": {"a": 1}}),
    "consumed is nested": commit_with(consumed={"files": {"a": {"size": {}, "line": [[]]}}, "urls": 7}),
    "an unfinished line": commit_with(
        consumed={"files": {"\x1b[31m": {"size": 1, "line": 1, "sha256": "", "unfinished": "x"}}}
    ),
    "replaces": commit_with(replaces=True, number=-5),
}


@pytest.mark.parametrize("kind", commits)
def test_whatever_a_commit_of_a_table_says_its_readers_end_in_good_order(scene: Scene, kind: str) -> None:
    commit = make_rows(scene.here / "table")
    assert scene.run("pipeline", "quarantine", "table", "--json").rows[0]["code"] == "a"
    commits[kind](commit)
    body = msgspec.json.encode(commit)
    sealed_commit = msgspec.json.encode({"sha256": digest(body), "commit": msgspec.Raw(body)})
    (scene.here / "table" / "commits" / "00000001.json").write_bytes(sealed_commit)
    read_table(scene)


@pytest.mark.parametrize("kind", instead)
def test_whatever_lies_in_place_of_a_tables_file_its_readers_end_in_good_order(scene: Scene, kind: str) -> None:
    make_rows(scene.here / "pristine")
    for place in sorted(path.relative_to(scene.here / "pristine") for path in (scene.here / "pristine").rglob("*")):
        shutil.copytree(scene.here / "pristine", scene.here / "table")
        remove(scene.here / "table" / place)
        instead[kind](scene.here / "table" / place)
        read_table(scene)
        shutil.rmtree(scene.here / "table")


def read_table(scene: Scene) -> None:
    """Read it by a command that needs no Spark, and as a task of Spark does."""
    from runstate.pipeline.origins import Origins
    from runstate.pipeline.shards import Shard

    scene.run("pipeline", "quarantine", "table")
    with suppress(RunstateError), Origins(["table:table"]) as origins:
        for reader in origins.streams(Shard()):
            list(reader.records())
