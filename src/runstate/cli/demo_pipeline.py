"""The demo's orchestrated runs, and the pipeline over everything that it has made."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from runstate.cli.output import words
from runstate.cli.pipeline import check_spark
from runstate.errors import Unsupported
from runstate.logs.disk import RealDisk, make_directories, write_private
from runstate.models.rundir import RUNDIR
from runstate.runtimes.orchestrator import Graph, Job, Orchestrator, RunFailed
from runstate.runtimes.orchestrator.pool import ThreadPool
from runstate.store import open as open_store

_runs = 12
_pages = ("index", "about", "prices")
_waited_s = 300.0


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
                words.print(f"{run_id} has failed, as it must: {runs / run_id / 'failure.md'}")
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


def run_pipeline(urls: list[str], to: Path, damaged: str) -> bool:
    """Run the pipeline over all logs, kill it in the middle, and resume it. Says whether all came out as it must."""
    try:
        check_spark()
    except Unsupported as missing:
        words.print(f"left out. {missing}")
        return True
    events = to / "runs" / "pipeline" / "events.ndjson"
    begun = _start("run", *urls, "--to", str(to))
    if not _comes(events, b":replay:", begun):
        return False
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    words.print("killed (SIGKILL) in the middle of its second stage; resumed:")
    done = _start("resume", str(to))
    # The damage that was planted makes the exit code 1: an audit that finds nothing would be the failure here.
    if done.wait() != 1:
        words.print(f"the pipeline ended with {done.returncode}, and not with the damage that was planted")
        return False
    twice = [
        line for line in events.read_bytes().split(b"\n") if b'"WORK_ITEM_STARTED"' in line and b":ingest:2:" in line
    ]
    found = (to / "runs" / "pipeline" / "artifacts" / "audit" / "rundir.json").read_text()
    return not twice and damaged in found


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "runstate", "pipeline", *arguments]
    return subprocess.Popen(command, stdout=2)  # noqa: S603 - our own interpreter and module


def _comes(events: Path, work_item: bytes, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a work item was started."""
    deadline = time.monotonic() + _waited_s
    while time.monotonic() < deadline and process.poll() is None:
        if events.exists():
            lines = events.read_bytes().split(b"\n")
            if any(b'"WORK_ITEM_STARTED"' in line and work_item in line for line in lines):
                return True
        time.sleep(0.1)
    words.print(f"the pipeline did not come to {work_item.decode()}")
    process.kill()
    process.wait()
    return False
