"""The files that hold the tombstones of file logs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from runstate.conformance.claims.tombstones import tombstone_of
from runstate.conformance.notes import keys, notes, stored
from runstate.conformance.threads import race
from runstate.errors import LogDamaged, LogFailed, StreamDeleted
from runstate.logs.log import EventLog
from runstate.logs.registry import open_log
from runstate.logs.segments import SegmentsLog

odd_ids = [".tombstones", "%.tombstones", "s.json", ".deleted", "é" * 100]


@pytest.fixture(params=["ndjson", "segments", "wal"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path / 'log'}"


@pytest.fixture
def log(url: str) -> Iterator[EventLog]:
    with open_log(url) as log:
        yield log


@pytest.fixture
def file(log: EventLog, tmp_path: Path) -> Path:
    """The file of a tombstone."""
    log.append("s", notes("a", "b"))
    log.delete_stream("s", tombstone=tombstone_of("s"))
    (found,) = (tmp_path / "log/.tombstones").iterdir()
    return found


def test_a_tombstone_is_a_private_file_named_for_its_stream(file: Path) -> None:
    assert file.name == "s.json"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_ids_like_names_of_the_log_have_tombstones_of_their_own(log: EventLog) -> None:
    for stream in ("s", *odd_ids):
        log.append(stream, notes("a"))
    for stream in odd_ids:
        log.delete_stream(stream, tombstone=tombstone_of(stream, 1))
    assert [log.tombstone(stream) for stream in odd_ids] == [tombstone_of(stream, 1) for stream in odd_ids]
    assert log.tombstone("s") is None
    assert [info.stream for info in log.streams()] == ["s"]
    assert list(log.verify()) == []


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[", b"\xff", b'{"stream":"t","lastSeq":2}', b'{"stream":"..","lastSeq":2}']
)
def test_a_damaged_tombstone_is_named_by_appends_and_verify(log: EventLog, file: Path, data: bytes) -> None:
    file.write_bytes(data)
    for call in (lambda: log.append("s", notes("c")), lambda: log.tombstone("s")):
        with pytest.raises(LogDamaged, match=r"s\.json.*backup.*remove") as caught:
            call()
        assert caught.value.details["path"] == str(file)
    assert [(each.code, each.details) for each in log.verify()] == [
        ("log.tombstone_damaged", {"file": ".tombstones/s.json"})
    ]
    assert log.append("t", notes("a"))[0].seq == 1


def test_a_damaged_tombstone_can_be_deleted(log: EventLog, file: Path) -> None:
    file.write_bytes(b"")
    log.delete_stream("s")
    assert not file.exists()
    assert log.append("s", notes("a"))[0].seq == 1


def test_an_unfinished_tombstone_of_a_killed_process_is_ignored(log: EventLog, file: Path) -> None:
    file.with_name("t.json.0123456789abcdef.tmp").write_bytes(b"{")
    assert log.tombstone("t") is None
    assert list(log.verify()) == []


def test_no_tombstone_is_written_through_a_link(log: EventLog, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "log/.tombstones").symlink_to(tmp_path / "outside")
    log.append("s", notes("a", "b"))
    with pytest.raises(LogFailed, match="symbolic link"):
        log.delete_stream("s", tombstone=tombstone_of("s"))
    assert keys(stored(log, "s")) == ["a", "b"]
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_refused_append_does_not_keep_others_from_restoring(log: EventLog, url: str) -> None:
    log.append("s", notes("a", "b"))
    records = stored(log, "s")
    log.delete_stream("s", tombstone=tombstone_of("s"))
    with pytest.raises(StreamDeleted):
        log.append("s", notes("c"))
    with open_log(url) as other:
        assert other.adopt("s", records, model="notes") == 2


def test_threads_that_append_at_once_are_all_refused(log: EventLog) -> None:
    """One that closes the deleted stream must not hold its lock while another opens it."""
    log.append("s", notes("a", "b"))
    log.delete_stream("s", tombstone=tombstone_of("s"))
    answers = [answer for _ in range(60) for answer in race([partial(log.append, "s", notes("c"))] * 8)]
    assert {type(answer) for answer in answers} == {StreamDeleted}


def test_gc_keeps_tombstones(tmp_path: Path) -> None:
    with SegmentsLog(tmp_path / "log") as log:
        log.append("s", notes("a", "b"))
        log.delete_stream("s", tombstone=tombstone_of("s"))
        log.collect_blobs()
        assert log.tombstone("s") == tombstone_of("s")
