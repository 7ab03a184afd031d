"""Retention on Spark: the same archive as one process makes, whoever is killed or done twice, readable like any log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.commands import Cli
from tests.pipeline.fleet_logs import event_lines, filled, local_snapshots

from runstate.errors import InvalidUrl, LogBusy, NotALog, Unsupported
from runstate.logs.archive import ArchiveLog
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.registry import open_log
from runstate.pipeline.archive.job import archive
from runstate.pipeline.archive.packs import Deletions, SeenPack, confirm_packs, kept_deletions
from runstate.pipeline.audit.job import audit, summary
from runstate.pipeline.jobs import ingest, read_view, replay
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.spark.shared_storage import StorageNotShared
from runstate.retention import Archiving, infos
from runstate.store import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

everything = Archiving(before=datetime(2100, 1, 1, tzinfo=UTC))
Lines = list[tuple[str, bytes]]


def lines_of(url: str) -> Lines:
    return sorted(event_lines(url))


def finished(url: str, model: str) -> set[str]:
    with open_store(url, model, create=False) as store:
        return {each.stream for each in infos(store.log) if store.model.is_over(store.project_snapshot(each.stream))}


@pytest.mark.parametrize(("scheme", "model"), [("sqlite", "engine"), ("ndjson", "rundir"), ("postgresql", "engine")])
def test_a_fleet_is_archived_shard_by_shard_and_reads_like_any_log(
    spark: SparkSession, tmp_path: Path, scheme: str, model: str
) -> None:
    url = filled(scheme, model, tmp_path)
    over, before, to = finished(url, model), lines_of(url), tmp_path / "archive"
    snapshots = local_snapshots(url, model)
    dry = archive(spark, url, to, msgspec.structs.replace(everything, dry_run=True), shards=3)
    assert not to.exists()
    done = archive(spark, url, to, everything, shards=3)
    assert done == dry
    assert done.counts["archived"] == len(over)
    assert done.counts["unfinished"] == 12 - len(over)
    archived = f"archive:{to}"
    assert lines_of(url) == [line for line in before if line[0] not in over]
    assert lines_of(archived) == [line for line in before if line[0] in over]
    with ArchiveLog(to) as log:
        assert list(log.verify()) == []
        assert len(log.contents.manifests) == 3
    # As a source of Spark: events, snapshots, audit and ingest need not know what it is.
    rows = spark.read.format("runstate").option("url", archived).load().collect()
    assert sorted((row["stream"], row["body"].encode()) for row in rows) == lines_of(archived)
    folded = read_view(spark, archived, "snapshots", shards=2).collect()
    expected = {run: snapshots[run] for run in over}
    assert {row["stream"]: (row["seq"], row["body"].encode()) for row in folded} == expected
    assert summary(audit(spark, [archived])).ok
    ingest(spark, archived, tmp_path / "events")
    assert replay(spark, f"table:{tmp_path}/events", tmp_path / "snapshots").counts["streams"] == len(over)
    assert archive(spark, url, to, everything).counts == {"events": 0, "unfinished": 12 - len(over)}


def test_what_is_archived_already_is_only_deleted_and_what_differs_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = filled("sqlite", "engine", tmp_path)
    over = finished(url, "engine")
    keeping = msgspec.structs.replace(everything, keep=True)
    to = tmp_path / "archive"
    assert archive(spark, url, to, keeping).counts["copied"] == len(over)
    assert archive(spark, url, to, keeping).counts["held"] == len(over)
    assert archive(spark, url, to, everything).counts["deleted"] == len(over)
    (tmp_path / "again").mkdir()
    again = filled("sqlite", "engine", tmp_path / "again")  # The same runs, at another time.
    done = archive(spark, again, to, everything, shards=2)
    assert done.counts["refused"] == len(over)
    assert {(each.stream, each.code) for each in done.refused} == {(run, "archive.conflict") for run in over}


def test_what_cannot_be_archived_is_told_before_a_task_is_started(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=2)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("mine")
    with pytest.raises(NotALog):
        archive(spark, url, tmp_path / "foreign", everything)
    with pytest.raises(Unsupported):
        archive(spark, "memory:", tmp_path / "archive", everything, model="engine")
    with pytest.raises(InvalidUrl):
        archive(spark, f"table:{tmp_path}/none", tmp_path / "archive", everything, model="engine")
    archive(spark, url, tmp_path / "archive", everything)
    with pytest.raises(Unsupported, match="delete"):
        archive(spark, f"archive:{tmp_path}/archive", tmp_path / "second", everything)
    with ArchiveDirectory(tmp_path / "archive").alone(), pytest.raises(LogBusy):
        archive(spark, url, tmp_path / "archive", everything)
    assert not (tmp_path / "second").exists()
    with pytest.raises(InvalidOption, match="no option"):
        read_view(spark, url, "archive", model="engine", older="1").collect()


def test_the_command_tells_what_it_has_done(cli: Cli, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=4)
    told = cli("pipeline", "archive", url, "--to", "old", "--older-than", "0s", "--dry-run", "--json")
    assert (told.code, told.rows[0]["counts"]["archived"]) == (0, 3)
    assert "nothing was changed" in told.err
    done = cli("pipeline", "archive", url, "--to", "old", "--older-than", "0s")
    assert (done.code, done.out.split("\n")[0].split()[:2]) == (0, ["events", "archived"])
    assert done.out.split("\n")[1].split()[:2] == [str(told.rows[0]["counts"]["events"]), "3"]
    assert cli("pipeline", "archive", url, "--to", "old", "--older-than", "soon").code == 2


# --- killed --------------------------------------------------------------------------------------------------------

_program = """
import json, os, signal, sys, threading, time
from datetime import UTC, datetime
from pathlib import Path
from runstate.pipeline.archive.job import archive
from runstate.pipeline.spark.session import spark_session
from runstate.retention import Archiving

