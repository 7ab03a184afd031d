"""What an editor, or a cut at the very end, does to the ends of lines: nothing is lost, and nothing is damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath, PurePosixPath

import pytest

from runstate.conformance.notes import notes, numbered
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.logs.log import StoredSnapshot
from runstate.logs.wal import WalLog
from runstate.models.canonical import digest

root = PurePosixPath("/streams")
wal = root / "s" / "wal.jsonl"


def no_last_newline(data: bytes) -> bytes:
    return data[:-1]


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def crlf_without_the_last(data: bytes) -> bytes:
    return crlf(data)[:-2]


def blank_lines(data: bytes) -> bytes:
    return b"\n" + data.replace(b"\n", b"\n\n", 4) + b"\n\n"


def blank_lines_with_crlf(data: bytes) -> bytes:
    return crlf(blank_lines(data))


edits = [no_last_newline, crlf, crlf_without_the_last, blank_lines, blank_lines_with_crlf]


def overwrite(disk: SimulatedDisk, path: PurePath, data: bytes) -> None:
    with disk.open(path) as file:
        file.truncate(0)
        file.append(data)


def drained(log: WalLog) -> list[int]:
    reader = log.reader("s")
    return [record.seq for record in iter(reader.next_unprocessed, None)]


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("edit", edits)
def test_entries_are_read_and_kept_whatever_ends_their_lines(edit: Callable[[bytes], bytes], is_closed: bool) -> None:
    disk = SimulatedDisk()
    writer = WalLog(root, disk=disk)
    for batch in (numbered(3), notes("a"), notes("b", "c"), notes("d")):
        writer.append("s", batch)
    whole, info = writer.read("s"), writer.stream("s")
    if is_closed:
        writer.close()
    disk = disk.killed()
    overwrite(disk, wal, edit(disk.read(wal)))
    with WalLog(root, disk=disk) as log:
        for after_seq in range(8):
            assert log.read("s", after_seq=after_seq) == whole[after_seq:]
        assert list(log.lines("s")) == [record.body for record in whole]
        assert (log.stream("s"), drained(log)) == (info, list(range(1, 8)))
        assert [finding for finding in log.verify() if finding.severity == "damage"] == []
        assert [finding.code for finding in log.recover("s")] in ([], ["log.torn_tail"])
        assert log.append("s", notes("d", "e"))[1].seq == 8
        assert (log.read("s")[:7], drained(log)) == (whole, list(range(1, 9)))
        body = b"[]"
        for _ in range(2):
            log.checkpoint("s", StoredSnapshot("notes", 1, 5, digest(body), body))
        assert [record.seq for record in log.read("s", after_seq=4)] == [5, 6, 7, 8]
        after = log.stream("s")
    with WalLog(root, disk=disk) as log:
        assert (log.recover("s"), list(log.verify()), log.stream("s")) == ([], [], after)
        assert after is not None
        assert after.events == 8
