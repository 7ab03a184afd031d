"""Every kind of damage to every file of a WAL stream: the table in docs/formats/wal.md, walked with one oracle.

Whatever the damage is: no wrong answer, no contradiction between verify, repair and read, and no event that can be
proven is lost by salvage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from pathlib import PurePath, PurePosixPath
from typing import Literal

import msgspec
import pytest

from runstate.conformance.notes import notes
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.errors import LogDamaged, Truncated
from runstate.logs.log import Finding, Record, StoredSnapshot
from runstate.logs.wal import WalLog
from runstate.logs.wal.entries import proven_entry
from runstate.logs.wal.options import WalOptions
from runstate.models.canonical import digest

root = PurePosixPath("/streams")
home = root / "s"
History = Literal["plain", "drop", "archive"]
keys = [f"k{number}" for number in range(1, 13)]
last_seq = 12


def opened(disk: SimulatedDisk, history: History) -> WalLog:
    return WalLog(root, disk=disk, options=WalOptions(history="archive" if history == "archive" else "drop"))


def state_of(log: WalLog) -> list[str]:
    kept = log.load_snapshot("s", "notes")
    found: list[str] = [] if kept is None else msgspec.json.decode(kept.body)
    return found + [record.key for record in log.read("s", after_seq=0 if kept is None else kept.seq)]


@cache
def original(history: History) -> tuple[SimulatedDisk, dict[int, Record]]:
    """Twelve events in appends of one and of three; with checkpoints at 5 and 8, if not `plain`."""
    disk = SimulatedDisk()
    records: dict[int, Record] = {}
    with opened(disk, history) as log:
        for batch in ([0], [1], [2], [3], [4], [5, 6, 7], [8], [9, 10], [11]):
            log.append("s", notes(*(keys[number] for number in batch)))
            records |= {record.seq: record for record in log.read("s", after_seq=max(records, default=0))}
            if history != "plain" and batch[-1] in (4, 7):
                body = msgspec.json.encode(keys[: batch[-1] + 1])
                log.checkpoint("s", StoredSnapshot("notes", 1, batch[-1] + 1, digest(body), body))
    return disk, records


def damages(data: bytes, other: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Each kind of damage to a file's content; None: the file is gone."""
    size = len(data)
    for offset in sorted({0, 9, size // 3, size // 2, 2 * size // 3, size - 2, size - 1}):
        for bit in (0, 5):
            yield f"flip {offset}.{bit}", data[:offset] + bytes([data[offset] ^ 1 << bit]) + data[offset + 1 :]
        yield f"cut {offset}", data[:offset]
        yield f"zeroed from {offset}", data[:offset] + bytes(size - offset)
        yield f"zeroed at {offset}", data[:offset] + bytes(min(40, size - offset)) + data[offset + 40 :]
    yield "deleted", None
    yield "foreign", b"\x7fELF" + bytes(range(256)) * 4
    yield "swapped with another file", other
    yield "duplicated", data + data
    lines = data.splitlines(keepends=True)
    for number in range(len(lines) if len(lines) > 1 else 0):
        rest = lines[number + 1 :]
        yield f"line {number} duplicated", b"".join([*lines[: number + 1], lines[number], *rest])
        yield f"line {number} deleted", b"".join([*lines[:number], *rest])
        yield f"line {number} swapped", b"".join([*lines[:number], *rest[:1], lines[number], *rest[1:]])


def damaged_disks(history: History) -> Iterator[tuple[str, SimulatedDisk]]:
    disk, _ = original(history)
    files = {path: data for path, data in disk.tree().items() if data is not None and home in path.parents}
    for number, (path, data) in enumerate(files.items()):
        other = list(files.values())[number - 1]
        for what, content in damages(data, other):
            if content == data:
                continue
            copy = disk.killed()
            copy.remove(path)
            if content is not None:
                with copy.create(path) as file:
                    file.append(content)
            yield f"{path.name}: {what}", copy


def read_all(log: WalLog, during: str) -> dict[int, Record]:
    """What can be read, up to the first damage in the WAL. A damaged or missing segment of the archive is passed
    over."""
    found: dict[int, Record] = {}
    after_seq = 0
    while True:
        try:
            page = log.read("s", after_seq=after_seq, limit=1)
        except Truncated as truncated:
            after_seq = truncated.details["first_seq"] - 1
            continue
        except LogDamaged as damage:
            if "path" in damage.details:
                after_seq = int(PurePath(damage.details["path"]).name[17:33])
            elif damage.details["reason"] == "archive.segment_missing":
                after_seq = damage.details["last_seq"]
            else:
                return found
            continue
        if not page:
            return found
        found[page[0].seq] = page[0]
        after_seq = page[0].seq


def codes(findings: list[Finding], severity: str) -> list[str]:
    return [finding.code for finding in findings if finding.severity == severity]


def check_reads(log: WalLog, records: dict[int, Record], during: str) -> dict[int, Record]:
    found = read_all(log, during)
    assert found == {seq: records.get(seq) for seq in found}, f"{during}: a wrong record"
    return found


def answered(log: WalLog) -> list[str] | None:
    """The state, or None where the log says that it has none."""
    try:
        return state_of(log)
    except (LogDamaged, Truncated):
        return None


def proven(disk: SimulatedDisk, path: PurePath) -> set[int]:
    data = disk.read(path) if disk.exists(path) else b""
    return {entry.seq for line in data.split(b"\n") if (entry := proven_entry(line)) is not None}


@pytest.mark.slow
@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize("history", ["plain", "drop", "archive"])
def test_no_damage_gives_a_wrong_answer_a_contradiction_or_a_loss_that_salvage_could_prevent(
    history: History, salvage: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "runstate.logs.wal")  # Each damage is a warning there, and there are hundreds.
    _, records = original(history)
    for during, disk in damaged_disks(history):
        whole = proven(disk, home / "wal.jsonl")
        with opened(disk, history) as log:
            findings = list(log.verify("s"))
            before, state = check_reads(log, records, during), answered(log)
            assert state in (keys, None), f"{during}: a wrong state"
            assert state == keys or codes(findings, "damage"), f"{during}: verify finds no damage"
            proposed = log.repair("s", dry_run=True, salvage=salvage)
            done = log.repair("s", salvage=salvage)
            assert proposed == done, during
            assert bool(done) or not any(not code.startswith("archive.") for code in codes(findings, "damage")), during
            left = codes(list(log.verify("s")), "damage")
            assert all(code.startswith("archive.") for code in left), f"{during}: {left} after a repair"
            after = check_reads(log, records, during)
            repaired = answered(log)
            assert repaired is not None or left, f"{during}: no state after a repair"
            if state == keys:
                assert repaired == keys, f"{during}: a repair lost what could be read"
            if not done:
                assert (after, repaired) == (before, state), during
            if salvage:
                kept = log.load_snapshot("s", "notes")
                covered = set() if kept is None else set(range(1, kept.seq + 1))
                aside = proven(disk, home / "wal.jsonl.salvaged")
                assert whole <= {*after, *aside, *covered}, f"{during}: a proven event is lost"
            assert log.append("s", notes("new"))[0].seq > last_seq, during
        with opened(disk, history) as log:
            assert codes(log.recover("s"), "damage") == [], during
            assert [code for code in codes(list(log.verify("s")), "damage") if not code.startswith("archive.")] == []
            assert answered(log) == (None if repaired is None else [*repaired, "new"]), during