url, to, kill = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "executor"
conf = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
}


def executors():
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            mine = f"--app-id\\0{spark.sparkContext.applicationId}".encode() in command
            if b"CoarseGrainedExecutorBackend" in command and mine:
                found.append(int(entry.name))
    return sorted(found)


def kill_one():
    while not list(to.glob("packs/*.ndjson")):
        time.sleep(0.002)
    os.kill(executors()[0], signal.SIGKILL)
    killed.append(len(list(to.glob("packs/*.manifest.json"))))


with spark_session(master="local-cluster[2,1,1024]" if kill else "local[2]", conf=conf) as spark:
    killed = []
    if kill:
        threading.Thread(target=kill_one, daemon=True).start()
    done = archive(spark, url, to, Archiving(before=datetime(2100, 1, 1, tzinfo=UTC)), shards=12)
    print(json.dumps({"counts": done.counts, "killed": killed}))
"""


def check_somewhere(url: str, to: Path, before: Lines) -> None:
    """Every event is in the log or in the archive, and in neither is one twice."""
    there = lines_of(url)
    kept = lines_of(f"archive:{to}") if (to / "archive.json").exists() else []
    assert set(there) | set(kept) == set(before)
    assert len(there) == len(set(there))
    assert len(kept) == len(set(kept))


def check_moved(url: str, to: Path, before: Lines, over: set[str]) -> None:
    assert lines_of(url) == [line for line in before if line[0] not in over]
    assert lines_of(f"archive:{to}") == [line for line in before if line[0] in over]
    with ArchiveLog(to) as log:
        assert [finding for finding in log.verify() if finding.severity == "damage"] == []


def test_an_executor_that_is_killed_in_mid_job_costs_nothing(tmp_path: Path, spark_home: str) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=60)
    over, before, to = finished(url, "engine"), lines_of(url), tmp_path / "archive"
    done = subprocess.run(
        [sys.executable, "-c", _program, url, str(to), "executor"],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "SPARK_HOME": spark_home},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout)
    assert told["counts"]["unfinished"] == 60 - len(over)
    (packs,) = told["killed"]
    assert packs < 12
    check_moved(url, to, before, over)


def test_a_driver_that_is_killed_in_mid_job_is_started_again_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    url = filled("sqlite", "engine", tmp_path, runs=200)
    over, before, to = finished(url, "engine"), lines_of(url), tmp_path / "archive"
    command = [sys.executable, "-c", _program, url, str(to), "driver"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        end = time.monotonic() + 120
        while len(list(to.glob("packs/*.manifest.json"))) < 2 and time.monotonic() < end:
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    check_somewhere(url, to, before)
    with open_log(url, create=False) as log:
        assert any(info.stream in over for info in infos(log)), "it was over before it was killed"
    archive(spark, url, to, everything, shards=4)
    check_moved(url, to, before, over)


def test_a_driver_that_is_killed_between_the_two_steps_has_deleted_nothing_and_the_next_job_deletes(
    spark: SparkSession, tmp_path: Path
) -> None:
    url = filled("ndjson", "rundir", tmp_path)
    over, before, to = finished(url, "rundir"), lines_of(url), tmp_path / "archive"
    command = [sys.executable, "-c", _dying_program, url, str(to), "driver"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        process.wait(120)
    assert process.returncode == -signal.SIGKILL
    assert lines_of(url) == before
    assert lines_of(f"archive:{to}") == [line for line in before if line[0] in over]
    packs = sorted(path.name for path in (to / "packs").glob("*.ndjson"))
    done = archive(spark, url, to, everything, shards=3)
    assert done.counts["deleted"] == len(over)
    assert "archived" not in done.counts
    assert sorted(path.name for path in (to / "packs").glob("*.ndjson")) == packs
    check_moved(url, to, before, over)


_dying_program = _program.replace(
    "from runstate.pipeline.archive.job import archive",
    """
