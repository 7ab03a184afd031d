"""The WAL's own files: entries, evidence, snapshots, archives, keys; and what damage to each of them does."""

from __future__ import annotations

import gzip
import logging
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
from google_crc32c import value as crc32c

from runstate.conformance.notes import as_held, note, notes, numbered
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.errors import (
    InvalidUrl,
    LogBusy,
    LogDamaged,
    LogFailed,
    ModelMismatch,
    SequenceConflict,
    SnapshotTooNew,
    StreamDeleted,
    Truncated,
)
from runstate.logs.log import Record, StoredSnapshot, Tombstone
from runstate.logs.wal import WalLog, open_url
from runstate.logs.wal.options import WalOptions
from runstate.logs.wal.writer import Writer
from runstate.models.canonical import digest
from runstate.models.model import Draft

Opening = Callable[..., WalLog]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "streams"


@pytest.fixture
def opened(root: Path, request: pytest.FixtureRequest) -> Opening:
    def opening(**options: Any) -> WalLog:
        log = WalLog(root, options=WalOptions(**options))
        request.addfinalizer(log.close)
        return log

    return opening


def written(log: WalLog, *keys: str) -> list[int]:
    return [log.append("s", notes(key))[0].seq for key in keys]


def state_of(log: WalLog) -> list[str]:
    kept = log.load_snapshot("s", "daemon")
    keys: list[str] = [] if kept is None else msgspec.json.decode(kept.body)
    return keys + [record.key for record in log.read("s", after_seq=0 if kept is None else kept.seq)]


def checkpoint(log: WalLog, seq: int | None = None) -> StoredSnapshot:
    keys = state_of(log)
    seq = len(keys) if seq is None else seq
    body = msgspec.json.encode(keys[:seq])
    log.checkpoint("s", kept := StoredSnapshot("daemon", 1, seq, digest(body), body))
    return kept


def compact(log: WalLog, seq: int | None = None) -> None:
    """Let the entries before a seq go: a checkpoint removes what is before the previous one."""
    log.checkpoint("s", checkpoint(log, seq))


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


# --- the form of an entry ------------------------------------------------------------------------------------


def test_an_entry_is_the_seeds_with_the_checksum_of_its_event_and_an_envelope(opened: Opening, root: Path) -> None:
    log = opened()
    log.append("s", [note("a", "ü")])
    (record,) = log.read("s")
    (line,) = (root / "s" / "wal.jsonl").read_bytes().splitlines()
    entry = msgspec.json.decode(line)
    assert list(entry) == ["seq", "event", "crc", "record"]
    assert entry["seq"] == 1
    assert entry["crc"] == f"{crc32c(record.body):08x}"
    assert b'{"seq":1,"event":%b,"crc":"' % record.body in line
    assert entry["record"]["persisted_at"] == record.persisted_at


def test_the_seeds_own_entries_are_read_and_gone_on_from(opened: Opening, root: Path) -> None:
    body = b'{"type":"step:completed","pipeline_id":"p1","step":"build"}'
    home = root / "s"
    home.mkdir(parents=True)
    (home / "wal.jsonl").write_bytes(
        b'{"seq":7,"event":%b}\n{"seq":8,"event":%b,"crc":"%08x"}\n' % (body, body, crc32c(body))
    )
    log = opened()
    first, second = log.read("s", after_seq=6)
    assert [(r.seq, r.type, r.body) for r in (first, second)] == [
        (7, "step:completed", body),
        (8, "step:completed", body),
    ]
    assert first.event_id != second.event_id
    assert list(log.lines("s", after_seq=6)) == [body, body]
    assert log.append("s", [note("new", tenant="")])[0].seq == 9
    assert list(log.verify("s")) == []


def test_a_seed_entry_whose_checksum_does_not_fit_is_damage(opened: Opening, root: Path) -> None:
    (root / "s").mkdir(parents=True)
    (root / "s" / "wal.jsonl").write_bytes(b'{"seq":1,"event":{"type":"shutdown"},"crc":"00000000"}\n')
    with pytest.raises(LogDamaged):
        opened().read("s")


