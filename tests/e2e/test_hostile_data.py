"""Data made by a stranger: reading it runs no code, leaves everything else alone, and ends with a documented exit code.

Beside the data lies a module whose import leaves a canary file behind. Every file that could name code names it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.commands import Cli, Outcome
from tests.fleets import histories

from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archive.packs import ArchiveInfo, sealed
from runstate.logs.archive.writing import PackWriter
from runstate.logs.registry import open_log
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


def fill(url: str, model: str, runs: int = 2) -> str:
    """Write a small fleet; the id of its first stream."""
    found = histories(model, 0, runs)
    with open_store(url, model, on_alert=lambda alert: None) as store:
        for lines in found.values():
            store.append_events([store.model.parse(line) for line in lines])
    return next(iter(found))


def make_archive(to: Path, model: str = "engine") -> str:
    """An archive of a small fleet; the id of its first stream."""
    stream = fill(f"sqlite:{to}.db", "engine")
    directory = ArchiveDirectory(to)
    directory.prepare(model)
    writer = PackWriter(directory, model)
    with open_log(f"sqlite:{to}.db") as log:
        for head in log.heads():
            writer.add(head.stream, log.read(head.stream, limit=10_000))
    writer.commit()
    return stream


# --- archives ---------------------------------------------------------------------------------------------------

log_readers: list[Callable[[str, str], tuple[str, ...]]] = [
    lambda url, stream: ("streams", url),
    lambda url, stream: ("fetch", url, stream),
    lambda url, stream: ("tail", url),
    lambda url, stream: ("snapshot", url, stream),
    lambda url, stream: ("diff", url, stream, "--from", "0", "--to", "1"),
    lambda url, stream: ("replay", url, "--check"),
    lambda url, stream: ("verify", url),
    lambda url, stream: ("repair", url, "--dry-run"),
    lambda url, stream: ("copy", url, "sqlite:copied.db"),
    lambda url, stream: ("project", url),
    lambda url, stream: ("lag", url),
]


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
