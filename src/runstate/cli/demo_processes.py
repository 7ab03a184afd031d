"""The processes that the demo starts, and kills."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from runstate.cli.progress_display import erase_leftover


@contextmanager
def start_python(*arguments: str, stdout: int = 2) -> Iterator[subprocess.Popen[bytes]]:
    """Run our own interpreter for the block. What is still running at its end is killed.

    The process has a group of its own, so that Ctrl-C reaches the demo alone.
    """
    process = subprocess.Popen([sys.executable, *arguments], stdout=stdout, process_group=0)  # noqa: S603 - see above
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> int:
    """Kill a process with SIGKILL, if it is still running. Returns its exit code."""
    if process.poll() is None:
        process.kill()
        process.wait()
        erase_leftover()
    return process.returncode
