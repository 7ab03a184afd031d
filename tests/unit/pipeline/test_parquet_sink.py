"""Snapshots as versions of a Parquet table: the newest row of each stream, whatever happens while it is published."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path, PurePath
from random import Random

import msgspec
import pytest

pa = pytest.importorskip("pyarrow", reason="pip install 'runstate[spark]'")

import pyarrow.parquet as pq  # noqa: E402

from runstate.errors import LogBusy, LogDamaged, LogFull, LogNotFound, LogTooNew, NotALog  # noqa: E402
from runstate.models.canonical import digest  # noqa: E402
from runstate.models.engine import ENGINE  # noqa: E402
from runstate.models.rundir import RUNDIR  # noqa: E402
from runstate.pipeline.live import parquet_sink  # noqa: E402
from runstate.pipeline.live.parquet_manifest import read_manifest, versions_kept  # noqa: E402
from runstate.pipeline.live.parquet_sink import DataFiles, ParquetSink, read_version  # noqa: E402
from runstate.sinks import Projected  # noqa: E402
from runstate.storage.disk import File, RealDisk  # noqa: E402


def row(stream: str, seq: int, *, applied: int | None = None, born: str = "b", version: int = 1) -> Projected:
    return Projected(
        stream=stream,
        model="engine",
        version=version,
        last_event_seq=seq,
        applied=seq if applied is None else applied,
        observed=seq,
        born=born,
        status="RUNNING",
        stale=seq % 2 == 0,
        projected_at="2026-11-15T12:00:00.000Z",
        body=f'{{"seq":{seq},"name":"\u2028 ä"}}'.encode(),
    )


def seqs(directory: Path, version: int | None = None) -> dict[str, int]:
    table = read_version(directory, version)
    return dict(zip(table["stream"].to_pylist(), table["last_event_seq"].to_pylist(), strict=True))


@pytest.fixture(autouse=True)
def _nothing_is_held() -> Iterator[None]:
    parquet_sink._files_in.cache_clear()
    yield
    parquet_sink._files_in.cache_clear()


@pytest.fixture
def sink(tmp_path: Path) -> ParquetSink:
    return ParquetSink(tmp_path, ENGINE)


# --- rows ------------------------------------------------------------------------------------------------


def test_a_row_comes_back_as_it_was_kept(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row("r-1", 3, applied=2), row("r-2", 4)])
    assert sink.load("r-1") == row("r-1", 3, applied=2)
    assert ParquetSink(tmp_path, ENGINE).load("r-2") == row("r-2", 4)
    assert sink.load("r-3") is None


def test_no_thread_holds_what_was_read_once_it_is_read(
    sink: ParquetSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that did would need Python to let go of it, and abort a process that is about to end."""
    sink.keep([row("r-1", 3)])
    (file,) = read_manifest(tmp_path / "manifest.json").versions[-1].files
    data = (tmp_path / "data" / file.name).read_bytes()
    monkeypatch.setattr(Path, "read_bytes", lambda path: data)
    before = sys.getrefcount(data)
    for _ in range(500):
        assert DataFiles(tmp_path / "data").table(file).num_rows == 1
        assert sys.getrefcount(data) == before


def test_any_tool_reads_its_files(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row("r-1", 3)])
    (file,) = (tmp_path / "data").iterdir()
    (found,) = pq.read_table(file).to_pylist()
    assert found == {
        "stream": "r-1",
        "model": "engine",
        "version": 1,
        "last_event_seq": 3,
        "status": "RUNNING",
        "stale": False,
        "projected_at": "2026-11-15T12:00:00.000Z",
        "digest": digest(row("r-1", 3).body),
        "applied": 3,
        "observed": 3,
        "born": "b",
        "body": row("r-1", 3).body.decode(),
    }


def test_an_older_row_is_passed_over_and_makes_no_version(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row("r-1", 5)])
    sink.keep([row("r-1", 4)])
    sink.keep([row("r-1", 5, applied=4)])
    assert (seqs(tmp_path), sink.load("r-1")) == ({"r-1": 5}, row("r-1", 5))
    assert len(read_manifest(tmp_path / "manifest.json").versions) == 1


