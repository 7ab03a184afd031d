"""Salvage: events behind damage that their checksums and seqs prove are kept, in the stream or beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec
import pytest
from tests.commands import Cli

from runstate.conformance.notes import notes
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.logs.wal import WalLog
from runstate.runtimes.daemon import Daemon

root = PurePosixPath("/streams")
wal, aside = root / "s" / "wal.jsonl", root / "s" / "wal.jsonl.salvaged"
Damage = Callable[[list[bytes]], list[bytes]]


def flip(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b"k2", b"kk"), *lines[3:]]


def zero(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], bytes(len(lines[2]) - 1) + b"\n", *lines[3:]]


def delete(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], *lines[3:]]


def swap(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[3], lines[2], *lines[4:]]


def duplicate(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[2], *lines[3:]]


def lose_the_head(lines: list[bytes]) -> list[bytes]:
    return lines[2:]


def cut_in_the_middle(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2][:40], *lines[3:]]


lost_by: dict[Damage, list[int]] = {
    flip: [3],
    zero: [3],
    delete: [3],
    swap: [],
    duplicate: [],
    lose_the_head: [1, 2],
    cut_in_the_middle: [3, 4],
}


def damaged(damage: Damage, batches: list[list[str]]) -> SimulatedDisk:
    disk = SimulatedDisk()
    with WalLog(root, disk=disk) as log:
        for batch in batches:
            log.append("s", notes(*batch))
    lines = damage(disk.read(wal).splitlines(keepends=True))
    with disk.open(wal) as file:
        file.truncate(0)
        file.append(b"".join(lines))
    return disk


def intact(log: WalLog) -> bool:
    return not [finding for finding in log.verify("s") if finding.severity == "damage"]


@pytest.mark.parametrize("is_one_append", [False, True])
@pytest.mark.parametrize("damage", list(lost_by))
def test_every_event_that_can_be_proven_is_kept_in_the_stream(damage: Damage, is_one_append: bool) -> None:
    keys = [f"k{number}" for number in range(7)]
    disk = damaged(damage, [keys] if is_one_append else [[key] for key in keys])
    expected = [seq for seq in range(1, 8) if seq not in lost_by[damage]]
    before = disk.tree()
    with WalLog(root, disk=disk) as log:
        proposed = log.repair("s", dry_run=True, salvage=True)
        assert disk.tree() == before
        assert log.repair("s", salvage=True) == proposed
        assert intact(log)
        assert [(record.seq, record.key) for record in log.read("s")] == [(seq, keys[seq - 1]) for seq in expected]
        assert log.repair("s", salvage=True) == []
        assert log.append("s", notes("new"))[0].seq == 8
    with WalLog(root, disk=disk) as log:
        assert (log.recover("s"), intact(log)) == ([], True)
        assert [record.seq for record in log.read("s")] == [*expected, 8]


def test_what_a_recovery_has_cut_off_is_brought_back_while_nothing_was_appended_since() -> None:
    disk = damaged(flip, [[f"k{number}"] for number in range(7)])
    with WalLog(root, disk=disk) as log:
        log.recover("s")
        assert [record.seq for record in log.read("s")] == [1, 2]
        (finding,) = log.repair("s", salvage=True)
        assert (finding.code, finding.seq, finding.details["salvaged"]) == ("log.salvaged", 4, 4)
        assert [record.seq for record in log.read("s")] == [1, 2, 4, 5, 6, 7]
        assert log.repair("s", salvage=True) == []
        assert log.append("s", notes("k4", "new"))[1].seq == 8


def test_what_the_stream_went_on_without_is_set_aside_and_listed_until_it_is_removed() -> None:
    disk = damaged(flip, [[f"k{number}"] for number in range(7)])
    with WalLog(root, disk=disk) as log:
        log.append("s", notes("k3", "new"))  # One of the lost events is sent again: it is not lost any more.
        before = log.read("s")
        (finding,) = log.repair("s", salvage=True)
        assert (finding.code, finding.details) == ("log.set_aside", {"evidence": str(aside), "lines": 3})
        assert log.read("s") == before
        assert [msgspec.json.decode(line)["seq"] for line in disk.read(aside).splitlines()] == [5, 6, 7]
        assert log.repair("s", salvage=True) == []
        assert [(finding.code, finding.severity) for finding in log.verify("s")] == [("log.set_aside", "warning")]
        assert log.files_beside("s") == []
        disk.remove(aside)
        assert list(log.verify("s")) == []


def test_the_command_salvages_a_stream_that_is_intact_again(cli: Cli, tmp_path: Path) -> None:
    with Daemon.open(tmp_path / "d", checkpoint_every_s=None) as daemon:
        for number in range(6):
            daemon.push("q", item_id=f"i{number}")
    path = tmp_path / "d" / "daemon" / "wal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"i2"', b'"xx"'))
    with WalLog(tmp_path / "d") as log:
        log.recover("daemon")
    assert cli("repair", "wal:d").code == 0
    assert "1 repair made" in cli("repair", "wal:d", "--salvage").err
    assert "nothing to repair" in cli("repair", "wal:d", "--salvage").err
    with WalLog(tmp_path / "d") as log:
        assert [record.seq for record in log.read("daemon")] == [1, 2, 4, 5, 6]
