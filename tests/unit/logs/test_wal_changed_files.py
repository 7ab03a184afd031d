"""Files that change under a running writer: it notices before it acknowledges, and one writer is all there is."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from runstate.conformance.notes import notes
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.errors import AppendOutcomeUnknown, LogClosed, LogDamaged, LogFailed, StreamNotFound
from runstate.logs.log import StoredSnapshot
from runstate.logs.wal import WalLog
from runstate.logs.wal.lines import offset_after
from runstate.models.canonical import digest


def remove_directory(home: Path) -> None:
    shutil.rmtree(home)


def remove_log(home: Path) -> None:
    shutil.rmtree(home.parent)


def move_directory(home: Path) -> None:
    home.rename(home.with_name("elsewhere"))


def remove_file(home: Path) -> None:
    (home / "wal.jsonl").unlink()


def replace_file(home: Path) -> None:
    shutil.copy(home / "wal.jsonl", home / "copy")
    (home / "copy").replace(home / "wal.jsonl")


def cut_file(home: Path) -> None:
    with (home / "wal.jsonl").open("rb+") as file:
        file.truncate(100)


def empty_file(home: Path) -> None:
    (home / "wal.jsonl").write_bytes(b"")


changes = [remove_directory, remove_log, move_directory, remove_file, replace_file, cut_file, empty_file]


def snapshot(seq: int) -> StoredSnapshot:
    return StoredSnapshot("notes", 1, seq, digest(b"[]"), b"[]")


def content(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("change", changes)
def test_a_writer_acknowledges_nothing_once_its_file_is_not_the_one_on_disk(
    tmp_path: Path, change: Callable[[Path], None], is_compacted: bool
) -> None:
    root = tmp_path / "log"
    log = WalLog(root)
    for number in range(20):
        log.append("s", notes(f"k{number}"))
    for _ in range(2 if is_compacted else 0):
        log.checkpoint("s", snapshot(10))
    change(root / "s")
    changed = content(root)
    if root.exists():
        for save in (log.checkpoint, log.save_snapshot):
            with pytest.raises((LogFailed, StreamNotFound)):
                save("s", snapshot(20))
    with pytest.raises(AppendOutcomeUnknown, match=r"wal.jsonl"):
        log.append("s", notes("new"))
    with pytest.raises(LogClosed):
        log.append("s", notes("newer"))
    log.close()
    assert content(root) == changed, "what is there now is not this writer's"
    with WalLog(root) as heir:
        heir.append("s", notes("new"))
        assert heir.find("s", "new") is not None


@pytest.mark.parametrize("change", [replace_file, cut_file, empty_file])
def test_a_writer_does_not_read_from_a_file_that_is_not_its_own(tmp_path: Path, change: Callable[[Path], None]) -> None:
    with WalLog(tmp_path) as log:
        for number in range(50):
            log.append("s", notes(f"k{number}"))
        change(tmp_path / "s")
        with pytest.raises(LogDamaged, match=r"while this process writes to it"):
            log.read("s", after_seq=40)
        assert [finding.code for finding in log.verify("s")] == ["log.file_changed"]


second = """
import sys
from pathlib import Path
from runstate.conformance.notes import notes
from runstate.errors import LogBusy
from runstate.logs.wal import WalLog
with WalLog(Path(sys.argv[1])) as log:
    try:
        print(log.append("s", notes("second"))[0].seq)
    except LogBusy:
        print("busy")
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "log"


def second_writer(root: Path) -> str:
    run = subprocess.run([sys.executable, "-c", second, str(root)], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_without_its_lock_file_a_stream_still_has_one_writer(root: Path) -> None:
    with WalLog(root) as log:
        log.append("s", notes("a", "b"))
        for step in range(3):
            shutil.rmtree(root / ".locks", ignore_errors=True)
            assert second_writer(root) == "busy", step
            assert log.append("s", notes(f"first {step}"))[0].seq == 3 + step
            log.checkpoint("s", snapshot(2))  # The second one replaces the file, which must be locked too.
    assert second_writer(root) == "6"


def test_a_search_in_a_file_that_is_shorter_than_expected_ends() -> None:
    disk, root = SimulatedDisk(), PurePosixPath("/streams")
    with WalLog(root, disk=disk) as log:
        for number in range(50):
            log.append("s", notes(f"k{number}"))
    disk.fail("read", nth=1000, persistent=True)  # Instead of a search that never ends.
    with disk.open(root / "s" / "wal.jsonl") as file:
        file.truncate(5000)
        assert 0 < offset_after(file, 20_000, 40) < 5000


def hide_with_nul(lines: list[bytes]) -> bytes:
    lines[1] = lines[1].replace(b"k1", b"\0\0")
    return b"\n".join(lines)


def cut_the_newline_behind_damage(lines: list[bytes]) -> bytes:
    lines[1] = lines[1].replace(b"k1", b"xx")
    return b"\n".join(lines)[:-1]


@pytest.mark.parametrize("damage", [hide_with_nul, cut_the_newline_behind_damage])
def test_a_reader_gives_the_entry_behind_a_skipped_one_without_another_append(
    root: Path, damage: Callable[[list[bytes]], bytes]
) -> None:
    with WalLog(root) as log:
        log.append("s", notes("k0", "k1", "k2"))
    wal = root / "s" / "wal.jsonl"
    wal.write_bytes(damage(wal.read_bytes().split(b"\n")))
    with WalLog(root) as log:
        reader = log.reader("s")
        assert [record.key for record in iter(reader.next_unprocessed, None)] == ["k0", "k2"]
        reader.close()
