"""A file of the first format, whose streams record no model, which must stay readable and writable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runstate.conformance.notes import as_held, note, notes, snapshot
from runstate.logs.log import BlobRef, StreamInfo
from runstate.logs.sqlite import SqliteLog
from runstate.models.canonical import digest

run = "r-2026-é"
held = as_held("s", [note("a", "ü\u2028"), note("b"), note("c", tenant="t-2")])
first_at, last_at = held[0].persisted_at, held[-1].persisted_at


@pytest.fixture
def copy(golden: Path, tmp_path: Path) -> Path:
    shutil.copyfile(golden / "sqlite-1" / "log.sqlite", tmp_path / "log.db")
    return tmp_path / "log.db"


def test_a_file_of_the_first_format_is_read(copy: Path, golden: Path) -> None:
    lines = (golden / "engine_history.ndjson").read_bytes().split(b"\n")[:5]
    for _ in range(2):  # The first time migrates it.
        with SqliteLog(copy, create=False) as log:
            assert log.read("s") == held
            assert list(log.lines(run)) == lines
            assert log.load_snapshot("s", "notes") == snapshot(3)
            assert log.get_blob(BlobRef(f"sha256:{digest(b'one')}")) == b"one"
            assert log.stream("s") == StreamInfo("s", "acme", 3, 3, first_at, last_at, "")
            assert [(head.stream, head.model) for head in log.heads()] == [(run, ""), ("s", "")]
            assert [record.stream for record in log.feed().records] == [run] * 5 + ["s"] * 3
            assert list(log.verify()) == []


def test_a_stream_of_the_first_format_records_no_model_and_never_will(copy: Path) -> None:
    with SqliteLog(copy) as log:
        assert log.append("s", notes("b"))[0].idempotent
        assert log.append("s", notes("d"))[0].seq == 4
        assert log.append("s", [note("e", model="other")])[0].seq == 5
        assert [info.model for info in log.streams()] == ["", ""]
        assert list(log.verify()) == []


def test_records_are_adopted_into_a_stream_of_the_first_format(copy: Path) -> None:
    with SqliteLog(copy) as log:
        more = as_held("s", notes("d"), after_seq=3)
        assert log.adopt("s", [*held, *more], model="notes") == 1
        assert [info.model for info in log.streams()] == ["", ""]


def test_a_file_of_the_first_format_that_cannot_be_written_is_read_as_it_is(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = copy.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("runstate.logs.sqlite.log.can_write", lambda path: False)
        reader = SqliteLog(copy, create=False)
    with reader:
        assert reader.read("s") == held
        assert [(info.stream, info.model) for info in reader.streams()] == [(run, ""), ("s", "")]
        assert [(head.stream, head.model) for head in reader.heads()] == [(run, ""), ("s", "")]
        assert list(reader.verify()) == []
        assert copy.read_bytes() == before
        with SqliteLog(copy) as writer:
            writer.append("t", notes("d"))
            assert [info.model for info in reader.streams()] == ["", "", "notes"]
        assert [info.model for info in reader.streams()] == ["", "", "notes"]
