"""A real writer, killed at each step of one append: each call to the disk, and each system call."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from tests.crash.kills import die, in_a_fork
from tests.crash.segments_work import bare, blob_of, ref_of

from runstate.conformance.notes import findings, keys, stored
from runstate.errors import LogBusy
from runstate.logs.blob_refs import blob_refs
from runstate.logs.segments import SegmentsLog
from runstate.storage.disk import File, RealDisk

first = ["k0"]
second = ["k1", "k2", "k3"]


def prepare(root: Path) -> None:
    with SegmentsLog(root) as log:
        send(log, first)


def send(log: SegmentsLog, plan: list[str]) -> None:
    log.put_blob(blob_of(plan[0]))
    log.append("r", [bare(key, ref_of(plan[0])) for key in plan])


def check(root: Path, during: str, before: list[str]) -> bool:
    """The plan is there whole, or not at all; and the session goes on. Whether it is there."""
    with SegmentsLog(root) as log:
        seen = keys(stored(log, "r"))
        assert seen in (before, before + second), during
        assert findings(log) == [], during
        if seen == before:
            log.put_blob(blob_of(second[0]))
        results = log.append("r", [bare(key, ref_of(second[0])) for key in second])
        assert [result.persisted for result in results] == [seen == before] * 3, during
        assert keys(stored(log, "r")) == before + second, during
        assert findings(log) == [], during
        assert log.collect_blobs().removed == [], during
        assert [log.get_blob(ref) for line in log.lines("r") for ref in blob_refs(line)], during
    return seen != before


# --- at each call to the disk --------------------------------------------------------------------------------------

changes = ["open", "create", "rename", "remove", "make_directory", "sync_directory", "lock"]


class Mortal(RealDisk):
    """A disk whose user dies before the n-th change, or in the middle of it where it is a write."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in changes:
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            self.count()
            made = found(*arguments, **named)
            return MortalFile(made, self) if isinstance(made, File) else made

        return counted

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            die()


