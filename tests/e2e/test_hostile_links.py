"""Symbolic links inside data that point outside: they are read, and never followed to write or delete."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.fleets import histories
from tests.hostile import Scene, file_logs, fill, listing, make_archive, make_table

from runstate.errors import RunstateError
from runstate.store import open as open_store

pytestmark = pytest.mark.slow


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


app = """
import time
import tracemalloc
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


@pytest.mark.parametrize("place", ["events", "events/_delta_log", "heads", ".lock"])
def test_nothing_is_written_through_a_link_inside_a_table(scene: Scene, place: str) -> None:
    from runstate.pipeline.tables.table import Commit, Table

    make_table(scene.here / "table", "engine")
    (scene.here / "table" / "events" / "events-0123456789abcdef.parquet").touch()
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


@pytest.mark.parametrize("place", ["inputs", "inputs/engine.json", "events", "runs", "spark.log", ".lock"])
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
