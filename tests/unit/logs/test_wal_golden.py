"""Directories of the first format, which must stay readable, and whose bytes nothing may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runstate.conformance.notes import as_held, note, notes
from runstate.logs.log import StoredSnapshot, StreamInfo
from runstate.logs.wal import WalLog
from runstate.logs.wal.options import WalOptions
from runstate.models.canonical import digest

body = b'{"notes":["a","b","c","d"]}'
held = [
    *as_held("s", [note("a", "ü\u2028"), note("b"), note("c"), note("d", tenant="t-2"), note("e")]),
    *as_held("s", [note("g")], after_seq=6),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(Path(__file__).parents[2] / "golden" / "wal", tmp_path / "wal")
    return tmp_path / "wal"


def test_a_directory_of_the_first_format_is_read_and_gone_on_from(copy: Path) -> None:
    with WalLog(copy) as log:
        assert log.read("s") == held
        assert log.load_snapshot("s", "daemon") == StoredSnapshot("daemon", 1, 4, digest(body), body)
        info = StreamInfo("s", "acme", 7, 6, held[0].persisted_at, held[-1].persisted_at)
        assert log.stream("s") == info
        assert list(log.verify("s")) == []
        assert log.append("s", notes("b", "h"))[1].seq == 8
        assert log.read("s")[:-1] == held


def test_the_first_format_is_still_what_is_written(copy: Path, tmp_path: Path) -> None:
    with WalLog(tmp_path / "new", options=WalOptions(history="archive")) as log:
        log.adopt("s", held[:3])
        log.adopt("s", held[3:5])
        for _ in range(2):  # A checkpoint removes the entries before the previous one.
            log.checkpoint("s", StoredSnapshot("daemon", 1, 4, digest(body), body))
        log.adopt("s", held[5:])
    for name in ("wal.jsonl", "ledger.json", "keys.json"):
        assert (tmp_path / "new" / "s" / name).read_bytes() == (copy / "s" / name).read_bytes(), name


def test_a_directory_that_the_seeds_daemon_left_is_read_and_gone_on_from(copy: Path) -> None:
    with WalLog(copy) as log:
        kept = log.load_snapshot("seed", "daemon")
        assert kept is not None
        assert kept.seq == 3
        assert [(record.seq, record.type) for record in log.read("seed", after_seq=kept.seq)] == [(4, "step:completed")]
        assert log.append("seed", [note("new", tenant="")])[0].seq == 5
        log.checkpoint("seed", StoredSnapshot("daemon", 1, 5, digest(body), body))
        assert [record.seq for record in log.read("seed", after_seq=4)] == [5]
        assert list(log.verify("seed")) == []


@pytest.mark.parametrize("stream", ["s", "seed"])
def test_a_stream_of_the_first_format_records_no_model_and_never_will(copy: Path, stream: str) -> None:
    for draft in (note("new", tenant=""), note("more", tenant="", model="other")):
        with WalLog(copy) as log:
            assert log.append(stream, [draft])[0].persisted
            assert [info.model for info in log.streams()] == [head.model for head in log.heads()] == ["", ""]
    with WalLog(copy) as log:
        assert list(log.verify(stream)) == []
