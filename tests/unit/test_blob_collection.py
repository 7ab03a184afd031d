"""Blobs that no stream refers to are collected; in any doubt, nothing is."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.commands import Cli
from tests.log_urls import url_at

from runstate.conformance.notes import note, snapshot
from runstate.errors import BlobNotFound, LogBusy, LogDamaged
from runstate.logs.blob_collection import BlobCollectingLog, Collected
from runstate.logs.log import BlobRef, EventLog
from runstate.logs.memory import MemoryLog
from runstate.logs.registry import open_log
from runstate.logs.sqlite import SqliteLog
from runstate.logs.wal import WalLog
from runstate.storage.disk import RealDisk

on_files = ["sqlite", "ndjson", "wal", "segments"]
in_files = ["ndjson", "wal"]


def collect(log: EventLog, grace_s: float = 0) -> Collected:
    assert isinstance(log, BlobCollectingLog)
    return log.collect_blobs(grace_s=grace_s)


@pytest.fixture(params=on_files)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_at(request.param, tmp_path / "log")


def write(url: str, *texts: str) -> BlobRef:
    """A stream with these texts, and a blob that nothing refers to."""
    with open_log(url) as log:
        unused = log.put_blob(b"unused")
        log.append("s", [note(f"k{number}", text) for number, text in enumerate(("first", *texts))])
    return unused


def change_a_byte(url: str, old: bytes, new: bytes) -> None:
    """Damage an event where it is stored."""
    if url.startswith("sqlite:"):
        with sqlite3.connect(url.removeprefix("sqlite:")) as database:
            database.execute("DROP TRIGGER events_are_never_updated")
            database.execute("UPDATE events SET body = CAST(replace(body, ?, ?) AS BLOB)", (old.decode(), new.decode()))
        return
    for path in Path(url.partition(":")[2]).rglob("*"):
        if path.is_file() and old in path.read_bytes():
            path.write_bytes(path.read_bytes().replace(old, new))


def test_a_damaged_log_is_not_collected(url: str) -> None:
    unused = write(url, "second")
    change_a_byte(url, b"first", b"f1rst")
    with open_log(url) as log:
        with pytest.raises(LogDamaged):
            collect(log)
        assert log.get_blob(unused) == b"unused"


def test_a_log_with_events_of_no_stream_is_not_collected(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        used = log.put_blob(b"used")
        log.append("s", [note("a", used)])
        _sql(tmp_path / "log.db", "DELETE FROM streams")
        with pytest.raises(LogDamaged):
            collect(log)
        assert log.get_blob(used) == b"used"


def test_what_a_repair_has_set_aside_keeps_its_blobs(url: str) -> None:
    with open_log(url) as log:
        evidence = log.put_blob(b"evidence")
        log.append("s", [note("a", "first")])
        log.append("s", [note("b", evidence)])
    change_a_byte(url, b'"key":"b"', b'"key":"c"')
    with open_log(url) as log:
        assert log.repair("s")
        assert evidence.encode() not in b"".join(log.lines("s"))
        assert collect(log).removed == []
        assert log.get_blob(evidence) == b"evidence"


def test_a_checkpoint_keeps_the_blobs_of_events_that_were_dropped(tmp_path: Path) -> None:
    with WalLog(tmp_path / "log") as log:
        kept = log.put_blob(b"kept")
        log.append("s", [note("a", kept), note("b"), note("c")])
        for seq in (2, 3):
            log.checkpoint("s", snapshot(seq, text=kept))
        assert kept.encode() not in b"".join(log.lines("s", after_seq=2))
        assert collect(log).removed == []


@pytest.mark.parametrize("scheme", in_files)
def test_a_blob_that_is_put_again_counts_as_new(tmp_path: Path, scheme: str) -> None:
    with open_log(url_at(scheme, tmp_path / "log")) as log:
        ref = log.put_blob(b"data")
        path = tmp_path / "log/.blobs/sha256" / ref.removeprefix("sha256:")
        os.utime(path, (0, 0))
        log.put_blob(b"data")
        assert collect(log, grace_s=3600).recent == 1
        os.utime(path, (0, 0))
        assert collect(log, grace_s=3600).removed == [ref]


def test_a_blob_that_is_put_again_in_sqlite_counts_as_new(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        ref = log.put_blob(b"data")
        _sql(tmp_path / "log.db", "UPDATE blob_puts SET put_at = 0")
        log.put_blob(b"data")
        assert collect(log, grace_s=3600).recent == 1
        _sql(tmp_path / "log.db", "UPDATE blob_puts SET put_at = 0")
        assert collect(log, grace_s=3600).removed == [ref]


def test_a_blob_of_an_earlier_version_stays_until_the_collection_after_next(tmp_path: Path) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        ref = log.put_blob(b"data")
        _sql(tmp_path / "log.db", "DROP TABLE blob_puts")
        assert log.collect_blobs(dry_run=True, grace_s=0).recent == 1
        assert collect(log).recent == 1
        assert collect(log).removed == [ref]


@pytest.mark.parametrize("scheme", in_files)
def test_no_blob_is_removed_while_one_is_put(tmp_path: Path, scheme: str) -> None:
    with open_log(url_at(scheme, tmp_path / "log")) as log:
        ref = log.put_blob(b"data")
        lock = RealDisk().lock(tmp_path / "log/.locks/.blobs", shared=True)
        with pytest.raises(LogBusy):
            collect(log)
        lock.release()
        assert collect(log).removed == [ref]


@pytest.mark.parametrize("scheme", in_files)
def test_no_blob_is_put_while_some_are_removed(tmp_path: Path, scheme: str) -> None:
    with open_log(url_at(scheme, tmp_path / "log")) as log:
        log.put_blob(b"data")
        lock = RealDisk().lock(tmp_path / "log/.locks/.blobs")
        with pytest.raises(LogBusy):
            log.put_blob(b"other")
        lock.release()


class PutsWhileItIsRead(MemoryLog):
    """A writer puts a blob and appends its event, after the collection has read the stream."""

    ref: BlobRef | None = None

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        yield from super().lines(stream, after_seq=after_seq, until_seq=until_seq)
        if self.ref is None:
            self.ref = self.put_blob(b"late")
            self.append(stream, [note("late", self.ref)])


def test_what_is_put_after_a_collection_began_stays_however_long_it_takes() -> None:
    log = PutsWhileItIsRead()
    log.append("s", [note("a")])
    assert collect(log, grace_s=0).removed == []
    assert log.ref is not None
    assert log.get_blob(log.ref) == b"late"


@pytest.mark.parametrize("name", ["gc", "session gc"])
def test_the_command_says_what_it_would_delete_and_then_does(cli: Cli, name: str) -> None:
    unused = write("segments:log")
    (would,) = cli(*name.split(), "segments:log", "--dry-run", "--json").rows
    assert (would["removed"], would["dryRun"]) == ([unused], True)
    done = cli(*name.split(), "segments:log")
    assert (done.code, done.out, done.err) == (0, f"{unused}\n", "1 blob of 6 bytes deleted, 0 kept\n")


def test_the_command_keeps_recent_blobs_unless_it_is_told_otherwise(cli: Cli) -> None:
    unused = write("sqlite:log.db")
    kept = cli("gc", "sqlite:log.db")
    assert (kept.out, kept.err) == ("", "0 blobs of 0 bytes deleted, 0 kept, 1 too recent\n")
    assert cli("gc", "sqlite:log.db", "--older-than", "0s").out == f"{unused}\n"
    with open_log("sqlite:log.db") as log, pytest.raises(BlobNotFound):
        log.get_blob(unused)


def test_the_command_fails_on_a_damaged_log_and_where_there_is_none(cli: Cli) -> None:
    write("sqlite:log.db")
    change_a_byte("sqlite:log.db", b"first", b"f1rst")
    refused = cli("gc", "sqlite:log.db", "--older-than", "0s", "--json")
    assert (refused.code, msgspec.json.decode(refused.err)["code"]) == (1, "log.damaged")
    assert cli("gc", "sqlite:absent.db").code == 3
    assert cli("gc", "sqlite:log.db", "--older-than", "soon").code == 2


def test_blobs_of_packs_that_were_taken_out_of_an_archive_are_collected(cli: Cli, tmp_path: Path) -> None:
    from tests.unit.test_stream_blobs import write_session

    write_session("segments:log", tmp_path / "keyring.json")
    cli("archive", "segments:log", "--to", "old", "--older-than", "0s")
    assert "0 blobs" in cli("gc", "archive:old", "--older-than", "0s").err
    for path in Path("old/packs").iterdir():
        path.unlink()
    assert cli("gc", "archive:old", "--older-than", "0s").code == 0
    assert list(Path("old/blobs/sha256").iterdir()) == []


def _sql(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute(statement)
