"""After a power cut in a deletion with a tombstone, the stream is whole, or it is gone and the tombstone is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

import pytest

from runstate.conformance.claims.tombstones import tombstone_of
from runstate.conformance.notes import keys, notes, stored
from runstate.conformance.simulated_disk import Operation, SimulatedDisk, every_crash
from runstate.errors import LogFailed, StreamDeleted
from runstate.logs.log import EventLog
from runstate.logs.ndjson import NdjsonLog
from runstate.logs.segments import SegmentsLog
from runstate.logs.wal import WalLog

Opening = Callable[[SimulatedDisk], EventLog]
root = PurePosixPath("/log")
logs: dict[str, Opening] = {
    "ndjson": lambda disk: NdjsonLog(root, disk=disk),
    "segments": lambda disk: SegmentsLog(root, disk=disk),
    "wal": lambda disk: WalLog(root, disk=disk),
}
earlier, later = tombstone_of("s", 1), tombstone_of("s", 2)


@pytest.fixture(params=logs)
def opening(request: pytest.FixtureRequest) -> Opening:
    return logs[request.param]


def filled(opening: Opening, *, is_restored: bool) -> SimulatedDisk:
    """A disk that holds the stream `s` of two events, which may have an earlier tombstone."""
    disk = SimulatedDisk()
    with opening(disk) as log:
        log.append("s", notes("a", "b"))
        if is_restored:
            records = stored(log, "s")
            log.delete_stream("s", tombstone=earlier)
            log.adopt("s", records, model="notes")
    return disk.killed()


@pytest.mark.parametrize("is_restored", [False, True], ids=["new", "restored"])
def test_a_deletion_leaves_the_whole_stream_or_its_tombstone(opening: Opening, is_restored: bool) -> None:
    def delete(disk: SimulatedDisk) -> Iterator[str]:
        with opening(disk) as log:
            log.delete_stream("s", tombstone=later)
            yield "deleted"

    outcomes = set()
    for crash in every_crash(delete, filled(opening, is_restored=is_restored), states_max=300):
        with opening(crash.disk) as log:
            is_there = log.stream("s") is not None
            assert keys(stored(log, "s")) == (["a", "b"] if is_there else []), crash.during
            assert log.tombstone("s") == (None if is_there else later), crash.during
            assert not (is_there and crash.acknowledged), crash.during
            assert list(log.verify()) == [], crash.during
            if is_there:
                assert log.append("s", notes("c"))[0].seq == 3, crash.during
            else:
                with pytest.raises(StreamDeleted):
                    log.append("s", notes("c"))
        outcomes.add(is_there)
    assert outcomes == {True, False}


def test_a_deletion_without_a_tombstone_leaves_no_earlier_one(opening: Opening) -> None:
    def delete(disk: SimulatedDisk) -> Iterator[str]:
        with opening(disk) as log:
            log.delete_stream("s")
            yield "deleted"

    outcomes = set()
    for crash in every_crash(delete, filled(opening, is_restored=True), states_max=300):
        with opening(crash.disk) as log:
            is_there = log.stream("s") is not None
            assert log.tombstone("s") is None, crash.during
            assert log.append("s", notes("c"))[0].seq == (3 if is_there else 1), crash.during
        outcomes.add(is_there)
    assert outcomes == {True, False}


steps: list[tuple[Operation, int]] = [
    ("make_directory", 1),
    ("sync_directory", 1),
    ("create", 1),
    ("write", 1),
    ("sync", 1),
    ("rename", 1),
    ("sync_directory", 2),
]


@pytest.mark.parametrize(("operation", "nth"), steps)
def test_a_deletion_whose_tombstone_cannot_be_written_leaves_the_stream(
    opening: Opening, operation: Operation, nth: int
) -> None:
    disk = filled(opening, is_restored=False)
    with opening(disk) as log:
        assert not log.append("s", notes("a"))[0].persisted  # The stream is loaded: the deletion only reads it.
        disk.fail(operation, nth=nth)
        with pytest.raises(LogFailed):
            log.delete_stream("s", tombstone=later)
        assert keys(stored(log, "s")) == ["a", "b"]
        assert log.tombstone("s") is None
        log.delete_stream("s", tombstone=later)
        assert log.tombstone("s") == later
