"""A file system that becomes read-only while a log is open, and writable again: the kernel does so after an error."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import pytest
from tests.shared_logs import can_mount_read_only

from runstate.conformance.notes import keys, notes, stored
from runstate.conformance.simulated_disk import Operation, SimulatedDisk
from runstate.errors import NotWritable
from runstate.logs.ndjson import NdjsonLog
from runstate.logs.segments import SegmentsLog
from runstate.logs.wal import WalLog

root = PurePosixPath("/log")
changes: tuple[Operation, ...] = ("create", "write", "truncate", "sync", "rename", "remove", "make_directory")
logs: list[Callable[..., Any]] = [WalLog, NdjsonLog, SegmentsLog]
each_log = pytest.mark.parametrize("open_log", logs)


@each_log
def test_nothing_is_acknowledged_and_the_same_handle_appends_again(open_log: Callable[..., Any]) -> None:
    disk = SimulatedDisk()
    log = open_log(root, disk=disk)
    log.append("s", notes("a"))
    for operation in changes:
        disk.fail(operation, error=errno.EROFS, persistent=True)
    for stream in ("s", "new"):
        with pytest.raises(NotWritable, match="Read-only file system"):
            log.append(stream, notes("b"))
    assert keys(stored(log, "s")) == ["a"]
    assert log.stream("new") is None
    disk.heal()
    assert [log.append(stream, notes("b"))[0].seq for stream in ("s", "new")] == [2, 1]
    log.close()
    for crashed in disk.crash_states(states_max=4):
        heir = open_log(root, disk=crashed)
        assert (keys(stored(heir, "s")), keys(stored(heir, "new"))) == (["a", "b"], ["b"])
        assert list(heir.verify()) == []


@each_log
def test_the_refusal_names_the_file(
    open_log: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is given a descriptor fails without a name: the error has to get it."""

    def refuse(fd: int, data: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with open_log(PurePath(tmp_path)) as log:
        log.append("s", notes("a"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", refuse)
            with pytest.raises(NotWritable, match=r"s/\S+ cannot be written"):
                log.append("s", notes("b"))
        assert log.append("s", notes("b"))[0].seq == 2


remounting = """
import subprocess, sys
import runstate
from runstate.errors import NotWritable
def remount(mode):
    subprocess.run(["mount", "-o", f"remount,{mode},bind", sys.argv[1]], check=True)
def append(kind, step):
    with runstate.open(f"{kind}:{sys.argv[1]}/{kind}", "engine") as store:
        run = store.run("r", tenant="t", plan="p")
        getattr(run, step)()
        return store.log.stream("r").last_seq
kinds = ["sqlite", "ndjson", "segments", "wal"]
print([append(kind, "started") for kind in kinds])
remount("ro")
for kind in kinds:
    try:
        append(kind, "paused")
        print("acknowledged", kind)
    except NotWritable as error:
        print("read-only file system" in str(error))
remount("rw")
print([append(kind, "paused") for kind in kinds])
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not can_mount_read_only(), reason="needs `unshare -m` and `mount --bind`: CAP_SYS_ADMIN"
)
def test_a_real_remount_refuses_appends_and_loses_nothing(tmp_path: Path) -> None:
    """Of logs that are opened anew: no mount becomes read-only by command while a writer has its files open."""
    script = 'mount --bind "$0" "$0" && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, str(tmp_path), sys.executable, "-c", remounting, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[1, 1, 1, 1]", *["True"] * 4, "[2, 2, 2, 2]"]
