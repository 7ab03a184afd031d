"""A new SQLite file that several processes open at once: none of them fails because of another."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from runstate.logs.sqlite import SqliteLog

_opener = """
import sys, time
from runstate.logs.sqlite import SqliteLog

pause = time.sleep

def tell_and_pause(seconds):
    global pause
    print("waits", flush=True)
    time.sleep = pause
    pause(seconds)

time.sleep = tell_and_pause
with SqliteLog(sys.argv[1]):
    print("open", flush=True)
"""


@pytest.mark.slow
def test_processes_that_open_a_new_file_wait_for_the_one_that_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with ExitStack() as stack:
        # The lock of a process in the middle of making the file: SQLite refuses WAL mode at once, without waiting.
        maker = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
        maker.execute("BEGIN IMMEDIATE")
        command = [sys.executable, "-c", _opener, str(path)]
        openers = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            for _ in range(3)
        ]
        for opener in openers:
            assert opener.stdout is not None
            assert opener.stdout.readline() == "waits\n", opener.communicate()[1]
        maker.execute("ROLLBACK")
        for opener in openers:
            out, err = opener.communicate(timeout=30)
            assert (opener.returncode, out) == (0, "open\n"), err
    with SqliteLog(path, create=False) as log:
        assert list(log.verify()) == []