import runstate.pipeline.archive.job
from runstate.pipeline.archive.job import archive
runstate.pipeline.archive.job.confirm_packs = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
""",
)


def test_between_the_steps_a_run_that_gets_a_file_stays_and_one_that_is_deleted_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = filled("ndjson", "rundir", tmp_path)
    over = sorted(finished(url, "rundir"))
    root = Path(url.removeprefix("ndjson:"))

    def change(directory: ArchiveDirectory, packs: list[SeenPack]) -> Deletions:
        (root / over[0] / "artifact.txt").write_text("mine")
        with open_log(url) as log:
            log.delete_stream(over[1])
        return confirm_packs(directory, packs)

    monkeypatch.setattr("runstate.pipeline.archive.job.confirm_packs", change)
    done = archive(spark, url, tmp_path / "archive", everything, shards=2)
    assert done.counts["gone"] == 1
    assert [(each.stream, each.code) for each in done.refused] == [(over[0], "archive.unfit")]
    assert (root / over[0] / "artifact.txt").exists()


def test_what_the_driver_does_not_see_as_a_task_does_is_not_deleted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = filled("sqlite", "engine", tmp_path)
    before = lines_of(url)

    def changed(directory: ArchiveDirectory, packs: list[SeenPack]) -> Deletions:
        (path, *_) = (tmp_path / "archive").glob("packs/*.ndjson")
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        return confirm_packs(directory, packs)

    monkeypatch.setattr("runstate.pipeline.archive.job.confirm_packs", changed)
    with pytest.raises(StorageNotShared, match="other bytes"):
        archive(spark, url, tmp_path / "archive", everything, shards=2)
    assert lines_of(url) == before


def test_two_attempts_at_the_same_shard_at_once_are_safe(tmp_path: Path) -> None:
    """As with speculation: two processes' worth of work on the same runs, each with packs of its own."""
    url = filled("sqlite", "engine", tmp_path, runs=40)
    over, before, to = finished(url, "engine"), lines_of(url), tmp_path / "archive"
    directory = ArchiveDirectory(to)
    directory.prepare("engine")
    options = {"to": str(to), "archiving": msgspec.json.encode(everything).decode()}
    copied = _attempted(3, url, options)
    assert lines_of(url) == before
    for told in copied:
        packs = msgspec.json.decode(told["packs"], type=list[SeenPack])
        with kept_deletions(directory, confirm_packs(directory, packs)) as path:
            deleted = _attempted(3, url, {**options, "deletions": path})
        # Whoever was first: the run is archived.
        outcomes = [json.loads(each["counts"]) for each in deleted]
        assert [(each.get("archived", 0) + each.get("deleted", 0)) for each in outcomes] == [len(over)] * 3
    check_moved(url, to, before, over)


def _attempted(count: int, url: str, options: dict[str, str]) -> list[dict[str, str]]:
    """What attempts at one task tell that are made at once."""
    from runstate.pipeline.archive.job import view
    from runstate.pipeline.source.shards import Shard
    from runstate.pipeline.source.views import Request, Task

    task = Task(Request((url,), "archive", "engine", options=options), Shard())
    told: list[dict[str, str]] = []
    gate = threading.Barrier(count)

    def attempt() -> None:
        gate.wait()
        for batch in view.rows(task):
            told.extend(batch.to_pylist())

    attempts = [threading.Thread(target=attempt) for _ in range(count)]
    for each in attempts:
        each.start()
    for each in attempts:
        each.join()
    assert len(told) == count
    return told
