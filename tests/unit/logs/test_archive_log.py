"""The archive as a log: what it gives, what it refuses, and that no changed byte goes unnoticed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import runstate
from runstate.conformance.claims.refusals import bad_streams
from runstate.conformance.notes import note, numbered, snapshot, stored
from runstate.errors import (
    InvalidStream,
    InvalidUrl,
    LogClosed,
    LogDamaged,
    LogNotFound,
    LogTooNew,
    ModelMismatch,
    NotALog,
    Unsupported,
)
from runstate.logs.archive import ArchiveLog
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archive.packs import ArchiveInfo as Info
from runstate.logs.archive.packs import Broken, Unfit, decode_line, encode_line, sealed, unsealed
from runstate.logs.archive.writing import PackWriter
from runstate.logs.log import Capability, EventLog, Record
from runstate.logs.memory import MemoryLog
from runstate.logs.pairing import default_model
from runstate.logs.registry import open_log

When = Callable[[EventLog], object]


@pytest.fixture
def source() -> MemoryLog:
    log = MemoryLog()
    for stream, count in (("a", 3), ("b", 2500), ("ü", 1)):
        log.append(stream, numbered(count))
    return log


def pack_of(root: Path, log: EventLog, *streams: str, model: str = "notes") -> str:
    """A new pack with these streams, as the log has them now; its name."""
    directory = ArchiveDirectory(root)
    directory.prepare(model)
    writer = PackWriter(directory, model)
    for stream in streams:
        writer.add(stream, stored(log, stream))
    writer.commit()
    return writer.name


@pytest.fixture
def root(tmp_path: Path, source: MemoryLog) -> Path:
    pack_of(tmp_path / "archive", source, "a", "b")
    pack_of(tmp_path / "archive", source, "ü")
    return tmp_path / "archive"


def test_it_gives_every_stream_as_its_log_did(root: Path, source: MemoryLog) -> None:
    with open_log(f"archive:{root}") as log:
        assert log.streams() == source.streams()
        for stream in ("a", "b", "ü"):
            for page in (1000, 7):
                assert stored(log, stream, page=page) == stored(source, stream)
            assert list(log.lines(stream)) == list(source.lines(stream))
            assert log.stream(stream) == source.stream(stream)
        assert log.read("b", after_seq=2490, limit=3) == source.read("b", after_seq=2490, limit=3)
        assert log.read("b", after_seq=3000) == []
        assert list(log.lines("b", after_seq=10, until_seq=12)) == list(source.lines("b", after_seq=10, until_seq=12))
        assert log.find("b", "k77") == source.find("b", "k77")
        assert log.find("b", "nowhere") is None
        assert (log.read("c"), list(log.lines("c")), log.stream("c"), log.find("c", "x")) == ([], [], None, None)
        assert log.load_snapshot("a", "notes") is None
        assert list(log.verify()) == list(log.verify("a")) == list(log.verify("c")) == []


def test_streams_come_in_pages_and_heads_in_ranges(root: Path) -> None:
    with ArchiveLog(root) as log:
        assert [info.stream for info in log.streams(limit=2)] == ["a", "b"]
        assert [info.stream for info in log.streams(after="b")] == ["ü"]
        assert [(head.stream, head.weight, head.last_seq) for head in log.heads(after="a")] == [
            ("b", 2500, 2500),
            ("ü", 1, 1),
        ]
        assert [head.stream for head in log.heads(until="b")] == ["a", "b"]
        assert len({head.version for head in log.heads()}) == 3
        with pytest.raises(ValueError, match="limit"):
            log.streams(limit=0)


changes: dict[str, When] = {
    "append": lambda log: log.append("a", [note("x")]),
    "delete_stream": lambda log: log.delete_stream("a"),
    "save_snapshot": lambda log: log.save_snapshot("a", snapshot(1)),
    "adopt": lambda log: log.adopt("a", []),
    "repair": lambda log: log.repair("a"),
    "feed": lambda log: log.feed(),
    "put_blob": lambda log: log.put_blob(b"x"),
}


@pytest.mark.parametrize("change", changes.values(), ids=changes)
def test_it_is_only_read(root: Path, change: When) -> None:
    with ArchiveLog(root) as log:
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        with pytest.raises(Unsupported):
            change(log)
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
        assert log.capabilities == {Capability.DURABLE, Capability.BLOBS}


def test_bad_ids_are_refused_and_a_closed_archive_answers_nothing(root: Path) -> None:
    log = ArchiveLog(root)
    calls: list[Callable[[str], object]] = [log.read, lambda s: list(log.lines(s)), log.stream]
    calls += [lambda s: log.find(s, "k"), lambda s: list(log.verify(s)), lambda s: log.append(s, [])]
    for call in calls:
        for stream in bad_streams.values():
            with pytest.raises(InvalidStream):
                call(stream)
    log.close()
    for call in [*calls, lambda _: log.streams(), lambda _: list(log.heads()), lambda _: list(log.verify())]:
        with pytest.raises(LogClosed):
            call("a")


def test_a_place_without_an_archive_is_told_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        open_log(f"archive:{tmp_path}/none")
    (tmp_path / "file").write_bytes(b"")
    for place in ("file", "file/below", "."):
        with pytest.raises(NotALog):
            open_log(f"archive:{tmp_path / place}")
    for url in ("archive:", "archive://", "archive:a\0b"):
        with pytest.raises(InvalidUrl):
            open_log(url)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_archive_of_a_newer_version_is_left_to_it(root: Path) -> None:
    (root / "archive.json").write_bytes(sealed(Info("notes", version=2)))
    with pytest.raises(LogTooNew):
        ArchiveLog(root)


def test_it_says_itself_of_which_model_it_is(tmp_path: Path, source: MemoryLog) -> None:
    pack_of(tmp_path / "archive", source, "a", model="rundir")
    assert default_model(f"archive:{tmp_path}/archive") == "rundir"


def test_it_is_not_read_with_another_model(tmp_path: Path, source: MemoryLog) -> None:
    pack_of(tmp_path / "archive", source, "a", model="rundir")
    with pytest.raises(ModelMismatch, match="'rundir', not of 'engine'"):
        runstate.open(f"archive:{tmp_path}/archive", "engine")


# --- copies ----------------------------------------------------------------------------------------------------


def test_of_two_copies_of_a_run_the_longer_counts_and_equal_ones_are_one(root: Path, source: MemoryLog) -> None:
    pack_of(root, source, "a")
    source.append("a", [note("later")])
    pack_of(root, source, "a")
    pack_of(root, source, "a")
    with ArchiveLog(root) as log:
        assert stored(log, "a") == stored(source, "a")
        assert log.streams() == source.streams()
        assert list(log.verify()) == []


def test_copies_that_differ_are_found(root: Path) -> None:
    other = MemoryLog()
    other.append("a", [note("other"), note("one")])
    pack_of(root, other, "a")
    with ArchiveLog(root) as log:
        (finding,) = log.verify()
    assert (finding.code, finding.stream, finding.severity) == ("archive.copies_differ", "a", "damage")


# --- damage ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    log = MemoryLog()
    log.append("r", numbered(2))
    log.append("s", numbered(1))
    pack_of(tmp_path / "small", log, "r", "s")
    return tmp_path / "small"


def damage(root: Path) -> list[str]:
    """What opening and verifying an archive finds, by code."""
    try:
        with ArchiveLog(root) as log:
            return [finding.code for finding in log.verify() if finding.severity == "damage"]
    except (NotALog, LogTooNew) as error:
        return [error.code]


@pytest.mark.parametrize("name", ["*.ndjson", "*.manifest.json", "archive.json"])
def test_a_flip_of_any_byte_is_found(small: Path, name: str) -> None:
    (path,) = small.rglob(name)
    intact = path.read_bytes()
    assert damage(small) == []
    for offset in range(len(intact)):
        for mask in (0x01, 0x20, 0x80):
            path.write_bytes(intact[:offset] + bytes([intact[offset] ^ mask]) + intact[offset + 1 :])
            assert damage(small), (offset, mask)


@pytest.mark.parametrize("name", ["*.ndjson", "*.manifest.json"])
def test_a_cut_at_any_byte_and_a_byte_more_are_found(small: Path, name: str) -> None:
    (path,) = small.rglob(name)
    intact = path.read_bytes()
    for changed in [*(intact[:size] for size in range(len(intact))), intact + b"\n", intact + intact]:
        path.write_bytes(changed)
        assert damage(small), len(changed)


def test_a_changed_event_is_named_and_what_is_before_it_can_be_read(small: Path) -> None:
    (path,) = small.rglob("*.ndjson")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1].replace(b"k2", b"kk"), *lines[2:]]))
    with ArchiveLog(small) as log:
        found = {(finding.code, finding.stream, finding.seq) for finding in log.verify()}
        assert found == {("log.event_changed", "r", 2), ("archive.pack_changed", None, None)}
        assert [record.seq for record in log.read("r", limit=1)] == [1]
        with pytest.raises(LogDamaged) as told:
            log.read("r")
        assert (told.value.details["stream"], told.value.details["seq"]) == ("r", 2)
        assert len(stored(log, "s")) == 1
        assert list(log.verify("s")) == []


def test_a_pack_that_is_gone_is_missed(small: Path) -> None:
    (path,) = small.rglob("*.ndjson")
    path.unlink()
    with ArchiveLog(small) as log:
        assert {finding.code for finding in log.verify()} == {"log.events_missing", "archive.pack_missing"}
        with pytest.raises(LogDamaged):
            log.read("r")


def test_with_a_damaged_manifest_nobody_says_that_a_run_is_not_there(root: Path) -> None:
    path = min(root.rglob("*.manifest.json"))
    path.write_bytes(path.read_bytes()[:-20])
    with ArchiveLog(root) as log:
        assert len(stored(log, "ü")) == 1
        calls: list[Callable[[], object]] = [log.streams, lambda: list(log.heads()), lambda: log.stream("a")]
        for call in calls:
            with pytest.raises(LogDamaged, match="manifest"):
                call()


def test_a_pack_without_a_manifest_is_not_there(root: Path, source: MemoryLog) -> None:
    source.append("new", numbered(1))
    name = pack_of(root, source, "new")
    (root / "packs" / f"{name}.manifest.json").unlink()
    with ArchiveLog(root) as log:
        assert log.stream("new") is None
        (finding,) = log.verify()
        assert (finding.code, finding.severity) == ("archive.unfinished_pack", "warning")
    shutil.copy(root / "packs" / f"{name}.ndjson", root / "packs" / "mine.ndjson")
    with ArchiveDirectory(root).alone():
        left = {path.name for path in (root / "packs").iterdir()}
    # What an archive would not have written is nobody's leftover.
    assert f"{name}.ndjson" not in left
    assert "mine.ndjson" in left


def test_a_pack_that_somebody_writes_is_not_cleaned_away(root: Path, source: MemoryLog) -> None:
    writer = PackWriter(ArchiveDirectory(root), "notes")
    source.append("new", numbered(2))
    writer.add("new", stored(source, "new"))
    with ArchiveDirectory(root).alone():
        assert writer.commit()
    with ArchiveLog(root) as log:
        assert stored(log, "new") == stored(source, "new")
        assert list(log.verify()) == []


# --- lines -----------------------------------------------------------------------------------------------------


def record(body: bytes, **changes: str) -> Record:
    members = {"event_id": "e", "type": "t", "key": "k", "tenant": "", "emitted_at": "", "persisted_at": "p"} | changes
    return Record("s", 7, members["event_id"], members["type"], members["key"], members["tenant"], "", "p", body)


@pytest.mark.parametrize(
    "body", [b'{"a": 1.0,  "b":"\\u00e9"}', b'{"a":"\xc3\xa9\xe2\x80\xa8"}', b"[]", b'{"crc":"00000000"}']
)
def test_a_line_is_kept_byte_for_byte(body: bytes) -> None:
    kept = encode_line(record(body, key='quo"te\n\\', tenant="ü\u2028"))
    assert kept.count(b"\n") == 1
    assert decode_line(kept[:-1]) == record(body, key='quo"te\n\\', tenant="ü\u2028")
    assert body in kept


@pytest.mark.parametrize("body", [b"", b"{", b" {}", b'{"a":\n1}', b"{} {}", b"not json", b'{}],"x":[{}'])
def test_a_line_that_would_not_come_back_is_refused(body: bytes) -> None:
    with pytest.raises(Unfit) as told:
        encode_line(record(body))
    assert told.value.details == {"stream": "s", "seq": 7}


def test_an_event_that_cannot_be_written_leaves_the_pack_as_it_was(
    tmp_path: Path, source: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "runstate.logs.archive.writing._buffer_bytes", 1
    )  # What comes before it is in the file by then.
    directory = ArchiveDirectory(tmp_path / "archive")
    directory.prepare("notes")
    writer = PackWriter(directory, "notes")
    writer.add("a", stored(source, "a"))
    with pytest.raises(Unfit):
        writer.add("s", [record(b"{}"), record(b"{")])
    writer.add("ü", stored(source, "ü"))
    writer.commit()
    with ArchiveLog(tmp_path / "archive") as log:
        assert [info.stream for info in log.streams()] == ["a", "ü"]
        assert list(log.verify()) == []


def test_a_seal_is_found_broken_and_a_newer_version_is_told() -> None:
    data = sealed(Info("engine"))
    assert unsealed(data, Info) == Info("engine")
    for changed in (data[:-1], data + b"\n", data.replace(b"engine", b"engin3"), b"", b"[]", b"\xff"):
        with pytest.raises(Broken):
            unsealed(changed, Info)
    with pytest.raises(LogTooNew):
        unsealed(sealed(Info("engine", version=2)), Info)


def test_times_and_counts_in_a_manifest_are_those_of_the_events(small: Path) -> None:
    (path,) = small.rglob("*.manifest.json")
    content = msgspec.json.decode(path.read_bytes())["content"]
    assert datetime.fromisoformat(content["runs"][0]["lastPersistedAt"]) <= datetime.now(UTC)
    assert [(run["stream"], run["events"], run["offset"] + run["bytes"]) for run in content["runs"]][1] == (
        "s",
        1,
        content["bytes"],
    )


def test_an_archive_of_the_first_version_is_read_and_written_byte_for_byte(golden: Path, tmp_path: Path) -> None:
    lines = (golden / "engine_history.ndjson").read_bytes().split(b"\n")
    (pack,) = (golden / "archive").rglob("*.ndjson")
    with ArchiveLog(golden / "archive") as log:
        assert (log.info.model, list(log.verify())) == ("engine", [])
        (info,) = log.streams()
        assert (info.events, info.last_seq) == (25, 44)
        assert set(log.lines(info.stream)) < set(lines)  # Two of them have one key.
        records = stored(log, info.stream)
    assert b"".join(map(encode_line, records)) == pack.read_bytes()
    directory = ArchiveDirectory(tmp_path / "archive")
    directory.prepare("engine")
    writer = PackWriter(directory, "engine")
    writer.add(info.stream, records)
    writer.commit()
    (made,) = (tmp_path / "archive").rglob("*.manifest.json")
    (expected,) = (golden / "archive").rglob("*.manifest.json")
    assert made.read_bytes() == expected.read_bytes()
    assert (tmp_path / "archive" / "archive.json").read_bytes() == (golden / "archive" / "archive.json").read_bytes()