class MortalFile(File):
    def __init__(self, file: File, disk: Mortal) -> None:
        super().__init__(file._open(), file.path)
        self._disk = disk

    def append(self, data: bytes) -> int:
        self._disk.count()
        offset = super().append(data[: len(data) // 2])
        self._disk.count()
        super().append(data[len(data) // 2 :])
        return offset

    def truncate(self, size: int) -> None:
        self._disk.count()
        super().truncate(size)

    def sync(self) -> None:
        self._disk.count()
        super().sync()


@pytest.mark.parametrize("append", ["the next append", "the first append", "the append after a crash"])
def test_a_writer_killed_at_any_call_to_the_disk_leaves_the_plan_whole_or_not_at_all(
    tmp_path: Path, append: str
) -> None:
    stored_by = []
    for left in range(1, 200):
        root = tmp_path / str(left)
        before = prepare_for(append, root)

        def write(root: Path = root, left: int = left) -> None:
            send(SegmentsLog(root, disk=Mortal(left)), second)

        code = in_a_fork(write)
        stored_by.append(check(root, f"killed before change {left}", before))
        if code == 0:
            break
    assert code == 0
    assert stored_by == sorted(stored_by)
    assert 20 < stored_by.index(True) < len(stored_by)


# --- at each system call -------------------------------------------------------------------------------------------

each_append = ["openat", "write", "fdatasync", "fsync", "rename", "flock", "close"]
calls = [
    *[("the next append", call) for call in each_append],
    *[("the first append", call) for call in [*each_append, "mkdir"]],
    *[("the append after a crash", call) for call in [*each_append, "ftruncate", "unlink"]],
]


def prepare_for(append: str, root: Path) -> list[str]:
    """The keys of what was stored before an append."""
    if append == "the first append":
        SegmentsLog(root).close()
        return []
    prepare(root)
    if append == "the append after a crash":
        home = root / "sessions/r"
        with (home / "manifest.jsonl").open("ab") as manifest:
            manifest.write(b'{"manifestIndex":2,"kind":"segm')
        (home / "events/00000001-00000007.jsonl").write_bytes(b"never acknowledged\n")
        (home / "events/00000001-00000002.jsonl.0123456789abcdef.tmp").write_bytes(b"half")
    return first


@pytest.fixture(scope="module")
def strace() -> str:
    path = shutil.which("strace")
    if path is None:
        pytest.skip("install strace to kill a writer at each of its system calls")
    return path


@pytest.mark.parametrize(("append", "call"), calls)
def test_a_writer_killed_at_any_system_call_leaves_the_plan_whole_or_not_at_all(
    tmp_path: Path, strace: str, append: str, call: str
) -> None:
    killed = 0
    for number in range(1, 80):
        root = tmp_path / str(number)
        before = prepare_for(append, root)
        code = appended_under(strace, call, number, root)
        is_stored = check(root, f"killed at {call} {number}", before)
        if code == 0:
            assert is_stored
            break
        assert code == -signal.SIGKILL
        killed += 1
    assert code == 0
    assert killed > 0


def appended_under(strace: str, call: str, number: int, root: Path) -> int:
    """Append in a process of its own that is killed at the n-th such call; its exit code."""
    go, start = os.pipe()
    is_ready, ready = os.pipe()

    def write() -> None:
        os.close(start)
        log = SegmentsLog(root)
        log.stream("r")
        os.write(ready, b"\n")
        os.read(go, 1)
        send(log, second)
        os._exit(0)

    child = os.fork()
    if child == 0:
        try:
            write()
        finally:
            os._exit(1)
    os.close(go)
    os.close(ready)
    # Attached while the writer waits, so that only the calls of one append are counted.
    assert os.read(is_ready, 1) == b"\n"
    os.close(is_ready)
    inject = f"inject={call}:signal=KILL:when={number}"
    command = [strace, "-qq", "-f", "-e", f"trace={call}", "-e", inject, "-p", str(child)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL):
        wait_until_traced(child)
        os.write(start, b"\n")
        os.close(start)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_until_traced(pid: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text():
            return
        time.sleep(0.002)
    pytest.fail("strace did not attach: allow it to trace processes (CAP_SYS_PTRACE)")


# --- two writers ---------------------------------------------------------------------------------------------------

HOLDER = """
import sys
from pathlib import Path
from runstate.logs.segments import SegmentsLog
from runstate.logs.segments.files import SessionFiles
log = SegmentsLog(Path(sys.argv[1]))
with log._turn("r") as session, session.locked():
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the middle of an append."""
    prepare(tmp_path / "log")
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_while_one_process_appends_another_is_refused_at_once_and_may_try_again(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    answers = []
    with SegmentsLog(tmp_path / "log") as log:
        log.stream("r")
        for _ in range(20):
            start = time.perf_counter()
            with pytest.raises(LogBusy) as caught:
                log.append("r", [bare("k1")])
            answers.append(time.perf_counter() - start)
        # A refusal waits for nothing. The median, because this machine may be busy with other things now and then.
        assert median(answers) < 0.05
        told = caught.value.as_data()
        assert (told["code"], told["retryable"], told["details"]) == ("log.busy", True, {"stream": "r"})
        assert keys(stored(log, "r")) == first
        holder.communicate(b"\n")
        assert log.append("r", [bare("k1")])[0].seq == 2


def test_a_killed_holder_frees_the_session(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    with SegmentsLog(tmp_path / "log") as log:
        with pytest.raises(LogBusy):
            log.append("r", [bare("k1")])
        holder.kill()
        holder.wait()
        assert log.append("r", [bare("k1")])[0].seq == 2


RACER = """
import sys
from pathlib import Path
from runstate.errors import LogBusy
from runstate.logs.segments import SegmentsLog
from tests.crash.segments_work import bare
name, busy = sys.argv[2], 0
log = SegmentsLog(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(60):
    while True:
        try:
            log.append("r", [bare(f"{name}-{number}"), bare(f"{name}-{number}-b")])
            break
        except LogBusy:
            busy += 1
print(busy, flush=True)
"""


def test_processes_that_append_at_once_take_turns_and_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACER, str(tmp_path / "log")]
    place = Path(__file__).parents[2]
    racers = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=place) for name in "xyz"
    ]
    for racer in racers:
        assert racer.stdout
        assert racer.stdout.readline() == b"ready\n"
    busy = 0
    for racer in racers:
        assert racer.stdin
        racer.stdin.write(b"\n")
        racer.stdin.flush()
    for racer in racers:
        answer, _ = racer.communicate(timeout=120)
        assert racer.returncode == 0
        busy += int(answer)
    with SegmentsLog(tmp_path / "log") as log:
        found = keys(stored(log, "r"))
        assert sorted(found) == sorted(f"{n}-{k}{b}" for n in "xyz" for k in range(60) for b in ("", "-b"))
        assert found[1::2] == [f"{key}-b" for key in found[::2]]
        assert findings(log) == []
    assert os.listdir(tmp_path / "log/sessions") == ["r"]
