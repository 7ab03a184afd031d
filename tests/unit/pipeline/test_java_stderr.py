"""The filter of what the JVM prints: the tracebacks of Spark's daemons go, everything else stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

from runstate.pipeline.spark.java_stderr import DaemonNoise

header = b"Traceback (most recent call last):\n"
daemon = b'  File "/x/pyspark.zip/pyspark/daemon.py", line 95, in worker\n'
code = b"    outfile.flush()\n"
broken = b"BrokenPipeError: [Errno 32] Broken pipe\n"


def kept(*lines: bytes) -> bytes:
    noise = DaemonNoise()
    return b"".join(noise.drop_from(line) for line in lines)


@pytest.mark.parametrize(
    "lines",
    [
        [header, daemon, code, daemon, code, broken],
        [header, header, daemon, daemon, code, code, broken, broken],
        [header, daemon, header, daemon, broken, code, broken],
    ],
    ids=["one", "two at once", "two that overlap"],
)
def test_a_daemons_traceback_is_dropped(lines: list[bytes]) -> None:
    assert kept(b"before\n", *lines, b"after\n") == b"before\nafter\n"


def test_a_traceback_of_anything_else_stays() -> None:
    other = [header, b'  File "/home/user/job.py", line 1, in main\n', b"    run()\n", b"ValueError: no\n"]
    assert kept(*other) == b"".join(other)
    assert kept(header, daemon, code, broken, *other) == b"".join(other)


def test_what_a_process_prints_is_copied_as_it_comes() -> None:
    script = (
        "import subprocess, sys, threading\n"
        "from runstate.pipeline.spark.java_stderr import filtered_stderr\n"
        "with filtered_stderr() as stderr:\n"
        "    child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stderr=stderr)\n"
        "child.wait()\n"
        "[thread.join(30) for thread in threading.enumerate() if thread.name == 'runstate-java-stderr']\n"
    )
    printed = header + daemon + broken + b"Exception in thread main\n"
    child = f"import os; os.write(2, {printed!r})"
    done = subprocess.run([sys.executable, "-c", script, child], capture_output=True, timeout=60)
    assert done.stderr == b"Exception in thread main\n"
