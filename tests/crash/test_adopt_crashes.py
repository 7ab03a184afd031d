"""Every disk that a crash can leave of a run directory that adopts another log's records: whole calls, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.crash.test_ndjson_crashes import (
    Form,
    batches,
    check_lasting,
    check_recovered,
    check_stored,
    each_form,
    root,
    sent,
    whole_batches,
)

from runstate.conformance.notes import findings, keys, stored
from runstate.conformance.simulated_disk import Operation, SimulatedDisk, every_crash, every_kill
from runstate.errors import AppendOutcomeUnknown, LogFailed
from runstate.logs.log import Record
from runstate.logs.ndjson import NdjsonLog


def held_elsewhere(form: Form) -> list[Record]:
    log = NdjsonLog(root, disk=SimulatedDisk())
    log.append("r", [form[1](key) for key in sent])
    return stored(log, "r")


def adopting(records: list[Record]) -> Callable[[SimulatedDisk], Iterator[str]]:
    def scenario(disk: SimulatedDisk) -> Iterator[str]:
        log, done = NdjsonLog(root, disk=disk), 0
        for batch in batches:
            # The stretch before comes along, as it does in a copy that is run again.
            assert log.adopt("r", records[max(0, done - 1) : done + len(batch)]) == len(batch)
            done += len(batch)
            yield from batch
        log.close()

    return scenario


@pytest.mark.slow
@each_form
def test_a_power_cut_leaves_whole_adoptions_that_can_be_gone_on_with(form: Form) -> None:
    records = held_elsewhere(form)
    for crash in every_crash(adopting(records), states_max=300):
        seen = check_stored(NdjsonLog(root, disk=crash.disk), crash.acknowledged, crash.during)
        assert len(seen) in whole_batches, crash.during
        log = NdjsonLog(root, disk=crash.disk.killed())
        log.adopt("r", records)
        assert stored(log, "r") == records, crash.during
        assert findings(log) == [], crash.during
        check_recovered(crash.disk, form, crash.acknowledged, crash.during)


@each_form
def test_a_kill_at_any_byte_leaves_whole_adoptions(form: Form) -> None:
    records = held_elsewhere(form)
    for crash in every_kill(adopting(records), SimulatedDisk(write_bytes_max=37)):
        seen = check_stored(NdjsonLog(root, disk=crash.disk), crash.acknowledged, crash.during)
        assert len(seen) in whole_batches, crash.during
        check_recovered(crash.disk, form, crash.acknowledged, crash.during)
        check_lasting(crash.disk, crash.during)


@each_form
def test_a_bare_line_stays_bare(form: Form) -> None:
    disk, records = SimulatedDisk(), held_elsewhere(form)
    NdjsonLog(root, disk=disk).adopt("r", records)
    lines = disk.read(root / "r" / "events.ndjson").split(b"\n")[:-1]
    assert [line == record.body for line, record in zip(lines, records, strict=True)] == [form[0] == "rundir"] * 5


@pytest.mark.parametrize(("operation", "error"), [("write", LogFailed), ("sync", AppendOutcomeUnknown)])
@each_form
def test_an_adoption_that_fails_leaves_nothing_and_succeeds_when_tried_again(
    form: Form, operation: Operation, error: type[Exception]
) -> None:
    disk, records = SimulatedDisk(), held_elsewhere(form)
    log = NdjsonLog(root, disk=disk)
    log.adopt("r", records[:1])
    disk.fail(operation, nth=2)  # The first is the announcement's.
    with pytest.raises(error):
        log.adopt("r", records)
    assert keys(stored(log, "r")) == sent[:1]
    assert log.adopt("r", records) == 4
    assert stored(log, "r") == records
