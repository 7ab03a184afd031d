"""Claims about collecting blobs: what a stream refers to stays, whatever else is deleted; the rest can be removed."""

from __future__ import annotations

from contextlib import suppress
from time import sleep

import pytest

from runstate.conformance.fixtures import LogKit, needs
from runstate.conformance.notes import note
from runstate.conformance.threads import meanwhile
from runstate.errors import BlobNotFound, LogBusy
from runstate.logs.blob_collection import BlobCollectingLog, Collected
from runstate.logs.log import BlobRef, Capability, EventLog


def collect(log: EventLog, *, dry_run: bool = False, grace_s: float | None = 0) -> Collected:
    assert isinstance(log, BlobCollectingLog), "a log that keeps blobs also collects them: collect_blobs"
    return log.collect_blobs(dry_run=dry_run, grace_s=grace_s)


def put(log: EventLog, stream: str, data: bytes) -> BlobRef:
    """Keep a blob, and append an event that refers to it."""
    ref = log.put_blob(data)
    log.append(stream, [note(f"{stream} {ref}", ref)])
    return ref


def put_unused(log: EventLog, data: bytes) -> BlobRef:
    """Keep a blob; the append that follows does not refer to it, so nothing ever will."""
    ref = log.put_blob(data)
    log.append("other", [note(f"not {data!r}")])
    return ref


def is_there(log: EventLog, ref: BlobRef) -> bool:
    try:
        log.get_blob(ref)
    except BlobNotFound:
        return False
    return True


class CollectionClaims(LogKit):
    """Blobs that no stream refers to any more."""

    @needs(Capability.BLOBS)
    def test_a_blob_that_no_stream_refers_to_is_collected(self, log: EventLog) -> None:
        unused, used = put_unused(log, b"unused"), put(log, "s", b"used")
        collected = collect(log)
        assert (collected.removed, collected.removed_bytes, collected.kept) == ([unused], 6, 1)
        assert not is_there(log, unused)
        assert log.get_blob(used) == b"used"
        assert list(log.verify()) == []

    @needs(Capability.BLOBS, Capability.DELETE)
    def test_a_blob_goes_with_the_last_stream_that_refers_to_it(self, log: EventLog) -> None:
        shared, own = put(log, "a", b"shared"), put(log, "a", b"own")
        assert put(log, "b", b"shared") == shared
        log.delete_stream("a")
        assert collect(log).removed == [own]
        assert log.get_blob(shared) == b"shared"
        log.delete_stream("b")
        assert collect(log).removed == [shared]
        assert not is_there(log, shared)

    @needs(Capability.BLOBS)
    def test_a_blob_that_was_just_put_is_not_collected(self, log: EventLog) -> None:
        recent = put_unused(log, b"recent")
        collected = collect(log, grace_s=3600)
        assert (collected.removed, collected.recent) == ([], 1)
        assert log.get_blob(recent) == b"recent"

    @needs(Capability.BLOBS)
    def test_a_dry_run_says_what_a_collection_would_remove(self, log: EventLog) -> None:
        unused = put_unused(log, b"unused")
        would = collect(log, dry_run=True)
        assert (would.removed, would.dry_run) == ([unused], True)
        assert log.get_blob(unused) == b"unused"
        assert collect(log).removed == would.removed

    @needs(Capability.BLOBS)
    def test_a_blob_that_was_collected_can_be_put_again(self, log: EventLog) -> None:
        put_unused(log, b"data")
        assert len(collect(log).removed) == 1
        ref = put(log, "s", b"data")
        assert collect(log).removed == []
        assert log.get_blob(ref) == b"data"

    @needs(Capability.BLOBS)
    def test_a_writer_loses_no_blob_to_a_collection(self, log: EventLog) -> None:
        def write(_: object) -> list[BlobRef]:
            return [_persist(log, f"blob {number}".encode()) for number in range(self.some(20))]

        with meanwhile(write) as writing:
            while not writing.done():
                with suppress(LogBusy):
                    collect(log, grace_s=None)
        for number, ref in enumerate(writing.result()):
            assert log.get_blob(ref) == f"blob {number}".encode()

    @needs(Capability.BLOBS)
    def test_a_collection_reads_streams_to_their_end(self, log: EventLog) -> None:
        refs = [log.put_blob(f"{number}".encode()) for number in range(3)]
        log.append("s", [note(f"k{n}", refs[n // 500] if n % 500 == 499 else "") for n in range(1500)])
        assert collect(log).removed == []
        assert [log.get_blob(ref) for ref in refs] == [b"0", b"1", b"2"]


def _persist(log: EventLog, data: bytes) -> BlobRef:
    """Put and append until it works: a collection may be at work."""
    for _ in range(10_000):
        with suppress(LogBusy):
            return put(log, "s", data)
        sleep(0.001)  # Otherwise all tries may be over before the collection has its turn.
    pytest.fail("the collection never ended")
