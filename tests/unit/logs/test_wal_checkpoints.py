"""Damaged checkpoints: one of them loses nothing; without any, a repair says what is lost and keeps the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath, PurePosixPath

import msgspec
import pytest
from tests.commands import Cli

from runstate.conformance.notes import notes
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.errors import LogDamaged, LogFailed
from runstate.logs.log import Finding, StoredSnapshot
from runstate.logs.wal import WalLog
from runstate.models.canonical import digest
from runstate.runtimes.daemon import Daemon

root = PurePosixPath("/streams")
home = root / "s"
keys = [f"k{number}" for number in range(1, 10)]


def state_of(log: WalLog) -> list[str]:
    kept = log.load_snapshot("s", "notes")
    found: list[str] = [] if kept is None else msgspec.json.decode(kept.body)
    return found + [record.key for record in log.read("s", after_seq=0 if kept is None else kept.seq)]


def checkpoint(log: WalLog) -> None:
    state = state_of(log)
    body = msgspec.json.encode(state)
    log.checkpoint("s", StoredSnapshot("notes", 1, len(state), digest(body), body))


def checkpointed() -> SimulatedDisk:
    """Nine events, checkpoints at 3 and 6: the WAL begins with 3."""
    disk = SimulatedDisk()
    with WalLog(root, disk=disk) as log:
        for number, key in enumerate(keys, 1):
            log.append("s", notes(key))
            if number in (3, 6):
                checkpoint(log)
    return disk


def overwrite(disk: SimulatedDisk, path: PurePath, data: bytes) -> None:
    with disk.open(path) as file:
        file.truncate(0)
        file.append(data)


def flip(disk: SimulatedDisk, path: PurePath) -> None:
    disk.flip_bit(path, len(disk.read(path)) // 2, 0)


def cut(disk: SimulatedDisk, path: PurePath) -> None:
    overwrite(disk, path, disk.read(path)[:-9])


def zero(disk: SimulatedDisk, path: PurePath) -> None:
    overwrite(disk, path, bytes(len(disk.read(path))))


def remove(disk: SimulatedDisk, path: PurePath) -> None:
    disk.remove(path)


def damage_of(log: WalLog) -> list[str]:
    return [finding.code for finding in log.verify("s") if finding.severity == "damage"]


@pytest.mark.parametrize("name", ["snapshot.notes.json", "snapshot.notes.json.previous"])
@pytest.mark.parametrize("damage", [flip, cut, zero, remove])
def test_one_damaged_checkpoint_loses_nothing_and_the_log_opens_by_itself(
    damage: Callable[[SimulatedDisk, PurePath], None], name: str
) -> None:
    disk = checkpointed()
    damage(disk, home / name)
    named = [] if damage is remove else ["snapshot.corrupt"]
    with WalLog(root, disk=disk) as log:
        assert damage_of(log) == named
        assert state_of(log) == keys
        log.recover("s")
        assert state_of(log) == keys
        assert [finding.code for finding in log.recoveries] == named
        assert damage_of(log) == []
        log.append("s", notes("new"))
        for _ in range(2):  # The next checkpoints make up for the damaged one.
            checkpoint(log)
            assert state_of(log) == [*keys, "new"]
    for name in ("snapshot.notes.json", "snapshot.notes.json.previous"):
        flip(disk, home / name)
        with WalLog(root, disk=disk) as log:
            assert state_of(log) == [*keys, "new"]
        flip(disk, home / name)


def test_a_checkpoint_that_does_not_read_back_as_it_was_written_removes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = checkpointed()
    before, read = disk.tree(), disk.read
    with WalLog(root, disk=disk) as log, monkeypatch.context() as patch:

        def misread(path: PurePath) -> bytes:
            return read(path).replace(b'"k7"', b'"k0"') if path.name.endswith(".tmp") else read(path)

        patch.setattr(disk, "read", misread)
        with pytest.raises(LogFailed, match="not what was written"):
            checkpoint(log)
        assert [disk.read(home / name) for name in ("wal.jsonl", "snapshot.notes.json")] == [
            before[home / "wal.jsonl"],
            before[home / "snapshot.notes.json"],
        ]
        log.append("s", notes("new"))


def test_damage_before_the_newest_checkpoint_costs_no_state() -> None:
    disk = checkpointed()
    line = disk.read(home / "wal.jsonl").split(b"\n")[1]  # Event 4; the newest checkpoint is of event 6.
    overwrite(disk, home / "wal.jsonl", disk.read(home / "wal.jsonl").replace(line, line.replace(b"k4", b"kk")))
    with WalLog(root, disk=disk) as log:
        assert state_of(log) == keys
        (finding,) = log.recover("s")
        assert (finding.seq, finding.details["lost"]) == (4, 0)
        assert state_of(log) == keys
        assert damage_of(log) == []
        assert log.append("s", notes("new"))[0].seq == 10
        assert [record.seq for record in log.read("s", after_seq=5)] == [6, 7, 8, 9, 10]
        checkpoint(log)
        assert state_of(log) == [*keys, "new"]
    with WalLog(root, disk=disk) as log:
        assert (log.recover("s"), damage_of(log), state_of(log)) == ([], [], [*keys, "new"])


def told(findings: list[Finding]) -> list[tuple[str, int | None, object]]:
    return [(finding.code, finding.seq, finding.details.get("lost")) for finding in findings]


def test_without_a_checkpoint_repair_says_what_is_lost_and_the_stream_goes_on_with_the_rest() -> None:
    disk = checkpointed()
    for name in ("snapshot.notes.json", "snapshot.notes.json.previous"):
        flip(disk, home / name)
    before = disk.tree()
    with WalLog(root, disk=disk) as log:
        assert damage_of(log) == ["log.state_lost", "snapshot.corrupt", "snapshot.corrupt"]
        assert [record.seq for record in log.read("s", after_seq=2)] == [3, 4, 5, 6, 7, 8, 9]
        proposed = log.repair("s", dry_run=True)
        assert disk.tree() == before
        done = log.repair("s")
        assert proposed == done
        assert told(done)[-1] == ("log.state_lost", 1, 2)
        assert "seq 1 to 2. Lost events: 2. Intact events: 7, seq 3 to 9" in done[-1].message
        assert damage_of(log) == []
        assert state_of(log) == keys[2:]
        assert log.append("s", notes("new"))[0].seq == 10
    with WalLog(root, disk=disk) as log:
        assert (log.recover("s"), damage_of(log), state_of(log)) == ([], [], [*keys[2:], "new"])


def test_a_daemon_without_a_checkpoint_says_so_and_goes_on_after_a_repair(cli: Cli, tmp_path: Path) -> None:
    place = tmp_path / "d"
    with Daemon.open(place, checkpoint_every_s=None) as daemon:
        for number in range(6):
            daemon.push("q", item_id=f"i{number}")
            if number in (1, 3):
                daemon.checkpoint()
    for name in ("snapshot.json", "snapshot.json.previous"):
        path = place / "daemon" / name
        path.write_bytes(path.read_bytes().replace(b"i1", b"ix"))
    for _ in range(2):
        with pytest.raises(LogDamaged, match=r"before seq 2 .*daemon repair"):
            Daemon.open(place, checkpoint_every_s=None)
    tail, fetch = cli("daemon", "tail", "d"), cli("fetch", "wal:d", "daemon", "--after", "1")
    assert (tail.code, len(tail.rows), fetch.code, len(fetch.rows)) == (0, 5, 0, 5)
    assert "--after 1" in cli("fetch", "wal:d", "daemon").err
    verified = cli("daemon", "verify", "d")
    assert (verified.code, "log.state_lost" in verified.out) == (1, True)
    proposed, done = cli("daemon", "repair", "d", "--dry-run"), cli("daemon", "repair", "d")
    assert (proposed.code, proposed.out, done.code) == (0, done.out, 0)
    assert cli("daemon", "verify", "d").code == 0
    with Daemon.open(place, checkpoint_every_s=None) as daemon:
        assert sorted(item.id for item in daemon.state.queue_items["q"].values()) == [
            f"i{number}" for number in range(1, 6)
        ]


@pytest.mark.parametrize("kept_lines", [0, 2])
@pytest.mark.parametrize("rest", [b"", b"noise\n"])
def test_a_repair_never_gives_up_the_state_of_an_intact_checkpoint(
    cli: Cli, tmp_path: Path, kept_lines: int, rest: bytes
) -> None:
    with Daemon.open(tmp_path / "d", checkpoint_every_s=None) as daemon:
        for number in range(6):
            daemon.push("q", item_id=f"i{number}")
        daemon.checkpoint()
    wal = tmp_path / "d" / "daemon" / "wal.jsonl"
    wal.write_bytes(b"".join(wal.read_bytes().splitlines(keepends=True)[:kept_lines]) + rest)
    assert cli("daemon", "verify", "d").code == 1
    assert cli("daemon", "repair", "d").code == 0
    assert cli("daemon", "verify", "d").code == 0
    with Daemon.open(tmp_path / "d", checkpoint_every_s=None) as daemon:
        assert sorted(item.id for item in daemon.items("q")) == [f"i{number}" for number in range(6)]
        daemon.push("q", item_id="new")
    assert cli("daemon", "verify", "d").code == 0
    with Daemon.open(tmp_path / "d", checkpoint_every_s=None) as daemon:
        assert len(daemon.items("q")) == 7