def test_a_stream_that_was_begun_again_takes_the_place_of_the_first(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row("r-1", 5)])
    sink.keep([row("r-1", 1, born="later")])
    assert seqs(tmp_path) == {"r-1": 1}


def test_a_row_of_another_version_of_the_model_takes_the_place_of_the_first(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row("r-1", 5)])
    sink.keep([row("r-1", 1, version=2)])
    assert seqs(tmp_path) == {"r-1": 1}


def test_a_stream_that_is_dropped_is_gone_and_may_come_back(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row(f"r-{n}", 5) for n in range(9)])
    sink.drop("r-3")
    sink.drop("r-77")
    assert sink.load("r-3") is None
    assert sorted(seqs(tmp_path)) == [f"r-{n}" for n in range(9) if n != 3]
    sink.keep([row("r-3", 1)])
    assert seqs(tmp_path)["r-3"] == 1


def test_the_last_stream_may_be_dropped(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row("r-1", 5)])
    sink.drop("r-1")
    assert (seqs(tmp_path), sink.load("r-1")) == ({}, None)


@pytest.mark.parametrize("whole_bytes_max", [8 << 20, 0], ids=["held", "by row group"])
@pytest.mark.parametrize("seed", range(5))
def test_it_holds_what_a_dictionary_would(
    tmp_path: Path, seed: int, whole_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_sink, "_whole_bytes_max", whole_bytes_max)
    monkeypatch.setattr(parquet_sink, "_group_rows", 7)
    random, model = Random(seed), dict[str, Projected]()
    for _ in range(40):
        sink = ParquetSink(tmp_path, ENGINE)
        streams = [f"r-{random.randrange(80):03d}" for _ in range(random.randrange(1, 12))]
        if random.random() < 0.2:
            sink.drop(streams[0])
            model.pop(streams[0], None)
        else:
            rows = {stream: row(stream, random.randrange(1, 50)) for stream in streams}
            sink.keep(list(rows.values()))
            model |= {s: r for s, r in rows.items() if s not in model or r.rank >= model[s].rank}
        wanted = [f"r-{random.randrange(80):03d}" for _ in range(5)]
        assert sink.load_all(wanted) == {s: model[s] for s in wanted if s in model}
    assert seqs(tmp_path) == {stream: each.last_event_seq for stream, each in model.items()}


# --- versions --------------------------------------------------------------------------------------------


def test_the_last_versions_can_be_read_and_older_files_are_gone(sink: ParquetSink, tmp_path: Path) -> None:
    for seq in range(1, 31):
        sink.keep([row("r-1", seq)])
    first = 31 - versions_kept
    assert [seqs(tmp_path, number)["r-1"] for number in range(first, 31)] == list(range(first, 31))
    with pytest.raises(LogNotFound, match=rf"no version {first - 1}; it has {first} to 30"):
        read_version(tmp_path, first - 1)
    assert len(list((tmp_path / "data").iterdir())) <= versions_kept


def test_there_are_few_files_and_little_is_written_again(sink: ParquetSink, tmp_path: Path) -> None:
    written = 0
    for number in range(200):
        sink.keep([row(f"r-{number}", 1)])
        files = read_manifest(tmp_path / "manifest.json").files
        written += files[-1].rows
        assert len(files) <= 10
    assert len(seqs(tmp_path)) == 200
    assert written <= 200 * 10


def test_a_few_streams_that_change_do_not_write_the_many_that_do_not(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row(f"r-{number}", 1) for number in range(1000)])
    (large,) = read_manifest(tmp_path / "manifest.json").files
    for seq in range(2, 60):
        sink.keep([row("r-1", seq), row("r-2", seq)])
    assert large in read_manifest(tmp_path / "manifest.json").files


def test_a_reader_gets_one_version_while_others_are_published(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row(f"r-{n}", 1) for n in range(20)])
    over = threading.Event()

    def publish() -> None:
        for seq in range(2, 40):
            ParquetSink(tmp_path, ENGINE).keep([row(f"r-{n}", seq) for n in range(20)])
        over.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    while not over.is_set():
        found = seqs(tmp_path)
        assert (len(found), len(set(found.values()))) == (20, 1)
    publisher.join()


