"""Tables: sorted files read as one, and commits that count or do not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.errors import LogBusy, LogNotFound, LogTooNew, NotALog
from runstate.pipeline import event_table, sorted_files
from runstate.pipeline.event_table import windows
from runstate.pipeline.shards import Shard
from runstate.pipeline.sorted_files import SortedWriter, TableDamaged, formats
from runstate.pipeline.table import Commit, Table, TableInfo

schema = pa.schema([("stream", pa.string()), ("seq", pa.int64()), ("body", pa.string())])
info = TableInfo("events", "engine", 1)
Row = tuple[str, int, str]


def new_table(directory: Path, file_format: str = "parquet") -> Table:
    return Table.make(directory, TableInfo("events", "engine", 1, file_format))


def add(table: Table, rows: list[Row], *, replaces: bool = False) -> Commit:
    """Commit rows, which need not be sorted, as one job with one file would."""
    with table.writing():
        writer = SortedWriter(table.data, "events", schema, table.info.file_format)
        for row in sorted(rows):
            writer.write(pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True))], schema))
        commit = Commit(number=len(table.commits()) + 1, files=writer.close(), replaces=replaces)
        table.commit(commit)
    return commit


def rows_of(table: Table, shard: Shard = Shard()) -> list[Row]:  # noqa: B008 - it is frozen
    pieces = table.pieces(table.files("events"), shard, schema.names)
    return [tuple(row.values()) for piece in pieces for row in piece.to_pylist()]


def history(commits: int) -> st.SearchStrategy[list[dict[str, int]]]:
    """For each commit how many events of which stream it adds: streams grow from commit to commit."""
    names = st.sampled_from(["a", "b", "ba", "ü", "\uffee", "\U0001f701", "z"])
    return st.lists(st.dictionaries(names, st.integers(1, 7), max_size=5), min_size=1, max_size=commits)


def grown(commits: list[dict[str, int]]) -> Iterator[list[Row]]:
    last: dict[str, int] = {}
    for added in commits:
        rows = []
        for stream, count in added.items():
            rows += [(stream, last.get(stream, 0) + n, f"{stream}-{n}") for n in range(1, count + 1)]
            last[stream] = last.get(stream, 0) + count
        yield rows


@pytest.mark.parametrize("file_format", sorted(formats))
@given(
    history(4), st.integers(1, 5), st.tuples(st.sampled_from(["", "a", "b", "m"]), st.sampled_from(["b", "ü", None]))
)
@settings(max_examples=40, deadline=None)
def test_files_of_many_commits_are_read_as_one_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    file_format: str,
    commits: list[dict[str, int]],
    chunk: int,
    bounds: tuple[str, str | None],
) -> None:
    table = new_table(tmp_path_factory.mktemp("table"), file_format)
    everything = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_files, "chunk_rows", chunk)
        for rows in grown(commits):
            add(table, rows)
            everything += rows
    after, until = bounds
    expected = sorted(row for row in everything if row[0] > after and (until is None or row[0] <= until))
    assert rows_of(table, Shard(after, until)) == expected
    assert rows_of(table, Shard(only=("b", "z"))) == sorted(row for row in everything if row[0] in ("b", "z"))


@given(history(3), st.integers(1, 5), st.integers(2, 9))
@settings(max_examples=60, deadline=None)
def test_windows_hold_whole_streams_or_name_the_oversized(
    tmp_path_factory: pytest.TempPathFactory, commits: list[dict[str, int]], chunk: int, whole: int
) -> None:
    table = new_table(tmp_path_factory.mktemp("table"))
    everything: list[Row] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_files, "chunk_rows", chunk)
        patch.setattr(event_table, "whole_rows_max", whole)
        for rows in grown(commits):
            add(table, rows)
            everything += rows
        found, oversized, order = list[Row](), list[str](), list[str]()
        for window in windows(table, table.files("events"), Shard(), schema.names):
            found += [tuple(row.values()) for row in window.rows.to_pylist()]
            order += [*window.streams, *([window.oversized] if window.oversized else [])]
            oversized += [window.oversized] if window.oversized else []
            ends = [*window.starts[1:]]
            assert [
                len({r["stream"] for r in window.rows.slice(s, e - s).to_pylist()})
                for s, e in zip(window.starts, ends, strict=False)
            ] == [1] * len(window.streams)
    sizes = {stream: len(list(rows)) for stream, rows in groupby(sorted(everything), key=lambda row: row[0])}
    assert order == sorted(sizes)
    assert all(sizes[stream] > whole for stream in oversized)
    assert found == sorted(row for row in everything if row[0] not in oversized)


def test_what_no_commit_names_is_not_there_and_the_next_job_removes_it(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    add(table, [("a", 1, "x")])
    writer = SortedWriter(table.data, "events", schema)
    writer.write(pa.RecordBatch.from_pylist([{"stream": "b", "seq": 1, "body": "lost"}], schema))
    writer.close()
    assert rows_of(Table.open(tmp_path / "t")) == [("a", 1, "x")]
    assert len(list(table.data.iterdir())) == 2
    add(table, [("c", 1, "y")])
    assert len(list(table.data.iterdir())) == 2
    assert rows_of(table) == [("a", 1, "x"), ("c", 1, "y")]


def test_a_commit_that_replaces_leaves_nothing_of_before(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    add(table, [("a", 1, "x")])
    add(table, [("b", 1, "y")], replaces=True)
    assert rows_of(table) == [("b", 1, "y")]
    assert table.files("events", after=1) == table.files("events")


def test_only_one_job_writes_at_a_time(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    with table.writing(), pytest.raises(LogBusy, match="Another job"), Table.open(tmp_path / "t").writing():
        pass


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_data_file_is_named(tmp_path: Path, harm: str) -> None:
    table = new_table(tmp_path / "t")
    add(table, [("a", n, "x" * n) for n in range(1, 500)])
    (path,) = table.data.iterdir()
    data = bytearray(path.read_bytes())
    if harm == "flip":
        data[len(data) // 3] ^= 0x10
    path.unlink() if harm == "remove" else path.write_bytes(data[:-9] if harm == "cut" else data)
    with pytest.raises(TableDamaged, match=path.name):
        rows_of(table)


@pytest.mark.parametrize("file_format", sorted(formats))
@pytest.mark.slow
@pytest.mark.parametrize("bit", [0x01, 0x40])
def test_every_flipped_byte_of_a_data_file_is_found_or_harmless(tmp_path: Path, file_format: str, bit: int) -> None:
    table = new_table(tmp_path / "t", file_format)
    add(table, [("a", n, f"{n * 7919}") for n in range(1, 40)])
    expected = rows_of(table)
    (path,) = table.data.iterdir()
    whole = path.read_bytes()
    for offset in range(len(whole)):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ bit]) + whole[offset + 1 :])
        try:
            assert rows_of(table) == expected, offset
        except TableDamaged:
            continue


@pytest.mark.parametrize("file_format", sorted(formats))
def test_a_file_without_a_column_that_is_wanted_is_named(tmp_path: Path, file_format: str) -> None:
    table = new_table(tmp_path / "t", file_format)
    commit = add(table, [("a", 1, "x")])
    with pytest.raises(TableDamaged, match=commit.files[0].name) as refused:
        list(table.pieces(table.files("events"), Shard(), ["stream", "seq", "colour"]))
    assert "colour" in str(refused.value)


def test_every_flipped_byte_of_a_commit_is_found(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    add(table, [("a", 1, "x")])
    path = tmp_path / "t" / "commits" / "00000001.json"
    whole = path.read_bytes()
    for offset in range(len(whole) - 1):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        with pytest.raises(TableDamaged):
            table.commits()


def test_a_missing_commit_is_damage(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    for name in "abc":
        add(table, [(name, 1, "x")])
    (tmp_path / "t" / "commits" / "00000002.json").unlink()
    with pytest.raises(TableDamaged, match="no commit 2"):
        table.commits()


def test_what_is_no_table_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        Table.open(tmp_path / "nowhere")
    (tmp_path / "table.json").write_text("{}")
    with pytest.raises(NotALog):
        Table.open(tmp_path)
    (tmp_path / "table.json").write_text('{"version": 99}')
    with pytest.raises(LogTooNew, match="upgrade"):
        Table.open(tmp_path)
    new_table(tmp_path / "t")
    with pytest.raises(NotALog, match="holds events of the model 'engine', not snapshots of 'rundir'"):
        Table.make(tmp_path / "t", TableInfo("snapshots", "rundir", 1))


def test_a_target_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotALog, match="Choose an empty or new directory"):
        new_table(tmp_path / "file" / "t")


def test_files_are_synced_before_they_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    table = new_table(tmp_path / "t")
    commit = add(table, [("a", 1, "x")])
    data = str(table.data / commit.files[0].name)
    commits = [n for n, path in enumerate(synced) if "/commits" in path]
    assert synced.index(data) < synced.index(str(table.data)) < commits[-1]
