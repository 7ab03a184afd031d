"""How much memory the pipeline's jobs take with a small heap: `python -m benchmarks.pipeline_memory URL DIR`.

It is a program of its own because a JVM's heap is fixed when it starts. While the jobs run, a thread reads from /proc
what the JVM and Spark's Python workers hold; the figures go to stdout as JSON.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from runstate.pipeline.jobs import ingest, read_view, replay
from runstate.pipeline.spark.session import spark_session

heap_mib = 512
"""Spark refuses to start with less than 450."""
data_per_heap = 10
_interval_s = 0.05
_page = os.sysconf("SC_PAGE_SIZE")


class Peak(msgspec.Struct, rename="camel"):
    """What one job took, at most at any moment."""

    job: str
    seconds: float
    jvm_bytes: int
    worker_bytes: int
    """The largest worker."""
    workers_bytes: int
    """All of them together; what they share of their parent's memory counts for each."""


def _children() -> dict[int, list[tuple[int, str]]]:
    """The processes of this machine by their parent: number and name."""
    found: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                stat = Path(f"/proc/{name}/stat").read_text()
                command, _, rest = stat.partition("(")[2].rpartition(")")
                found.setdefault(int(rest.split()[1]), []).append((int(name), command))
    return found


def _resident(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _page
    return 0


def _look(peak: Peak) -> None:
    children = _children()
    waiting = [(pid, command, False) for pid, command in children.get(os.getpid(), [])]
    jvm, workers = 0, []
    while waiting:
        pid, command, below_jvm = waiting.pop()
        is_jvm = command == "java"
        if is_jvm:
            jvm = max(jvm, _resident(pid))
        elif below_jvm:
            workers.append(_resident(pid))
        waiting += [(child, name, below_jvm or is_jvm) for child, name in children.get(pid, [])]
    peak.jvm_bytes = max(peak.jvm_bytes, jvm)
    peak.worker_bytes = max([peak.worker_bytes, *workers])
    peak.workers_bytes = max(peak.workers_bytes, sum(workers))


@contextmanager
def _watched(job: str) -> Iterator[Peak]:
    peak, done = Peak(job, 0.0, 0, 0, 0), threading.Event()

    def watch() -> None:
        while not done.wait(_interval_s):
            _look(peak)

    thread = threading.Thread(target=watch, daemon=True)
    start = time.perf_counter()
    thread.start()
    try:
        yield peak
    finally:
        peak.seconds = time.perf_counter() - start
        done.set()
        thread.join()


def main(url: str, directory: str) -> None:
    peaks = []
    events, states = Path(directory) / "events", Path(directory) / "snapshots"
    with spark_session(master="local[2]", conf={"spark.driver.memory": f"{heap_mib}m"}) as spark:
        with _watched("snapshots of the log") as peak:
            read_view(spark, url, "snapshots").write.format("noop").mode("overwrite").save()
        peaks.append(peak)
        with _watched("ingest") as peak:
            ingest(spark, url, events)
        peaks.append(peak)
        with _watched("replay of the table") as peak:
            replay(spark, f"table:{events}", states)
        peaks.append(peak)
    sys.stdout.buffer.write(msgspec.json.encode(peaks))


def measure_memory(url: str, directory: Path) -> list[Peak]:
    """Run this program.

    Raises:
        subprocess.CalledProcessError: a job failed; with so small a heap that says that memory is not bounded.
    """
    command = [sys.executable, "-m", "benchmarks.pipeline_memory", url, str(directory)]
    return msgspec.json.decode(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout, type=list[Peak])


if __name__ == "__main__":
    main(*sys.argv[1:])