def test_two_projectors_may_share_a_table(tmp_path: Path) -> None:
    def publish(name: str) -> None:
        sink = ParquetSink(tmp_path, ENGINE)
        for seq in range(1, 40):
            sink.keep([row(f"{name}-{seq}", seq)])

    threads = [threading.Thread(target=publish, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seqs(tmp_path) == {f"{name}-{seq}": seq for name in ("a", "b") for seq in range(1, 40)}


# --- aside -----------------------------------------------------------------------------------------------


def test_what_is_aside_is_seen_all_at_once(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row("r-1", 9), row("r-2", 9)])
    aside = ParquetSink(tmp_path, ENGINE, aside="v2")
    assert aside.load("r-1") is None
    aside.keep([row("r-1", 4, version=2)])
    sink.keep([row("r-2", 10)])
    assert seqs(tmp_path) == {"r-1": 9, "r-2": 10}
    aside.keep([row("r-2", 5, version=2)])
    aside.switch()
    assert seqs(tmp_path) == {"r-1": 4, "r-2": 5}
    aside.keep([row("r-2", 6, version=2)])
    assert seqs(tmp_path) == {"r-1": 4, "r-2": 6}
    assert not (tmp_path / "manifest.v2.json").exists()


def test_one_log_is_switched_while_another_is_not(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row("a-1", 9), row("b-1", 9)])
    first, second = (ParquetSink(tmp_path, ENGINE, aside=f"v2.{log}") for log in "ab")
    first.keep([row("a-1", 4, version=2)])
    second.keep([row("b-1", 2, version=2)])
    first.switch()
    assert seqs(tmp_path) == {"a-1": 4, "b-1": 9}
    second.keep([row("b-1", 5, version=2)])
    second.switch()
    assert seqs(tmp_path) == {"a-1": 4, "b-1": 5}


def test_to_switch_again_changes_nothing(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row("r-1", 9)])
    ParquetSink(tmp_path, ENGINE, aside="v2").switch()
    sink.switch()
    assert seqs(tmp_path) == {"r-1": 9}


# --- kills and refusals ----------------------------------------------------------------------------------


class Killed(BaseException):
    pass


class FatalDisk(RealDisk):
    """The process dies before the n-th change of the disk."""

    def __init__(self, changes_left: int) -> None:
        super().__init__()
        self.changes_left = changes_left

    def _change(self) -> None:
        self.changes_left -= 1
        if self.changes_left < 0:
            raise Killed

    def create(self, path: PurePath) -> File:
        self._change()
        return super().create(path)

    def rename(self, source: PurePath, target: PurePath) -> None:
        self._change()
        super().rename(source, target)

    def remove(self, path: PurePath) -> None:
        if self.changes_left >= 0:  # The dead clean up nothing.
            self._change()
            super().remove(path)

    def sync_directory(self, path: PurePath) -> None:
        self._change()
        super().sync_directory(path)


