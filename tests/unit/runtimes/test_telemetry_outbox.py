"""The outbox: first in, first out, across processes and power cuts; bounded; never raising because of a disk."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

from runstate.conformance.simulated_disk import SimulatedDisk, every_crash, every_kill
from runstate.runtimes.telemetry.outbox import Outbox
from runstate.storage.disk import File

path = PurePath("/telemetry/outbox")
lines = [json.dumps({"event_id": f"e-{n}"}).encode() for n in range(6)]


def drain(outbox: Outbox) -> list[bytes]:
    found = []
    while (line := outbox.head()) is not None:
        found.append(line)
        outbox.settle(line)
    return found


def outbox_on(disk: SimulatedDisk, **options: int) -> Outbox:
    return Outbox(path, disk=disk, **options)


def test_lines_come_out_as_they_went_in() -> None:
    outbox = outbox_on(SimulatedDisk())
    assert outbox.append(lines) == 0
    assert drain(outbox) == lines


def test_the_head_stays_until_it_is_settled() -> None:
    outbox = outbox_on(SimulatedDisk())
    outbox.append(lines)
    assert outbox.head() == outbox.head() == lines[0]


def test_a_drained_outbox_is_an_empty_file() -> None:
    disk = SimulatedDisk()
    outbox = outbox_on(disk)
    outbox.append(lines[:3])
    outbox.append(lines[3:])
    drain(outbox)
    assert disk.read(path) == b""
    outbox.append(lines[:1])
    assert drain(outbox) == lines[:1]


def test_the_next_process_goes_on_where_the_last_one_stopped() -> None:
    disk = SimulatedDisk()
    first = outbox_on(disk)
    first.append(lines)
    for line in lines[:2]:
        assert first.head() == line
        first.settle(line)
    assert drain(outbox_on(disk.killed())) == lines[2:]


def test_one_of_two_processes_delivers_what_both_append() -> None:
    disk = SimulatedDisk()
    first, second = outbox_on(disk), outbox_on(disk)
    first.append(lines[:1])
    assert first.head() == lines[0]
    second.append(lines[1:2])
    assert second.head() is None
    assert drain(first) == lines[:2]
    second.append(lines[2:])
    first.release()
    assert drain(second) == lines[2:]


def test_a_full_outbox_keeps_the_oldest() -> None:
    size = len(lines[0]) + 1
    outbox = outbox_on(SimulatedDisk(), bytes_max=4 * size)
    assert outbox.append(lines) == 2
    assert outbox.append(lines[:1]) == 1
    assert drain(outbox) == lines[:4]
    assert outbox.append(lines[:1]) == 0


def test_space_is_given_back_while_lines_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.runtimes.telemetry.outbox._compact_bytes", 64)
    disk = SimulatedDisk()
    outbox = outbox_on(disk, bytes_max=400)
    outbox.append(lines[:1])
    for n in range(200):  # Never drained: there is always one more.
        assert outbox.append([b'{"n":%d}' % n]) == 0
        head = outbox.head()
        assert head is not None
        outbox.settle(head)
    assert drain(outbox) == [b'{"n":199}']
    assert disk.names(path.parent) == ["outbox", "outbox.lock", "outbox.sender"]


def test_half_a_line_of_a_dead_process_spoils_no_other() -> None:
    disk = SimulatedDisk()
    outbox_on(disk).append(lines[:1])
    with disk.open(path) as file:
        file.append(b'{"event_id":"e-t')
    outbox = outbox_on(disk)
    assert outbox.head() == lines[0]
    outbox.append(lines[1:2])
    assert drain(outbox) == [lines[0], b'{"event_id":"e-t', lines[1]]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("operation", ["create", "write", "sync", "lock", "make_directory"])
def test_what_the_disk_refuses_is_delivered_from_memory(operation: str, error: int) -> None:
    disk = SimulatedDisk()
    disk.fail(operation, error=error, persistent=True)  # type: ignore[arg-type]
    outbox = outbox_on(disk)
    assert outbox.append(lines) == 0
    assert list(dict.fromkeys(drain(outbox))) == lines


def test_what_waits_in_memory_is_saved_once_the_disk_can() -> None:
    disk = SimulatedDisk(capacity_bytes=0)
    outbox = outbox_on(disk)
    outbox.append(lines[:3])
    disk.heal()
    outbox.append(lines[3:])
    assert drain(outbox_on(disk.killed())) == lines


def test_memory_has_a_bound_too() -> None:
    outbox = outbox_on(SimulatedDisk(capacity_bytes=0), unsaved_max=4)
    assert outbox.append(lines) == 2
    assert drain(outbox) == lines[:4]


def test_a_refused_line_is_kept_with_its_reason() -> None:
    disk = SimulatedDisk()
    outbox = outbox_on(disk)
    outbox.append(lines[:1])
    assert outbox.set_aside(lines[0], "400 no")
    assert outbox.set_aside(b"\xff{", "422 unreadable")
    kept = [json.loads(line) for line in disk.read(path.with_name("outbox.rejected")).split(b"\n")[:-1]]
    assert kept == [
        {"reason": "400 no", "record": {"event_id": "e-0"}},
        {"reason": "422 unreadable", "record": "\ufffd{"},
    ]


def test_a_real_directory_is_made_private(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "new" / "outbox")
    outbox.append(lines)
    assert (tmp_path / "new" / "outbox").stat().st_mode & 0o777 == 0o600
    assert drain(outbox) == lines


# --- crashes -------------------------------------------------------------------------------------------------------


def deliveries(disk: SimulatedDisk) -> Iterator[bytes]:
    """Yields lines as they are saved, and `b"sent " + line` once the endpoint has one."""
    outbox = outbox_on(disk)
    for batch in (lines[:2], lines[2:3], lines[3:]):
        outbox.append(batch)
        yield from batch
        for _ in range(2):
            if (head := outbox.head()) is not None:
                yield b"sent " + head
                outbox.settle(head)


def lost(disk: SimulatedDisk, acknowledged: tuple[bytes, ...]) -> set[bytes]:
    sent = {line.removeprefix(b"sent ") for line in acknowledged if line.startswith(b"sent ")}
    saved = {line for line in acknowledged if not line.startswith(b"sent ")}
    return saved - sent - set(drain(outbox_on(disk)))


@pytest.mark.slow
@pytest.mark.parametrize("compact_bytes", [1, 1024])
def test_no_power_cut_loses_a_saved_line(compact_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.runtimes.telemetry.outbox._compact_bytes", compact_bytes)
    crashes = list(every_crash(deliveries, states_max=400))
    assert len(crashes) > 500
    for crash in crashes:
        assert not lost(crash.disk, crash.acknowledged), crash.during


@pytest.mark.parametrize("compact_bytes", [1, 1024])
def test_no_kill_loses_a_saved_line(compact_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.runtimes.telemetry.outbox._compact_bytes", compact_bytes)
    for crash in every_kill(deliveries):
        assert not lost(crash.disk, crash.acknowledged), crash.during


def test_without_the_sync_a_power_cut_would_lose_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""
    monkeypatch.setattr(File, "sync", lambda self: None)
    assert any(lost(crash.disk, crash.acknowledged) for crash in every_crash(deliveries, states_max=400))
