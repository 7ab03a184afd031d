"""A quarantine that is interrupted by a failing disk, a power cut or a kill loses no event, and can be finished."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.crash.faults import every_fault
from tests.crash.test_wal_crashes import opened as open_wal
from tests.damage_oracle import damage_in
from tests.unit.logs.test_damage_matrix import cases

from runstate.conformance.notes import notes, stored
from runstate.conformance.simulated_disk import SimulatedDisk, every_crash
from runstate.errors import RunstateError
from runstate.logs.log import EventLog, Record

Scene = tuple[Callable[[SimulatedDisk], EventLog], SimulatedDisk]
seqs = [1, 2, 3, 5]


def wal_disk() -> SimulatedDisk:
    """Appends of two events, of one, and of two."""
    disk = SimulatedDisk()
    log = open_wal(disk)
    for keys in (("a", "b"), ("c",), ("d", "e")):
        log.append("r", notes(*keys))
    log.close()
    return disk.killed()


scenes: dict[str, Callable[[], Scene]] = {
    **{name: lambda case=case: (case.open, case.disk()) for name, case in cases.items()},  # type: ignore[misc]
    "wal": lambda: (open_wal, wal_disk()),
}


def held(disk: SimulatedDisk, records: list[Record]) -> set[int]:
    """The seqs of the events that stand anywhere on the disk."""
    everything = b"\n".join(data for data in disk.tree().values() if data)
    return {record.seq for record in records if record.body in everything}


def finish(opened: Callable[[SimulatedDisk], EventLog], disk: SimulatedDisk, event: Record) -> list[Record]:
    """What an operator does: repair what is damaged, and quarantine the event if it is still there."""
    log = opened(disk)
    if damage_in(list(log.verify("r"))):
        log.repair("r")
    if log.stream("r") is not None and event in stored(log, "r"):
        log.repair("r", quarantine=event.seq)
    assert damage_in(list(log.verify("r"))) == []
    left = stored(log, "r") if log.stream("r") is not None else []
    log.close()
    return left


@pytest.mark.parametrize("seq", seqs)
@pytest.mark.parametrize("name", scenes)
def test_a_failure_of_any_call_loses_no_event_and_the_quarantine_can_be_finished(name: str, seq: int) -> None:
    opened, start = scenes[name]()
    whole = stored(opened(start.killed()), "r")
    right = finish(opened, start.killed(), whole[seq - 1])
    faults = every_fault(start, opened, lambda log: log.repair("r", quarantine=seq), more_than=20)
    for during, disk, log in faults:
        with suppress(RunstateError):
            log.close()
        for crashed in (disk.killed(), *disk.crash_states(states_max=2)):
            assert held(crashed, whole) == {record.seq for record in whole}, during
            assert finish(opened, crashed, whole[seq - 1]) == right, during


@pytest.mark.parametrize("seq", seqs)
@pytest.mark.parametrize("name", scenes)
def test_a_power_cut_at_any_moment_loses_no_event_and_the_quarantine_can_be_finished(name: str, seq: int) -> None:
    opened, start = scenes[name]()
    whole = stored(opened(start.killed()), "r")
    right = finish(opened, start.killed(), whole[seq - 1])

    def quarantining(disk: SimulatedDisk) -> list[str]:
        opened(disk).repair("r", quarantine=seq)
        return ["quarantined"]

    seen = 0
    for crash in every_crash(quarantining, start.killed(), states_max=20):
        seen += 1
        assert held(crash.disk, whole) == {record.seq for record in whole}, crash.during
        assert finish(opened, crash.disk, whole[seq - 1]) == right, crash.during
    assert seen > 5


@pytest.mark.parametrize("name", ["ndjson-bare", "ndjson-framed"])
def test_a_power_cut_during_a_repair_inside_an_append_of_several_events_keeps_what_is_before_the_damage(
    name: str,
) -> None:
    """The announcement of that append must not come back: the rest would pass for an unfinished one."""
    case = cases[name]
    disk = case.disk().killed()
    whole, file = stored(case.open(disk.killed()), "r"), case.home / "events.ndjson"
    disk.flip_bit(file, len(disk.read(file).split(b"\n")[0]) + 40, 0)

    def repairing(disk: SimulatedDisk) -> list[str]:
        case.open(disk).repair("r")
        return ["repaired"]

    for crash in every_crash(repairing, disk, states_max=20):
        log = case.open(crash.disk)
        log.repair("r")
        assert stored(log, "r") == whole[:1], crash.during
