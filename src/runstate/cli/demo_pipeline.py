"""The demo's orchestrated runs, and the pipeline over everything that it has made."""

from __future__ import annotations

import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from runstate.cli.demo_processes import kill, start_python
from runstate.cli.output import words
from runstate.cli.pipeline import check_spark
from runstate.errors import Unsupported
from runstate.models.rundir import RUNDIR
from runstate.runtimes.orchestrator import Graph, Job, Orchestrator, RunFailed
from runstate.runtimes.orchestrator.pool import ThreadPool
from runstate.storage.directories import make_directories
from runstate.storage.disk import RealDisk, write_private
from runstate.store import open as open_store

_runs = 12
_pages = ("index", "about", "prices")
_waited_s = 300.0
_small = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1", "--conf", "spark.sql.shuffle.partitions=2")
"""Settings for few events: the second of Java's compilers and many partitions would only cost time."""


def orchestrated_fleet(runs: Path, sources: Path) -> str:
    """Build a small site again and again, as so many runs; one source is broken, and one run is damaged afterwards."""
    make_directories(RealDisk(), sources)
    with open_store(f"ndjson:{runs}", RUNDIR) as store:
        for number in range(_runs):
            source = sources / f"site-{number:02d}.json"
            titles = {page: f"{page} of site {number}" for page in _pages}
            write_private(source, msgspec.json.encode(titles) if number != 5 else b"no JSON at all")
            run_id = f"site-{number:02d}"
            graph = _site(source)
            try:
                Orchestrator(graph, store, ThreadPool(graph), run_id, runs / run_id).start()
            except RunFailed:
                words.print(f"{run_id} failed, because its source is broken: {runs / run_id / 'failure.md'}")
    return f"ndjson:{runs}"


def _site(source: Path) -> Graph:
    graph = Graph("site", sources={"titles.json": source})
    read = graph.node("read")

    @read.worker(inputs=["titles.json"], outputs=["titles.txt"])
    def titles(job: Job) -> None:
        found = job.read_json("titles.json")
        job.write("titles.txt", "\n".join(found[page] for page in _pages))

    render = graph.node("render")

    @render.worker(inputs=["titles.txt"], outputs=["{scope}.html"], scopes=list(_pages))
    def page(job: Job) -> None:
        title = job.read("titles.txt").decode().split("\n")[_pages.index(job.scope_key)]
        job.write("{scope}.html", f"<h1>{title}</h1>")

    return graph


def damage(runs: Path) -> str:
    """Change one byte in the middle of one run's history, as a failing disk would. Returns the run's id."""
    path = runs / "site-03" / "events.ndjson"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return "site-03"


def run_pipeline(urls: list[str], to: Path, damaged: str) -> bool | None:
    """Run the pipeline over all logs, kill it in the middle, and resume it.

    Returns whether the result is right; None if Spark is not installed.
    """
    try:
        check_spark()
    except Unsupported as missing:
        words.print(f"left out. {missing}")
        return None
    words.print("Spark is started twice, which takes most of the demo's time: about a minute")
    events = to / "runs" / "pipeline" / "events.ndjson"
    with _start("run", *urls, "--to", str(to)) as first:
        if not _wait_for_stage(events, b":replay:", first):
            words.print(f"the pipeline did not come to its second stage; see {to / 'spark.log'}")
            return False
        kill(first)
    words.print("killed (SIGKILL) in its second stage, and resumed:")
    with _start("resume", str(to)) as second:
        # The audit must find the damage that was planted, and report it by this exit code.
        if second.wait() != 1:
            words.print(f"the pipeline ended with exit code {second.returncode}, and did not report the damage")
            return False
    twice = [
        line for line in events.read_bytes().split(b"\n") if b'"WORK_ITEM_STARTED"' in line and b":ingest:2:" in line
    ]
    found = (to / "runs" / "pipeline" / "artifacts" / "audit" / "rundir.json").read_text()
    return not twice and damaged in found


def _start(*arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return start_python("-m", "runstate", "pipeline", *arguments, *_small)


def _wait_for_stage(events: Path, work_item: bytes, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a stage was started. False: the pipeline ended before, or took too long."""
    deadline = time.monotonic() + _waited_s
    while time.monotonic() < deadline and process.poll() is None:
        if events.exists():
            lines = events.read_bytes().split(b"\n")
            if any(b'"WORK_ITEM_STARTED"' in line and work_item in line for line in lines):
                return True
        time.sleep(0.1)
    return False