@pytest.mark.parametrize(
    "tail",
    [b'"a":1\n}', b'"a":"\0"}', b'"a":"\xff"}', b'"a":' + b"[" * 100_000, b"nonsense", b'"a":NaN}'],
    ids=["newline", "nul", "not-utf8", "deep", "no-json", "nan"],
)
def test_a_line_that_no_reader_could_read_is_refused(opened: Opening, tail: bytes) -> None:
    log = opened()
    bad = Draft(event_id="e", type="t", key="k", tenant="", emitted_at="", prefix=b'{"s":%d,"p":"%b",', tail=tail)
    with pytest.raises(LogFailed):
        log.append("s", [bad])
    assert written(log, "a") == [1]


def test_an_envelope_with_a_lone_surrogate_is_refused_and_harms_nothing(opened: Opening) -> None:
    log = opened()
    bad = Draft(
        event_id="\ud800", type="t", key="k", tenant="", emitted_at="", prefix=b'{"s":%d,"p":"%b",', tail=b'"a":1}'
    )
    with pytest.raises(LogFailed):
        log.append("s", [bad])
    assert written(log, "a") == [1]


@pytest.mark.parametrize(
    "text", ["\u2028\u2029\x85", "\\ud800", '","crc":"00000000","record":{"sum":"', '"event":', "x" * 10_000_000]
)
def test_hostile_text_comes_back_as_it_was(opened: Opening, text: str) -> None:
    log = opened()
    log.append("s", [note("a", text), note("b")])
    before = log.read("s")
    log.close()
    assert opened().read("s") == before
    assert list(opened().verify()) == []


def test_lines_are_nested_as_deep_as_anybody_can_read_them(opened: Opening) -> None:
    log = opened()
    deep = Draft(
        event_id="e", type="t", key="k", tenant="", emitted_at="", prefix=b'{"s":%d,"p":"%b",',
        tail=b'"a":' + b"[" * 100 + b"]" * 100 + b"}",
    )  # fmt: skip
    assert log.append("s", [deep])[0].seq == 1
    assert len(log.read("s")) == 1


# --- damage --------------------------------------------------------------------------------------------------


def bakes(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "s").glob("*.bak*"))}


