"""Claims about a quarantine: one event leaves its stream, the rest is as it was, and nothing else is touched."""

from __future__ import annotations

import pytest

from runstate.conformance.fixtures import LogKit, needs
from runstate.conformance.notes import keys, notes, snapshot, stored
from runstate.errors import EventNotFound, StreamNotFound
from runstate.logs.log import Capability, EventLog


def damage(log: EventLog) -> list[str]:
    return [finding.message for finding in log.verify() if finding.severity == "damage"]


def fill(log: EventLog) -> None:
    """Two streams of five events, one with a snapshot."""
    for stream in ("s", "other"):
        log.append(stream, notes("a", "b"))
        log.append(stream, notes("c", "d", "e"))
    if Capability.SNAPSHOTS in log.capabilities:
        log.save_snapshot("s", snapshot(5))


class QuarantineClaims(LogKit):
    """`repair(stream, quarantine=seq)`."""

    @pytest.mark.parametrize("seq", [1, 3, 5])
    @needs(Capability.REPAIR)
    def test_the_event_leaves_and_what_stays_is_as_it_was(self, log: EventLog, seq: int) -> None:
        fill(log)
        before, other = stored(log, "s"), stored(log, "other")
        log.repair("s", quarantine=seq)
        left = stored(log, "s")
        without = [record for record in before if record.seq != seq]
        assert left in (without, before[: seq - 1])  # The rest, or what is before it where lines are numbered.
        assert stored(log, "other") == other
        assert damage(log) == []

    @pytest.mark.parametrize("seq", [1, 3, 5])
    @needs(Capability.REPAIR)
    def test_the_stream_goes_on(self, log: EventLog, seq: int) -> None:
        fill(log)
        log.repair("s", quarantine=seq)
        left = keys(stored(log, "s"))
        log.append("s", notes("f"))
        assert keys(stored(log, "s")) == [*left, "f"]
        assert damage(log) == []

    @needs(Capability.REPAIR)
    def test_it_says_the_same_before_and_after(self, log: EventLog) -> None:
        fill(log)
        would = log.repair("s", quarantine=3, dry_run=True)
        assert [(finding.code, finding.seq) for finding in would] == [("log.quarantined", 3)]
        assert log.repair("s", quarantine=3) == would

    @needs(Capability.REPAIR)
    def test_a_dry_run_changes_nothing(self, log: EventLog) -> None:
        fill(log)
        before = stored(log, "s"), list(log.verify()), log.stream("s")
        log.repair("s", quarantine=3, dry_run=True)
        assert (stored(log, "s"), list(log.verify()), log.stream("s")) == before

    @needs(Capability.REPAIR, Capability.SNAPSHOTS)
    def test_no_snapshot_that_knows_the_event_stays(self, log: EventLog) -> None:
        fill(log)
        assert log.load_snapshot("s", "notes") is not None
        log.repair("s", quarantine=3)
        assert log.load_snapshot("s", "notes") is None

    @needs(Capability.REPAIR)
    def test_the_event_can_be_appended_again(self, log: EventLog) -> None:
        fill(log)
        log.repair("s", quarantine=3)
        (again,) = log.append("s", notes("c"))
        assert again.persisted
        assert keys(stored(log, "s"))[-1] == "c"

    @needs(Capability.REPAIR)
    def test_what_was_set_aside_is_a_warning_of_verify(self, log: EventLog) -> None:
        fill(log)
        log.repair("s", quarantine=3)
        aside = [finding for finding in log.verify() if finding.code == "log.set_aside"]
        assert aside
        assert {finding.stream for finding in aside} == {"s"}

    @needs(Capability.REPAIR)
    def test_the_version_of_the_stream_changes(self, log: EventLog) -> None:
        fill(log)
        before = {head.stream: head.version for head in log.heads()}
        log.repair("s", quarantine=3)
        after = {head.stream: head.version for head in log.heads()}
        assert after["s"] != before["s"]
        assert after["other"] == before["other"]

    @pytest.mark.parametrize("seq", [6, 99])
    @needs(Capability.REPAIR)
    def test_an_event_that_is_not_there_is_refused(self, log: EventLog, seq: int) -> None:
        fill(log)
        before = stored(log, "s")
        for dry_run in (True, False):
            with pytest.raises(EventNotFound):
                log.repair("s", quarantine=seq, dry_run=dry_run)
        assert stored(log, "s") == before

    @needs(Capability.REPAIR)
    def test_a_stream_that_is_not_there_is_refused(self, log: EventLog) -> None:
        fill(log)
        with pytest.raises(StreamNotFound):
            log.repair("none", quarantine=1)

    @needs(Capability.REPAIR)
    def test_a_salvage_does_not_bring_the_event_back(self, log: EventLog) -> None:
        fill(log)
        log.repair("s", quarantine=5)
        left = stored(log, "s")
        log.repair("s", salvage=True)
        assert stored(log, "s") == left

    @needs(Capability.REPAIR, Capability.FEED)
    def test_a_reader_of_the_feed_that_has_passed_the_event_misses_nothing(self, log: EventLog) -> None:
        fill(log)
        position = log.feed(limit=1000).next
        for seq in (3, 5):
            log.repair("s", quarantine=seq)
        log.append("s", notes("f"))
        page = log.feed(after=position, limit=1000)
        assert [record.key for record in page.records if record.stream == "s"][-1] == "f"
        whole = log.feed(limit=1000).records
        assert {record.key for record in whole if record.stream == "s"} == set(keys(stored(log, "s")))
