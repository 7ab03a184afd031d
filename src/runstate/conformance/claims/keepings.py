"""Claims about what a log keeps beside events: snapshots and blobs; and about deleting a stream with all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import sleep

import pytest
from msgspec.structs import replace

from runstate.conformance.fixtures import LogKit, needs
from runstate.conformance.notes import keys, note, notes, numbered, snapshot, stored
from runstate.conformance.threads import meanwhile
from runstate.errors import BlobNotFound, SequenceConflict, StreamNotFound
from runstate.logs.log import BlobRef, Capability, EventLog
from runstate.logs.saving import save_snapshots

long_ago = "2001-01-01T00:00:00.000Z"


class SnapshotClaims(LogKit):
    """Promise 7."""

    @needs(Capability.SNAPSHOTS)
    def test_a_snapshot_comes_back_as_it_was_saved(self, log: EventLog) -> None:
        log.append("s", numbered(3))
        log.save_snapshot("s", saved := snapshot(3, text="ü€🜁\u2028" * 5000))
        assert log.load_snapshot("s", "notes") == saved

    @needs(Capability.SNAPSHOTS)
    def test_there_is_no_snapshot_until_one_is_saved(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        assert log.load_snapshot("s", "notes") is None
        assert log.load_snapshot("nowhere", "notes") is None

    @needs(Capability.SNAPSHOTS)
    def test_a_newer_snapshot_replaces_an_older_one(self, log: EventLog) -> None:
        log.append("s", numbered(3))
        log.save_snapshot("s", snapshot(1))
        log.save_snapshot("s", newer := snapshot(3))
        assert log.load_snapshot("s", "notes") == newer

    @needs(Capability.SNAPSHOTS)
    def test_a_snapshot_never_goes_backwards(self, log: EventLog) -> None:
        log.append("s", numbered(3))
        log.save_snapshot("s", newer := snapshot(3))
        log.save_snapshot("s", snapshot(2))
        assert log.load_snapshot("s", "notes") == newer

    @needs(Capability.SNAPSHOTS)
    def test_a_snapshot_can_be_rebuilt_at_the_same_seq(self, log: EventLog) -> None:
        log.append("s", numbered(3))
        log.save_snapshot("s", snapshot(3, text="damaged"))
        log.save_snapshot("s", rebuilt := snapshot(3, text="rebuilt"))
        assert log.load_snapshot("s", "notes") == rebuilt

    @needs(Capability.SNAPSHOTS)
    def test_a_snapshot_of_another_version_replaces_the_kept_one_at_any_seq(self, log: EventLog) -> None:
        for version in (1, 3):
            stream = f"s{version}"
            log.append(stream, numbered(3))
            log.save_snapshot(stream, snapshot(3, version=2))
            log.save_snapshot(stream, other := snapshot(1, version=version))
            assert log.load_snapshot(stream, "notes") == other

    @needs(Capability.SNAPSHOTS)
    def test_every_model_and_stream_has_a_snapshot_of_its_own(self, log: EventLog) -> None:
        for name in ("s", "t"):
            log.append(name, numbered(3))
        log.save_snapshot("s", one := snapshot(1, model="one"))
        log.save_snapshot("s", two := snapshot(2, model="two"))
        log.save_snapshot("t", three := snapshot(3, model="one"))
        assert [log.load_snapshot("s", "one"), log.load_snapshot("s", "two")] == [one, two]
        assert [log.load_snapshot("t", "one"), log.load_snapshot("t", "two")] == [three, None]

    @needs(Capability.SNAPSHOTS)
    def test_a_snapshot_of_a_stream_that_is_not_there_is_refused(self, log: EventLog) -> None:
        with pytest.raises(StreamNotFound):
            log.save_snapshot("nowhere", snapshot(1))
        assert log.stream("nowhere") is None
        assert log.load_snapshot("nowhere", "notes") is None

    @needs(Capability.SNAPSHOTS)
    def test_many_snapshots_at_once_are_kept_as_one_by_one(self, log: EventLog) -> None:
        for name in ("t", "s"):
            log.append(name, numbered(3))
        log.save_snapshot("s", newer := snapshot(3, model="one"))
        new = [
            ("t", snapshot(1, model="one")),
            ("s", snapshot(2, model="one")),
            ("nowhere", snapshot(1, model="one")),
            ("s", snapshot(2, model="two", text="ü€🜁\u2028")),
            ("t", snapshot(2, model="one")),
        ]
        save_snapshots(log, new)
        save_snapshots(log, [])
        assert [log.load_snapshot("s", "one"), log.load_snapshot("s", "two")] == [newer, new[3][1]]
        assert log.load_snapshot("t", "one") == new[4][1]
        assert log.stream("nowhere") is None
        assert list(log.verify()) == []

    @needs(Capability.SNAPSHOTS)
    def test_a_log_with_snapshots_has_no_findings(self, log: EventLog) -> None:
        log.append("s", numbered(3))
        log.save_snapshot("s", snapshot(3))
        assert list(log.verify()) == []


class DeletionClaims(LogKit):
    """A stream goes whole, and what goes is gone."""

    @needs(Capability.DELETE)
    def test_a_deleted_stream_is_gone_from_every_answer(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        log.delete_stream("s")
        assert (log.read("s"), list(log.lines("s")), log.find("s", "a")) == ([], [], None)
        assert (log.stream("s"), log.streams()) == (None, [])
        assert list(log.verify()) == []

    @needs(Capability.DELETE)
    def test_deleting_leaves_other_streams_alone(self, log: EventLog) -> None:
        for name in ("s", "s2", "S"):
            log.append(name, numbered(3))
        before = [(stored(log, name), log.stream(name)) for name in ("s2", "S")]
        log.delete_stream("s")
        assert [(stored(log, name), log.stream(name)) for name in ("s2", "S")] == before

    @needs(Capability.DELETE)
    def test_a_deleted_stream_can_start_again(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        log.delete_stream("s")
        (result,) = log.append("s", [note("b", "other", tenant="t-2")], expected_seq=0)
        assert (result.seq, result.persisted, result.mismatch) == (1, True, False)
        assert keys(stored(log, "s")) == ["b"]
        info = log.stream("s")
        assert info is not None
        assert (info.tenant, info.events, info.first_persisted_at) == ("t-2", 1, result.persisted_at)

    @needs(Capability.DELETE)
    def test_a_stream_begun_again_has_another_version(self, log: EventLog) -> None:
        log.append("s", [note("a", "one")])
        (before,) = log.heads()
        log.delete_stream("s")
        assert list(log.heads()) == []
        log.append("s", [note("a", "another")])
        (after,) = log.heads()
        assert after.version != before.version

    @needs(Capability.DELETE)
    def test_deleting_what_is_not_there_is_refused(self, log: EventLog) -> None:
        with pytest.raises(StreamNotFound):
            log.delete_stream("nowhere")
        log.append("s", notes("a"))
        log.delete_stream("s")
        with pytest.raises(StreamNotFound):
            log.delete_stream("s")

    @needs(Capability.DELETE, Capability.SNAPSHOTS)
    def test_snapshots_go_with_their_stream(self, log: EventLog) -> None:
        log.append("s", numbered(3))
        log.save_snapshot("s", snapshot(3))
        log.delete_stream("s")
        assert log.load_snapshot("s", "notes") is None
        log.append("s", notes("again"))
        assert log.load_snapshot("s", "notes") is None
        log.save_snapshot("s", early := snapshot(1))
        assert log.load_snapshot("s", "notes") == early

    @needs(Capability.DELETE)
    def test_a_stream_that_has_moved_on_is_not_deleted(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        before = (stored(log, "s"), log.stream("s"))
        for wrong in (-1, 0, 1, 3, 2**53):
            with pytest.raises(SequenceConflict) as caught:
                log.delete_stream("s", expected_seq=wrong)
            assert caught.value.details == {"stream": "s", "actual_seq": 2, "expected_seq": wrong}
            assert (stored(log, "s"), log.stream("s")) == before
        log.delete_stream("s", expected_seq=2)
        assert log.stream("s") is None

    @needs(Capability.DELETE, Capability.SNAPSHOTS)
    def test_a_refused_deletion_leaves_the_snapshots(self, log: EventLog) -> None:
        log.append("s", numbered(3))
        log.save_snapshot("s", kept := snapshot(3))
        with pytest.raises(SequenceConflict):
            log.delete_stream("s", expected_seq=2)
        assert log.load_snapshot("s", "notes") == kept

    @needs(Capability.DELETE)
    def test_a_stream_that_was_begun_again_is_not_deleted(self, log: EventLog) -> None:
        log.append("s", notes("a", "b"))
        before = (stored(log, "s"), log.stream("s"))
        with pytest.raises(SequenceConflict, match="begun again"):
            log.delete_stream("s", expected_seq=2, first_persisted_at=long_ago)
        assert (stored(log, "s"), log.stream("s")) == before
        log.delete_stream("s", first_persisted_at=before[0][0].persisted_at)
        assert log.stream("s") is None

    @needs(Capability.SNAPSHOTS)
    def test_a_snapshot_beyond_the_end_of_the_stream_stands_in_no_other_ones_way(self, log: EventLog) -> None:
        log.append("s", numbered(3))
        log.save_snapshot("s", snapshot(9))
        log.save_snapshot("s", snapshot(3))
        assert log.load_snapshot("s", "notes") == snapshot(3)

    @needs(Capability.SNAPSHOTS)
    def test_a_snapshot_of_an_earlier_stream_is_not_kept(self, log: EventLog) -> None:
        began_at = log.append("s", numbered(3))[0].persisted_at
        log.save_snapshot("s", replace(snapshot(3), first_persisted_at=long_ago))
        assert log.load_snapshot("s", "notes") is None
        log.save_snapshot("s", replace(snapshot(2), first_persisted_at=began_at))
        save_snapshots(log, [("s", replace(snapshot(3), first_persisted_at=long_ago))])
        assert log.load_snapshot("s", "notes") == snapshot(2)

    @needs(Capability.DELETE)
    def test_what_is_not_there_is_not_at_seq_0_either(self, log: EventLog) -> None:
        with pytest.raises(StreamNotFound):
            log.delete_stream("nowhere", expected_seq=0)

    @needs(Capability.DELETE)
    def test_a_checked_deletion_that_races_appends_loses_none(self, log: EventLog) -> None:
        sent = [notes(f"{number}a", f"{number}b") for number in range(self.some(60))]

        def write() -> None:
            for drafts in sent:
                log.append("s", drafts)
                sleep(0.0002)  # Otherwise a fast log has all of them before the first deletion.

        log.append("s", notes("first"))
        with meanwhile(partial(delete_again_and_again, log, "s")) as deleter:
            write()
        deleted = deleter.result()
        kept = deleted + keys(stored(log, "s"))
        assert sorted(kept) == sorted(["first", *(draft.key for drafts in sent for draft in drafts)])


def delete_again_and_again(log: EventLog, stream: str, is_over: Callable[[], bool]) -> list[str]:
    """Read a stream and delete it at what was read, as a retention does, until told to stop; the keys that went."""
    gone: list[str] = []
    while not is_over() or not gone:
        found = stored(log, stream)
        if found:
            with suppress(SequenceConflict):
                log.delete_stream(stream, expected_seq=found[-1].seq)
                gone += keys(found)
    return gone


class BlobClaims(LogKit):
    """Bytes under their digest."""

    @needs(Capability.BLOBS)
    def test_a_blob_comes_back_byte_for_byte(self, log: EventLog) -> None:
        for data in (b"", b"\0\xff\n" * 7, "ü€🜁".encode(), b"x" * 3_000_000):
            assert log.get_blob(log.put_blob(data)) == data

    @needs(Capability.BLOBS)
    def test_a_blob_is_named_by_its_digest(self, log: EventLog) -> None:
        assert log.put_blob(b"data") == f"sha256:{hashlib.sha256(b'data').hexdigest()}"

    @needs(Capability.BLOBS)
    def test_the_same_bytes_are_one_blob(self, log: EventLog) -> None:
        assert log.put_blob(b"data") == log.put_blob(b"data")
        assert log.put_blob(b"other") != log.put_blob(b"data")
        assert list(log.verify()) == []

    @needs(Capability.BLOBS)
    def test_a_blob_that_is_not_there_is_not_found(self, log: EventLog) -> None:
        log.put_blob(b"data")
        for ref in (f"sha256:{'0' * 64}", "", "sha256:", "sha256:../../x", "md5:00", "nonsense\0"):
            with pytest.raises(BlobNotFound):
                log.get_blob(BlobRef(ref))

    @needs(Capability.BLOBS)
    def test_a_digest_alone_names_no_blob(self, log: EventLog) -> None:
        ref = log.put_blob(b"data")
        with pytest.raises(BlobNotFound):
            log.get_blob(BlobRef(ref.removeprefix("sha256:")))

    @needs(Capability.BLOBS, Capability.DELETE)
    def test_blobs_outlive_the_deletion_of_a_stream(self, log: EventLog) -> None:
        log.append("s", notes("a"))
        ref = log.put_blob(b"data")
        log.delete_stream("s")
        assert log.get_blob(ref) == b"data"
