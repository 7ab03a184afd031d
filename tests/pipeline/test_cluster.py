"""On executors in processes of their own the results are the same, also when one of them is killed in mid-job."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pipeline.fleet_logs import event_lines, filled, local_snapshots, table_snapshots

from runstate.models.canonical import digest

_program = """
import json, os, signal, sys, threading, time
from pathlib import Path
from runstate.pipeline.jobs import ingest, read_view, replay
from runstate.pipeline.spark.session import spark_session

urls, to = json.loads(sys.argv[1]), Path(sys.argv[2])
conf = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
}


def executors():
    # The JVMs that run tasks: everything that this process has started, and that says it is one.
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
                mine = f"--app-id\\0{spark.sparkContext.applicationId}".encode() in command
            except OSError:
                continue
            if b"CoarseGrainedExecutorBackend" in command and mine:
                found.append(int(entry.name))
    return sorted(found)


def kill_one_in_mid_job(victim):
    tracker = spark.sparkContext.statusTracker()
    while not over.is_set():
        for number in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(number)
            if stage is not None and 0 < stage.numCompletedTasks < stage.numTasks:
                os.kill(victim, signal.SIGKILL)
                killed.append((stage.numCompletedTasks, stage.numTasks))
                return
        time.sleep(0.005)


with spark_session(master="local-cluster[2,1,1024]", conf=conf) as spark:
    snapshots = {}
    for model, url in urls.items():
        ingest(spark, url, to / "events" / model, model=model, shards=4)
        rows = read_view(spark, url, "snapshots", model=model, shards=4).collect()
        snapshots[model] = {row["stream"]: [row["seq"], row["digest"]] for row in rows}
    over, killed = threading.Event(), []
    killer = threading.Thread(target=kill_one_in_mid_job, args=executors()[:1])
    killer.start()
    # The tasks are short: a job may be over before anybody has seen it in its middle. Then there is a next one.
    for job in range(50):
        replay(spark, f"table:{to}/events/engine", to / f"snapshots-{job}", shards=24)
        if killed:
            break
    over.set()
    killer.join()
    print(json.dumps({"killed": killed, "snapshots": snapshots, "job": job}))
"""


def test_a_cluster_gives_the_same_snapshots_and_survives_the_loss_of_an_executor(
    tmp_path: Path, spark_home: str
) -> None:
    urls = {
        "engine": filled("sqlite", "engine", tmp_path, runs=60),
        "rundir": filled("ndjson", "rundir", tmp_path, runs=6),
    }
    # The executors have working directories of their own.
    relative = {model: url.replace(f"{tmp_path}/", "") for model, url in urls.items()}
    assert not any(str(tmp_path) in url for url in relative.values())
    done = subprocess.run(
        [sys.executable, "-c", _program, json.dumps(relative), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "SPARK_HOME": spark_home},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    for model, url in urls.items():
        expected = {stream: [seq, digest(body)] for stream, (seq, body) in local_snapshots(url, model).items()}
        assert told["snapshots"][model] == expected
    ((tasks_done, tasks),) = told["killed"]
    assert 0 < tasks_done < tasks
    assert table_snapshots(tmp_path / f"snapshots-{told['job']}") == local_snapshots(urls["engine"], "engine")


_streams = """
import json, sys
from pathlib import Path
from runstate.pipeline.spark.session import spark_session
from runstate.pipeline.source.data_source import register
from runstate.pipeline.live.stream import live_projection

url = sys.argv[1]
conf = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
}
with spark_session(master="local-cluster[1,1,1024]", conf=conf) as spark:
    register(spark)
    events = spark.readStream.format("runstate").option("url", url).load()
    query = events.writeStream.format("memory").queryName("events").option("checkpointLocation", "checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    read = spark.table("events").count()
    with live_projection(spark, [url], "parquet:rows", Path("state"), available_now=True) as projection:
        projection.wait()
    offset = json.loads(sorted(Path("checkpoint/offsets").glob("[0-9]*"))[-1].read_text().split("\\n")[-1])
print(json.dumps({"read": read, "projected": projection.events, "offset": list(offset)}))
"""


@pytest.mark.skipif("RUNSTATE_KILL_ROUNDS" not in os.environ, reason="make soak: it takes a minute")
def test_relative_urls_of_streams_begin_at_the_drivers_directory(tmp_path: Path, spark_home: str) -> None:
    """Executors of a local cluster have working directories of their own."""
    url = filled("sqlite", "engine", tmp_path, runs=4).replace(f"{tmp_path}/", "")
    with contextlib.chdir(tmp_path):
        expected = len(list(event_lines(url)))
    done = subprocess.run(
        [sys.executable, "-c", _streams, url],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "SPARK_HOME": spark_home},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"read": expected, "projected": expected, "offset": [url]}
    assert list((tmp_path / "rows").rglob("*.parquet"))
