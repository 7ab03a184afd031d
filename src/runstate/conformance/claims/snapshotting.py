"""Claims about snapshots in the commit of their events, for a log that is a `SnapshottingLog`.

Any other log only has to append: nothing is saved there, and a caller saves it later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from runstate.conformance.fixtures import LogKit, needs
from runstate.conformance.notes import keys, note, notes, snapshot, stored
from runstate.conformance.threads import race_all
from runstate.errors import RunstateError, SequenceConflict
from runstate.logs.bulk import Answer
from runstate.logs.log import Capability, EventLog, Record, StoredSnapshot
from runstate.logs.snapshotting import SnapshottingLog, StreamEnd, append_batch, append_batches
from runstate.models.canonical import digest


class Making:
    """Makes a snapshot for each call, and remembers what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[StreamEnd, list[Record]]] = []

    def __call__(self, end: StreamEnd, records: Sequence[Record]) -> StoredSnapshot:
        self.calls.append((end, list(records)))
        return snapshot(records[-1].seq, text=records[-1].key)


class SnapshottingClaims(LogKit):
    """A snapshot that is saved with an append is there as soon as the append is, and never without it."""

    @needs(Capability.SNAPSHOTS)
    def test_a_snapshot_is_saved_with_its_events(self, log: EventLog) -> None:
        for step in (["a", "b"], ["c"]):
            append_batch(log, "s", notes(*step), Making(), None)
            assert saved(log, "s") in _if_saved(log, snapshot(len(stored(log, "s")), text=step[-1]))

    def test_it_is_made_of_the_new_records_behind_the_end_of_the_stream(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        making = Making()
        append_batch(log, "s", notes("b", "c", "d"), making, None)
        first, last, *new = stored(log, "s")
        end = StreamEnd(first.persisted_at, 2, digest(last.body))
        assert making.calls[-1:] in _if_saved(log, [(end, new)], or_not=[])

    def test_a_new_stream_has_no_end(self, log: EventLog) -> None:
        making = Making()
        append_batch(log, "s", notes("a"), making, None)
        assert making.calls[-1:] in _if_saved(log, [(StreamEnd(), stored(log, "s"))], or_not=[])

    @needs(Capability.SNAPSHOTS)
    def test_a_refused_append_saves_nothing(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        with pytest.raises(SequenceConflict):
            append_batch(log, "s", notes("b"), Making(), 5)
        assert saved(log, "s") is None

    @needs(Capability.SNAPSHOTS)
    def test_a_retry_saves_no_snapshot(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        append_batch(log, "s", notes("a"), Making(), None)
        assert saved(log, "s") is None

    @needs(Capability.SNAPSHOTS)
    def test_where_none_is_made_the_events_are_appended_all_the_same(self, log: EventLog) -> None:
        append_batch(log, "s", notes("a"), lambda _end, _records: None, None)
        assert (keys(stored(log, "s")), saved(log, "s")) == (["a"], None)

    @needs(Capability.SNAPSHOTS)
    def test_a_snapshot_replaces_one_that_lies_beyond_the_end(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        log.save_snapshot("s", snapshot(9, text="beyond"))
        beyond = saved(log, "s")  # A log may refuse to keep it.
        append_batch(log, "s", notes("b"), Making(), None)
        assert saved(log, "s") in _if_saved(log, snapshot(2, text="b"), or_not=beyond)

    @needs(Capability.SNAPSHOTS)
    def test_many_streams_get_a_snapshot_each_and_a_refused_one_gets_none(self, log: EventLog) -> None:
        log.append("theirs", [note("a", tenant="t-1")])
        batches = [("s", notes("a")), ("theirs", [note("b", tenant="t-2")]), ("t", notes("a", "b"))]
        _, refused, _ = append_batches(log, batches, Making())
        assert isinstance(refused, RunstateError)
        assert saved(log, "theirs") is None
        assert saved(log, "s") in _if_saved(log, snapshot(1, text="a"))
        assert saved(log, "t") in _if_saved(log, snapshot(2, text="b"))

    @needs(Capability.SNAPSHOTS)
    def test_racing_callers_leave_the_snapshot_of_the_last_event(self, log: EventLog) -> None:
        def append(caller: int) -> list[Answer]:
            return [append_batch(log, "s", notes(f"{caller}-{number}"), Making(), None) for number in range(10)]

        race_all([partial(append, caller) for caller in range(4)])
        last = stored(log, "s")[-1]
        assert saved(log, "s") in _if_saved(log, snapshot(40, text=last.key))


def saved(log: EventLog, stream: str) -> StoredSnapshot | None:
    return log.load_snapshot(stream, "notes")


def _if_saved(log: EventLog, expected: object, *, or_not: object = None) -> list[object]:
    return [expected if isinstance(log, SnapshottingLog) else or_not]
