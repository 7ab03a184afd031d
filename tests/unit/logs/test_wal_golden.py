"""Directories of the first format, which must stay readable, and whose bytes nothing may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

from runstate.conformance.notes import as_held, note, notes
from runstate.errors import Truncated
from runstate.logs.log import StoredSnapshot, StreamInfo
from runstate.logs.sealed import unsealed
from runstate.logs.wal import WalLog
from runstate.logs.wal.ledger import Ledger
from runstate.logs.wal.options import WalOptions
from runstate.models.canonical import digest

golden = Path(__file__).parents[2] / "golden"
body = b'{"notes":["a","b","c","d"]}'
held = [
    *as_held("s", [note("a", "ü\u2028"), note("b"), note("c"), note("d", tenant="t-2"), note("e")]),
    *as_held("s", [note("g")], after_seq=6),
]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(golden / "wal", tmp_path / "wal")
    return tmp_path / "wal"


@pytest.mark.parametrize("version", ["wal", "wal-archived", "wal-adopted"])
def test_a_directory_of_any_version_is_read_and_gone_on_from(tmp_path: Path, version: str) -> None:
    shutil.copytree(golden / version, tmp_path / version)
    with WalLog(tmp_path / version) as log:
        assert log.read("s") == held
        assert log.load_snapshot("s", "daemon") == StoredSnapshot("daemon", 1, 4, digest(body), body)
        info = StreamInfo("s", "acme", 7, 6, held[0].persisted_at, held[-1].persisted_at)
        assert log.stream("s") == info
        assert list(log.verify("s")) == []
        assert log.append("s", notes("b", "h"))[1].seq == 8
        assert log.read("s")[:-1] == held


def write(root: Path) -> None:
    with WalLog(root, options=WalOptions(history="archive")) as log:
        log.adopt("s", held[:3])
        log.adopt("s", held[3:5])
        for _ in range(2):  # A checkpoint removes the entries before the previous one.
            log.checkpoint("s", StoredSnapshot("daemon", 1, 4, digest(body), body))
        log.adopt("s", held[5:])


def test_the_first_format_is_still_what_is_written(copy: Path, tmp_path: Path) -> None:
    write(tmp_path / "new")
    for name in ("wal.jsonl", "keys.json"):
        assert (tmp_path / "new" / "s" / name).read_bytes() == (copy / "s" / name).read_bytes(), name
    old, new = (unsealed((root / "s" / "ledger.json").read_bytes(), Ledger) for root in (copy, tmp_path / "new"))
    assert new is not None
    assert old is not None
    assert (new.archived, new.adopted, new.reserved) == ((1, 3), 7, 7)  # Members that older versions ignore.
    assert msgspec.structs.replace(new, archived=UNSET, adopted=UNSET, reserved=old.reserved) == old


def test_the_newest_version_is_still_what_is_written(tmp_path: Path) -> None:
    write(tmp_path / "new")
    for name in ("wal.jsonl", "ledger.json", "keys.json"):
        kept = golden / "wal-adopted" / "s" / name
        assert (tmp_path / "new" / "s" / name).read_bytes() == kept.read_bytes(), name


def test_a_deleted_segment_of_an_archive_of_the_first_format_is_not_missed(copy: Path) -> None:
    """Its ledger does not tell what was archived: the history begins later, as after a checkpoint with `drop`."""
    (segment,) = (copy / "s" / "archive").iterdir()
    segment.unlink()
    with WalLog(copy) as log:
        assert list(log.verify("s")) == []
        with pytest.raises(Truncated):
            log.read("s")


def test_the_next_checkpoint_notes_the_archive_of_the_first_format(copy: Path) -> None:
    with WalLog(copy, options=WalOptions(history="archive")) as log:
        for _ in range(2):
            log.checkpoint("s", StoredSnapshot("daemon", 1, 7, digest(body), body))
    ledger = unsealed((copy / "s" / "ledger.json").read_bytes(), Ledger)
    assert ledger is not None
    assert ledger.archived == (1, 5)


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