@pytest.mark.parametrize("changes", range(16))
@pytest.mark.parametrize("doing", ["keep", "switch"])
def test_killed_at_any_moment_it_is_the_old_version_or_the_new_one(
    tmp_path: Path, changes: int, doing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = ParquetSink(tmp_path, ENGINE)
    for seq in range(1, 13):
        sink.keep([row("r-1", seq), row(f"s-{seq}", seq)])
    aside = ParquetSink(tmp_path, ENGINE, aside="v2")
    aside.keep([row("r-1", 5, version=2), *(row(f"s-{seq}", seq, version=2) for seq in range(1, 13))])
    before = read_version(tmp_path)
    disk = FatalDisk(changes)
    monkeypatch.setattr(parquet_sink, "_disk", disk)
    try:
        sink.keep([row("r-1", 13), row("s-1", 13)]) if doing == "keep" else aside.switch()
        is_done = True
    except Killed:
        is_done = False
    monkeypatch.setattr(parquet_sink, "_disk", RealDisk())
    parquet_sink._files_in.cache_clear()
    new = {"r-1": 13, "s-1": 13} if doing == "keep" else {"r-1": 5}
    old = dict(zip(before["stream"].to_pylist(), before["last_event_seq"].to_pylist(), strict=True))
    found = seqs(tmp_path)
    assert found in ([{**old, **new}] if is_done else [old, {**old, **new}])
    if changes == 15:
        assert is_done
    if doing == "switch":
        ParquetSink(tmp_path, ENGINE, aside="v2").switch()
        assert seqs(tmp_path) == {**old, **new}
    ParquetSink(tmp_path, ENGINE).keep([row("r-1", 99, version=3)])
    assert seqs(tmp_path)["r-1"] == 99
    named = {f.name for v in read_manifest(tmp_path / "manifest.json").versions for f in v.files}
    left = {path.name for path in (tmp_path / "data").iterdir()}
    if doing == "keep":
        named |= {f.name for v in read_manifest(tmp_path / "manifest.v2.json").versions for f in v.files}
    assert left == named
    assert not list(tmp_path.glob("*.tmp"))


def test_a_manifest_of_somebody_else_beside_ours_stays_and_nothing_is_removed_meanwhile(
    sink: ParquetSink, tmp_path: Path
) -> None:
    sink.keep([row("r-1", 1)])
    foreign = tmp_path / "manifest.mine.json"
    foreign.write_bytes(b'{"name": "my app"}')
    for seq in range(2, 2 + 2 * versions_kept):
        sink.keep([row("r-1", seq)])
    assert foreign.read_bytes() == b'{"name": "my app"}'
    assert seqs(tmp_path) == {"r-1": 1 + 2 * versions_kept}
    foreign.unlink()
    sink.keep([row("r-1", 99)])
    named = {f.name for v in read_manifest(tmp_path / "manifest.json").versions for f in v.files}
    assert {path.name for path in (tmp_path / "data").iterdir()} == named


def test_a_full_disk_says_so_and_leaves_the_old_version(
    sink: ParquetSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.keep([row("r-1", 1)])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(parquet_sink, "write_new", full)
        with pytest.raises(LogFull, match="No space left"):
            sink.keep([row("r-1", 2)])
    assert seqs(tmp_path) == {"r-1": 1}
    sink.keep([row("r-1", 2)])
    assert seqs(tmp_path) == {"r-1": 2}


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotALog, match="file/table is a file, or is below one"):
        ParquetSink(tmp_path / "file" / "table", ENGINE)


def test_somebody_who_publishes_for_too_long_is_not_waited_for(
    sink: ParquetSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.keep([row("r-1", 1)])
    monkeypatch.setattr(parquet_sink, "_lock_s", 0.05)
    lock = RealDisk().lock(tmp_path / ".lock")
    with pytest.raises(LogBusy, match="Somebody else is publishing"):
        sink.keep([row("r-1", 2)])
    lock.release()


def test_what_is_no_table_of_ours_is_refused(sink: ParquetSink, tmp_path: Path) -> None:
    with pytest.raises(LogNotFound, match="no table of snapshots"):
        read_version(tmp_path)
    sink.keep([row("r-1", 1)])
    with pytest.raises(NotALog, match="of the model 'engine', not 'rundir'"):
        ParquetSink(tmp_path, RUNDIR)
    manifest = read_manifest(tmp_path / "manifest.json")
    newer = msgspec.structs.replace(manifest, format=2)
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(newer))
    with pytest.raises(LogTooNew, match="format 2"):
        read_version(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"{}")
    with pytest.raises(NotALog, match="not a manifest of a Runstate table"):
        ParquetSink(tmp_path, ENGINE)


def test_a_flipped_bit_is_damage(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row("r-1", 1)])
    (file,) = (tmp_path / "data").iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(LogDamaged, match="does not fit its digest"):
        read_version(tmp_path)


def test_a_file_that_is_gone_is_damage(sink: ParquetSink, tmp_path: Path) -> None:
    sink.keep([row("r-1", 1)])
    (file,) = (tmp_path / "data").iterdir()
    file.unlink()
    with pytest.raises(LogDamaged, match="is gone, and the manifest names it"):
        read_version(tmp_path)
