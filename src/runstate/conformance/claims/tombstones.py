"""Claims about deleted streams that a log remembers: nothing begins them again by accident, and they can come back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
import pytest

from runstate.conformance.fixtures import LogKit, needs
from runstate.conformance.notes import keys, note, notes, numbered, stored
from runstate.conformance.threads import race
from runstate.errors import LogBusy, SequenceConflict, StreamDeleted, StreamNotFound, Unsupported
from runstate.logs.log import Capability, EventLog, Tombstone


def tombstone_of(stream: str, last_seq: int = 2) -> Tombstone:
    return Tombstone(stream, last_seq, "0" * 64, "archive:/srv/old ü\u2028runs", "2026-11-15T12:00:00.000Z")


class TombstoneClaims(LogKit):
    """What retention has deleted is remembered."""

    @needs(Capability.DELETE)
    def test_a_tombstone_is_all_that_is_left(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        assert log.tombstone("s") is None
        log.delete_stream("s", expected_seq=2, tombstone=tombstone_of("s"))
        assert log.tombstone("s") == tombstone_of("s")
        assert (log.read("s"), log.stream("s"), log.streams(), list(log.heads())) == ([], None, [], [])
        assert list(log.verify()) == []
        assert log.tombstone("never") is None

    @needs(Capability.DELETE)
    def test_no_append_begins_it_again(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        log.delete_stream("s", tombstone=tombstone_of("s"))
        for draft in (note("a"), note("new"), note("new", model="other")):
            for expected_seq in (None, 0, 2):
                with pytest.raises(StreamDeleted) as caught:
                    log.append("s", [draft], expected_seq=expected_seq)
                assert caught.value.details == msgspec.to_builtins(tombstone_of("s"))
                assert tombstone_of("s").archive in str(caught.value)
        assert (log.stream("s"), log.tombstone("s")) == (None, tombstone_of("s"))
        assert log.append("s", []) == []
        assert log.append("t", notes("a"))[0].seq == 1

    @needs(Capability.DELETE)
    def test_appends_beside_a_refused_one_are_stored(self, log: EventLog) -> None:
        for stream in ("s", "t"):
            log.append(stream, notes("a"))
        log.delete_stream("s", tombstone=tombstone_of("s"))
        sends = [partial(log.append, stream, notes(f"k{n}")) for n in range(8) for stream in ("s", "t", f"u{n}")]
        answers = race(sends)
        assert [isinstance(answer, StreamDeleted) for answer in answers] == [True, False, False] * 8
        assert len(stored(log, "t")) == 9

    @needs(Capability.DELETE)
    def test_a_refused_deletion_leaves_no_tombstone(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        with pytest.raises(SequenceConflict):
            log.delete_stream("s", expected_seq=1, tombstone=tombstone_of("s"))
        with pytest.raises(StreamNotFound):
            log.delete_stream("nowhere", tombstone=tombstone_of("nowhere"))
        assert (log.tombstone("s"), log.tombstone("nowhere")) == (None, None)
        assert log.append("s", notes("c"))[0].seq == 3
        assert log.append("nowhere", notes("a"))[0].seq == 1

    @needs(Capability.DELETE, Capability.ADOPT)
    def test_adopting_brings_it_back(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        before = stored(log, "s")
        log.delete_stream("s", tombstone=tombstone_of("s"))
        assert log.adopt("s", before, model="notes") == 2
        assert (stored(log, "s"), log.tombstone("s")) == (before, None)
        assert [result.persisted for result in log.append("s", notes("b", "c"))] == [False, True]
        log.delete_stream("s", tombstone=tombstone_of("s", 3))
        assert log.tombstone("s") == tombstone_of("s", 3)

    @needs(Capability.DELETE, Capability.ADOPT)
    def test_it_counts_until_the_last_event_is_back(self, log: EventLog) -> None:
        log.append("s", notes("a", "b", "c"))
        before = stored(log, "s")
        log.delete_stream("s", tombstone=tombstone_of("s", 3))
        for count in (1, 2):
            assert log.adopt("s", before[:count], model="notes") == 1
            assert log.tombstone("s") == tombstone_of("s", 3)
            for draft in (note("a"), note("c"), note("new")):
                with pytest.raises(StreamDeleted) as caught:
                    log.append("s", [draft])
                assert caught.value.details == msgspec.to_builtins(tombstone_of("s", 3))
            assert keys(stored(log, "s")) == ["a", "b", "c"][:count]
        assert log.adopt("s", before, model="notes") == 1
        assert (stored(log, "s"), log.tombstone("s")) == (before, None)
        assert [result.persisted for result in log.append("s", notes("c", "d"))] == [False, True]
        assert list(log.verify()) == []

    @needs(Capability.DELETE, Capability.ADOPT)
    def test_a_stream_that_is_half_restored_can_be_deleted_and_restored_again(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        before = stored(log, "s")
        log.delete_stream("s", tombstone=tombstone_of("s"))
        log.adopt("s", before[:1], model="notes")
        log.delete_stream("s", tombstone=tombstone_of("s"))
        assert (log.stream("s"), log.tombstone("s")) == (None, tombstone_of("s"))
        log.adopt("s", before[:1], model="notes")
        log.delete_stream("s")
        assert log.tombstone("s") is None
        assert log.append("s", notes("a"))[0].seq == 1

    @needs(Capability.DELETE)
    def test_a_tombstone_can_be_forgotten(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        log.delete_stream("s", tombstone=tombstone_of("s"))
        log.delete_stream("s")
        assert log.tombstone("s") is None
        with pytest.raises(StreamNotFound):
            log.delete_stream("s")
        assert log.append("s", notes("a"))[0].seq == 1
        assert keys(stored(log, "s")) == ["a"]

    @needs(Capability.DELETE, Capability.ADOPT)
    def test_a_later_deletion_without_a_tombstone_leaves_none(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        before = stored(log, "s")
        log.delete_stream("s", tombstone=tombstone_of("s"))
        log.adopt("s", before, model="notes")
        log.delete_stream("s")
        assert log.tombstone("s") is None
        assert log.append("s", notes("a"))[0].seq == 1

    @needs(Capability.DELETE, Capability.ADOPT)
    def test_racing_restores_bring_it_back_whole(self, log: EventLog) -> None:
        log.append("s", numbered(9))
        before = stored(log, "s")
        log.delete_stream("s", tombstone=tombstone_of("s", 9))

        def restore() -> None:
            for end in (3, 6, 9):
                log.adopt("s", before[:end], model="notes")

        def send() -> None:
            with suppress(StreamDeleted):
                assert log.append("s", [before_last])[0].seq == 9

        before_last = note("k9")
        answers = race([*[restore] * 4, *[send] * 4])
        assert [answer for answer in answers if answer is not None and not isinstance(answer, LogBusy)] == []
        log.adopt("s", before, model="notes")
        assert (stored(log, "s"), log.tombstone("s")) == (before, None)
        assert log.append("s", notes("new"))[0].seq == 10
        assert list(log.verify()) == []

    @needs(Capability.DELETE)
    def test_racing_appends_never_begin_it_again(self, log: EventLog) -> None:
        log.append("s", notes("a"))

        def send(number: int) -> bool:
            try:
                return log.append("s", notes(f"k{number}"))[0].seq > 1
            except StreamDeleted:
                return False

        def delete() -> bool:
            try:
                log.delete_stream("s", expected_seq=1, tombstone=tombstone_of("s"))
            except (SequenceConflict, LogBusy):
                return False
            return True

        tasks: list[Callable[[], bool]] = [*[partial(send, number) for number in range(12)], delete]
        *sent, is_deleted = race(tasks)
        if isinstance(is_deleted, Unsupported):
            raise is_deleted
        if is_deleted:
            assert not any(sent)
            assert log.stream("s") is None
        else:
            assert all(sent)
            assert len(stored(log, "s")) == 13