def test_damage_in_the_middle_is_rotated_and_no_seq_is_used_again(
    opened: Opening, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened()
    written(log, "a", "b", "c", "d")
    log.close()
    wal = root / "s" / "wal.jsonl"
    flip(wal, wal.read_bytes().index(b'"key":"b"') + 7)
    damaged = wal.read_bytes()
    log = opened()
    (finding,) = log.verify("s")
    assert (finding.code, finding.seq, finding.details["behind"]) == ("log.entry_damaged", 2, 2)
    assert wal.read_bytes() == damaged, "who only reads changes nothing"
    with caplog.at_level(logging.WARNING, "runstate.logs.wal"):
        assert written(log, "e") == [5]
    assert "wal.jsonl.bak" in caplog.text
    assert [(record.key, record.seq) for record in log.read("s")] == [("a", 1), ("e", 5)]
    assert bakes(root) == {"wal.jsonl.bak": damaged}
    (told,) = log.recoveries
    assert (told.details["lost"], told.details["last_seq"]) == (2, 4)
    assert list(log.verify("s")) == []
    log.close()
    log = opened()
    assert written(log, "b") == [6], "what is only in the evidence is not stored"
    assert [record.seq for record in log.read("s")] == [1, 5, 6]
    assert list(log.lines("s", after_seq=1)) == [record.body for record in log.read("s", after_seq=1)]


def test_damage_within_an_append_leaves_the_entries_before_it_readable(opened: Opening, root: Path) -> None:
    log = opened()
    log.append("s", notes("a", "b", "c"))
    written(log, "d")
    log.close()
    wal = root / "s" / "wal.jsonl"
    flip(wal, wal.read_bytes().index(b'"key":"b"') + 7)
    log = opened()
    log.recover("s")
    log.close()
    assert [record.key for record in opened().read("s")] == ["a"]


@pytest.mark.parametrize("noise", [random.Random(7).randbytes(5000), b"\0" * 300 + b"\n", b"\n\n\n", b"{}\n[]\nnull\n"])
def test_a_wal_that_is_binary_noise_is_kept_and_no_seq_is_used_again(opened: Opening, root: Path, noise: bytes) -> None:
    log = opened()
    written(log, "a", "b")
    log.close()
    (root / "s" / "wal.jsonl").write_bytes(noise + b"x\n")
    log = opened()
    with suppress(LogDamaged):  # Zeros alone look like what a crash leaves; `verify` and recovery know better.
        assert log.read("s") == []
    assert "damage" in {finding.severity for finding in log.verify()}
    (seq,) = written(log, "c")
    assert seq > 2
    assert bakes(root) == {"wal.jsonl.bak": noise + b"x\n"}
    # Lost to damage, and not dropped by a checkpoint: there is no snapshot that it could begin with.
    assert [(record.key, record.seq) for record in log.read("s")] == [("c", seq)]


@pytest.mark.parametrize("noise", [b"noise", b"\xff\n" * 50, b'{"seq":1,"event":{}', b"\0" * 99 + b"\n"])
def test_no_seq_comes_twice_when_a_killed_writers_wal_is_lost(
    opened: Opening, root: Path, tmp_path: Path, noise: bytes
) -> None:
    log = opened()
    written(log, "a", "b", "c")
    # What a killed process leaves: nothing was told to the ledger but which seqs are reserved.
    shutil.copytree(root, tmp_path / "left")
    (tmp_path / "left" / "s" / "wal.jsonl").write_bytes(b'{"broken"}\n' + noise)
    with WalLog(tmp_path / "left") as heir:
        assert written(heir, "d")[0] > 3


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_no_seq_comes_twice_when_zeros_stand_in_place_of_what_was_flushed(
    opened: Opening, root: Path, tmp_path: Path, hidden: int
) -> None:
    log = opened()
    written(log, "a", "b", "c")
    shutil.copytree(root, tmp_path / "left")
    wal = tmp_path / "left" / "s" / "wal.jsonl"
    lines = wal.read_bytes().splitlines(keepends=True)
    wal.write_bytes(b"".join(lines[:-hidden]) + bytes(sum(map(len, lines[-hidden:]))))
    with WalLog(tmp_path / "left") as heir:
        (seq,) = written(heir, "d")
        assert seq > 3
        assert [record.key for record in heir.read("s")] == [*"abc"[: 3 - hidden], "d"]
        assert list(heir.verify("s")) == []
        assert [f"the next seq is {seq}" in finding.message for finding in heir.recoveries] == [True]
    with WalLog(tmp_path / "left") as next_one:
        assert written(next_one, "e") == [seq + 1]


def test_behind_a_gap_whoever_knows_the_last_event_goes_on(root: Path) -> None:
    """Nothing stands between the last event and the last seq that was given out, so either may be expected."""
    with WalLog(root) as log:
        log.append("s", notes("a", "b"))
    wal = root / "s" / "wal.jsonl"
    wal.write_bytes(wal.read_bytes() + bytes(100))
    with WalLog(root) as heir:
        (first,) = heir.append("s", notes("c"), expected_seq=2)
        assert first.seq > 3
        with pytest.raises(SequenceConflict):
            heir.append("s", notes("d"), expected_seq=2)


def test_three_baks_are_kept_and_the_newest_is_never_lost(opened: Opening, root: Path) -> None:
    wal = root / "s" / "wal.jsonl"
    seen: list[bytes] = []
    last = 0
    for number in range(5):
        log = opened()
        last = written(log, f"{number}a", f"{number}b")[-1]
        log.close()
        flip(wal, len(wal.read_bytes()) - 150)
        seen.append(wal.read_bytes())
        log = opened()
        (seq,) = written(log, f"{number}c")
        assert seq > last
        log.close()
    assert list(bakes(root)) == ["wal.jsonl.bak", "wal.jsonl.bak.2", "wal.jsonl.bak.3"]
    assert list(bakes(root).values()) == [seen[4], seen[3], seen[2]]


def test_every_flipped_byte_is_found_or_harmless_and_never_gives_a_wrong_record(opened: Opening, root: Path) -> None:
    log = opened()
    log.append("s", [note("a", "ü"), note("b")])
    log.append("s", notes("c"))
    log.close()
    wal = root / "s" / "wal.jsonl"
    whole, intact = wal.read_bytes(), opened().read("s")
    for offset in range(len(whole)):
        wal.write_bytes(whole)
        flip(wal, offset, offset % 7)
        log = opened()
        found = list(log.verify("s"))
        assert found, offset
        for after_seq in range(3):
            check_never_wrong(log, intact, after_seq, offset)
        log.close()


def check_never_wrong(log: WalLog, intact: list[Record], after_seq: int, offset: int) -> None:
    try:
        records = log.read("s", after_seq=after_seq)
        lines = list(log.lines("s", after_seq=after_seq))
    except (LogDamaged, Truncated):
        return
    expected = intact[after_seq:]
    assert records == expected[: len(records)], offset
    assert lines == [record.body for record in expected[: len(lines)]], offset


def test_bytes_that_are_no_utf8_end_the_seeds_reader_and_damage_does_not(
    opened: Opening, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened()
    written(log, "a", "b", "c", "d")
    log.close()
    wal = root / "s" / "wal.jsonl"
    flip(wal, wal.read_bytes().index(b'"key":"b"') + 7)
    reader = opened().reader("s")
    with caplog.at_level(logging.WARNING, "runstate.logs.wal"):
        keys = [record.key for record in iter(reader.next_unprocessed, None)]
    assert keys == ["a", "c", "d"]
    assert "Skipped" in caplog.text
    data = wal.read_bytes()
    wal.write_bytes(data.replace(b'"key":"c"', b'"key":"\xff"'))
    reader = opened().reader("s")
    assert [record.key for record in iter(reader.next_unprocessed, None)] == ["a"]
    assert reader.next_unprocessed() is None


# --- the reader ----------------------------------------------------------------------------------------------


def test_a_reader_gives_each_entry_once_and_goes_on_over_checkpoints(opened: Opening) -> None:
    log = opened()
    reader = log.reader("s")
    assert reader.next_unprocessed() is None
    written(log, "a", "b", "c")
    assert [record.seq for record in iter(reader.next_unprocessed, None)] == [1, 2, 3]
    reader.mark_processed(3)
    compact(log)
    written(log, "d")
    assert [record.seq for record in iter(reader.next_unprocessed, None)] == [4]
    assert [record.seq for record in iter(log.reader("s", processed_seq=3).next_unprocessed, None)] == [4]
    late = log.reader("s")
    late.mark_processed(3)
    assert [record.seq for record in iter(late.next_unprocessed, None)] == [4]


def test_a_reader_of_another_handle_sees_what_is_appended(opened: Opening) -> None:
    log = opened()
    reader = opened().reader("s")
    for key in "abc":
        (seq,) = written(log, key)
        record = reader.next_unprocessed()
        assert record is not None
        assert record.seq == seq
        assert reader.next_unprocessed() is None


# --- checkpoints ---------------------------------------------------------------------------------------------


def test_a_checkpoint_keeps_the_entries_from_the_previous_ones_seq_on(opened: Opening, root: Path) -> None:
    log = opened()
    written(log, "a", "b", "c", "d")
    before = log.stream("s")
    compact(log, 3)
    assert [msgspec.json.decode(line)["seq"] for line in (root / "s" / "wal.jsonl").read_bytes().splitlines()] == [3, 4]
    assert log.stream("s") == before
    assert opened().stream("s") == before
    for reading in (lambda: log.read("s"), lambda: list(log.lines("s")), lambda: log.read("s", after_seq=1)):
        with pytest.raises(Truncated) as caught:
            reading()
        assert caught.value.details["first_seq"] == 3
    assert [record.seq for record in log.read("s", after_seq=2)] == [3, 4]
    assert state_of(log) == ["a", "b", "c", "d"]
    assert list(log.verify()) == []
    log.close()
    log = opened()
    assert log.stream("s") == before
    assert state_of(log) == ["a", "b", "c", "d"]
    assert written(log, "e") == [5]


def test_a_checkpoint_beyond_the_stream_is_refused(opened: Opening, root: Path) -> None:
    log = opened()
    written(log, "a")
    for seq in (0, 2):
        with pytest.raises(ValueError, match="checkpoint"):
            log.checkpoint("s", StoredSnapshot("daemon", 1, seq, digest(b"[]"), b"[]"))
    assert not (root / "s" / "snapshot.json").exists()


@pytest.mark.parametrize("loss", ["wal", "snapshot", "both", "noise"])
def test_no_seq_comes_twice_whatever_is_lost_after_a_checkpoint(opened: Opening, root: Path, loss: str) -> None:
    log = opened()
    written(log, "a", "b", "c")
    checkpoint(log)
    log.close()
    if loss in ("wal", "both"):
        (root / "s" / "wal.jsonl").write_bytes(b"")
    if loss in ("snapshot", "both"):
        (root / "s" / "snapshot.json").unlink()
    if loss == "noise":
        (root / "s" / "snapshot.json").write_bytes(b"\xff\0noise")
        (root / "s" / "wal.jsonl").write_bytes(b"\xff\0noise\n")
    log = opened()
    log.recover("s")
    assert (log.load_snapshot("s", "daemon") is None) == (loss != "wal")
    assert written(log, "d")[0] > 3


def test_a_retry_across_a_checkpoint_is_known_for_as_many_events_as_the_option_says(opened: Opening) -> None:
    log = opened(remembered_keys=4)
    first = {key: log.append("s", notes(key))[0] for key in "abcdefg"}
    compact(log)
    for _ in range(2):
        for key in "cdefg":
            again = log.append("s", notes(key))[0]
            assert (again.seq, again.event_id, again.persisted_at) == (
                first[key].seq,
                first[key].event_id,
                first[key].persisted_at,
            )
            assert (again.idempotent, again.persisted) == (True, False)
        assert log.find("s", "c") is None, "its content is gone"
        log.close()
        log = opened(remembered_keys=4)
    # Only the last ones are remembered: that is the bound.
    assert log.append("s", notes("a"))[0].persisted


def test_a_checkpoint_is_not_undone_by_an_older_one(opened: Opening) -> None:
    log = opened()
    written(log, "a", "b", "c")
    kept = checkpoint(log)
    log.checkpoint("s", StoredSnapshot("daemon", 1, 2, digest(b"[]"), b"[]"))
    assert log.load_snapshot("s", "daemon") == kept


def test_adopting_goes_on_after_a_checkpoint(opened: Opening) -> None:
    log = opened()
    log.adopt("s", as_held("s", numbered(3)))
    compact(log)
    assert log.adopt("s", as_held("s", notes("x", "y"), after_seq=3)) == 2
    assert [record.seq for record in log.read("s", after_seq=2)] == [3, 4, 5]


# --- archives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_with_an_archive_the_whole_history_is_read_on(opened: Opening, root: Path, compress: str) -> None:
    log = opened(history="archive", compress=compress)
    log.append("s", numbered(20))
    whole = log.read("s")
    compact(log, 8)
    compact(log, 15)
    assert log.read("s") == whole
    assert list(log.lines("s", after_seq=3, until_seq=17)) == [record.body for record in whole[3:17]]
    for after_seq in range(21):
        assert log.read("s", after_seq=after_seq, limit=5) == whole[after_seq : after_seq + 5]
    assert log.find("s", "k2") == whole[1]
    assert log.find("s", "k99") is None
    assert list(log.verify()) == []
    names = [path.name for path in sorted((root / "s" / "archive").iterdir())]
    assert [name[:33] for name in names] == ["0000000000000001-0000000000000007", "0000000000000008-0000000000000014"]
    assert all(name.endswith(".zst" if compress == "zstd" else ".gz") for name in names)
    log.close()
    assert opened().read("s") == whole, "whatever the options are now"


def test_an_archived_segment_holds_the_wals_own_lines(opened: Opening, root: Path) -> None:
    log = opened(history="archive")
    log.append("s", numbered(5))
    lines = (root / "s" / "wal.jsonl").read_bytes().splitlines(keepends=True)
    compact(log, 4)
    (segment,) = (root / "s" / "archive").iterdir()
    assert gzip.decompress(segment.read_bytes()) == b"".join(lines[:3])
    assert segment.name.split("-")[2] == f"{digest(segment.read_bytes())}.jsonl.gz"


def test_a_large_archive_is_cut_into_segments(opened: Opening, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.logs.wal.compaction.segment_bytes", 2000)
    log = opened(history="archive")
    log.append("s", numbered(50))
    whole = log.read("s")
    compact(log)
    assert len(list((root / "s" / "archive").iterdir())) > 5
    assert log.read("s") == whole


def test_a_changed_or_missing_segment_is_found_and_never_read(opened: Opening, root: Path) -> None:
    log = opened(history="archive")
    log.append("s", numbered(9))
    for seq in (3, 6, 9):
        compact(log, seq)
    first, second, _ = sorted((root / "s" / "archive").iterdir())
    flip(second, 30)
    with pytest.raises(LogDamaged):
        log.read("s")
    assert [finding.code for finding in log.verify("s")] == ["archive.digest_mismatch"]
    second.unlink()
    assert [finding.code for finding in log.verify("s")] == ["archive.segment_missing"]
    assert [record.seq for record in log.read("s", limit=2)] == [1, 2]
    with pytest.raises(LogDamaged, match="lacks the segments with events 3 to 5") as caught:
        log.read("s")
    assert [record.seq for record in log.read("s", after_seq=caught.value.details["last_seq"])] == [6, 7, 8, 9]
    assert first.exists()


def test_an_archive_outlives_a_wal_that_is_lost(opened: Opening, root: Path) -> None:
    log = opened(history="archive")
    log.append("s", numbered(5))
    compact(log)
    log.close()
    (root / "s" / "wal.jsonl").write_bytes(b"noise\n")
    log = opened(history="archive")
    (seq,) = written(log, "new")
    assert [record.seq for record in log.read("s")] == [1, 2, 3, 4, seq]
    assert seq > 5


# --- snapshots -----------------------------------------------------------------------------------------------


def test_a_snapshot_of_the_seed_is_migrated(opened: Opening, root: Path) -> None:
    log = opened()
    written(log, "a", "b")
    (root / "s" / "snapshot.json").write_bytes(
        b'{"seq":2,"state":{"pipelines":{}},"created_at":"2026-01-01T00:00:00Z"}'
    )
    body = b'{"pipelines":{}}'
    assert log.load_snapshot("s", "daemon") == StoredSnapshot("daemon", 1, 2, digest(body), body)


def test_a_snapshot_of_a_newer_format_is_refused_and_left_alone(opened: Opening, root: Path) -> None:
    log = opened()
    written(log, "a")
    path = root / "s" / "snapshot.json"
    path.write_bytes(b'{"format":2,"anything":true}')
    with pytest.raises(SnapshotTooNew):
        log.load_snapshot("s", "daemon")
    with pytest.raises(SnapshotTooNew):
        log.checkpoint("s", StoredSnapshot("daemon", 1, 1, digest(b"[]"), b"[]"))
    assert [finding.code for finding in log.verify("s")] == ["snapshot.too_new"]
    assert log.repair("s") == []
    assert path.read_bytes() == b'{"format":2,"anything":true}'


@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_every_flipped_byte_of_a_snapshot_is_found(opened: Opening, root: Path, compress: str) -> None:
    log = opened(compress=compress)
    written(log, "a", "b")
    kept = checkpoint(log)
    log.close()
    (path,) = (root / "s").glob("snapshot.json*")
    whole = path.read_bytes()
    log = opened(compress=compress)
    assert log.load_snapshot("s", "daemon") == kept
    for offset in range(len(whole)):
        path.write_bytes(whole)
        flip(path, offset, offset % 7)
        try:
            found = log.load_snapshot("s", "daemon")
        except SnapshotTooNew:
            continue
        assert found in (None, kept), offset
        assert found is None or compress == "zstd", offset


def test_a_corrupt_snapshot_is_kept_as_bak_by_who_writes_and_left_by_who_reads(
    opened: Opening, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened()
    written(log, "a", "b")
    checkpoint(log)
    log.close()
    (root / "s" / "snapshot.json").write_bytes(b"noise")
    log = opened()
    assert log.load_snapshot("s", "daemon") is None
    assert bakes(root) == {}
    assert [(finding.code, finding.severity) for finding in log.verify("s")] == [("snapshot.corrupt", "damage")]
    log.recover("s")
    with caplog.at_level(logging.WARNING, "runstate.logs.wal"):
        assert log.load_snapshot("s", "daemon") is None
    assert "snapshot.json.bak" in caplog.text
    assert bakes(root) == {"snapshot.json.bak": b"noise"}
    assert log.load_snapshot("s", "daemon") is None
    assert list(bakes(root)) == ["snapshot.json.bak"]


def test_repair_sets_corrupt_snapshots_aside(opened: Opening, root: Path) -> None:
    log = opened()
    written(log, "a")
    (root / "s" / "snapshot.other.json").write_bytes(b"noise")
    assert [finding.code for finding in log.repair("s", dry_run=True)] == ["snapshot.corrupt"]
    assert [finding.code for finding in log.repair("s")] == ["snapshot.corrupt"]
    assert list(log.verify()) == []
    assert bakes(root) == {"snapshot.other.json.bak": b"noise"}


def test_a_snapshot_changes_its_form_with_the_option_and_the_newer_one_counts(opened: Opening, root: Path) -> None:
    log = opened()
    written(log, "a", "b")
    checkpoint(log, 1)
    old = (root / "s" / "snapshot.json").read_bytes()
    log.close()
    log = opened(compress="zstd")
    kept = checkpoint(log, 2)
    assert sorted(path.name for path in (root / "s").glob("snapshot*")) == [
        "snapshot.json.previous",
        "snapshot.json.zst",
    ]
    (root / "s" / "snapshot.json").write_bytes(old)
    assert log.load_snapshot("s", "daemon") == kept


# --- the rest ------------------------------------------------------------------------------------------------


def test_a_second_writer_is_told_that_the_stream_is_busy(opened: Opening) -> None:
    log, other = opened(), opened()
    written(log, "a")
    with pytest.raises(LogBusy):
        other.append("s", notes("b"))
    with pytest.raises(LogBusy):
        other.recover("s")
    log.close()
    assert written(other, "b") == [2]


def test_a_damaged_ledger_is_told_and_written_again(opened: Opening, root: Path) -> None:
    log = opened()
    written(log, "a", "b")
    log.close()
    flip(root / "s" / "ledger.json", 40)
    assert [(finding.code, finding.severity) for finding in opened().verify()] == [("log.file_damaged", "warning")]
    log = opened()
    assert written(log, "c") == [3]
    assert list(log.verify()) == []


def test_entries_that_are_no_longer_there_are_missed(opened: Opening, root: Path) -> None:
    log = opened()
    written(log, "a", "b", "c")
    log.close()
    wal = root / "s" / "wal.jsonl"
    wal.write_bytes(b"".join(wal.read_bytes().splitlines(keepends=True)[:2]))
    assert [finding.code for finding in opened().verify()] == ["log.events_missing"]
    log = opened()
    assert written(log, "d") == [4]
    assert [finding.code for finding in log.recoveries] == ["log.events_missing"]


@pytest.mark.parametrize(
    "url",
    [
        "wal:",
        "wal:x?flush_entries=0",
        "wal:x?flush_entries=many",
        "wal:x?flush_interval_ms=0",
        "wal:x?flush_interval_ms=nan",
        "wal:x?history=keep",
        "wal:x?compress=lz4",
        "wal:x?unknown=1",
        "wal:x?history=drop&history=drop",
        "wal:x?history",
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidUrl):
        open_url(url)
    assert list(tmp_path.iterdir()) == []


def test_a_urls_options_are_followed(tmp_path: Path) -> None:
    url = f"wal:{tmp_path}/x?flush_interval_ms=2.5&flush_entries=7&history=archive&compress=zstd"
    with open_url(url) as log:
        assert log.options == WalOptions(2.5, 7, "archive", "zstd")


# --- the model of a stream ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", ["drop", "archive"])
def test_the_model_is_recorded_after_a_checkpoint_has_removed_the_first_entry(opened: Opening, history: str) -> None:
    log = opened(history=history)
    written(log, "a", "b", "c")
    compact(log, 3)
    for again in (log, None):
        if again is None:
            log.close()
            log = opened(history=history)
        assert [info.model for info in log.streams()] == [head.model for head in log.heads()] == ["notes"]
        with pytest.raises(ModelMismatch):
            log.append("s", [note("d", model="other")])


def test_a_buffered_append_of_another_model_is_refused_before_the_first_is_flushed(opened: Opening) -> None:
    log = opened(flush_interval_ms=10_000)
    log.append_buffered("s", notes("a"))
    with pytest.raises(ModelMismatch):
        log.append_buffered("s", [note("b", model="other")])
    log.flush()
    assert [record.key for record in log.read("s")] == ["a"]


def test_a_first_append_that_failed_binds_nobody_to_its_model(root: Path) -> None:
    disk = SimulatedDisk()
    with WalLog(PurePosixPath("/log"), disk=disk) as log:
        disk.fail("write", nth=2)  # The first one is the ledger's, which names the model.
        with pytest.raises(LogFailed):
            log.append("s", notes("a"))
        assert log.stream("s") is None
        log.append("s", [note("a", model="other")])
        assert [info.model for info in log.streams()] == ["other"]


def test_a_stream_whose_ledger_is_lost_records_no_model_any_more(opened: Opening, root: Path) -> None:
    log = opened()
    written(log, "a")
    log.close()
    (root / "s" / "ledger.json").unlink()
    log = opened()
    assert [info.model for info in log.streams()] == [""]
    written(log, "b")
    assert [info.model for info in log.streams()] == [""]


def before_the_flush(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act once, when an adoption has buffered its records and is about to flush them."""
    write_out, calls = Writer.write_out, list[Writer]()

    def meddle(writer: Writer) -> None:
        calls.append(writer)
        if len(calls) == 2:  # The first one made sure that nothing else is buffered.
            act()
        write_out(writer)

    monkeypatch.setattr(Writer, "write_out", meddle)


def test_an_append_behind_adopted_records_of_the_same_flush_meets_the_tombstone(
    opened: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, refused = opened(), list[str]()
    log.append("s", numbered(4))
    before = log.read("s")
    log.delete_stream("s", tombstone=Tombstone("s", 4))

    def send() -> None:
        for draft in (note("k4"), note("new")):
            with pytest.raises(StreamDeleted):
                log.append_buffered("s", [draft])
            refused.append(draft.key)

    with monkeypatch.context() as patch:
        before_the_flush(patch, send)
        assert log.adopt("s", before[:2], model="notes") == 2
    assert refused == ["k4", "new"]
    assert log.adopt("s", before, model="notes") == 2
    assert log.read("s") == before


def test_an_append_behind_the_last_adopted_record_has_a_time(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened()
    before_the_flush(monkeypatch, lambda: log.append_buffered("s", [note("new")]))
    log.adopt("s", as_held("s", numbered(2)), model="notes")
    log.flush()
    assert [bool(record.persisted_at) for record in log.read("s")] == [True] * 3
