"""Tables: sorted files read as one, and commits that count or do not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.errors import LogBusy, LogNotFound, LogTooNew, NotALog
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.tables import event_table, sorted_files
from runstate.pipeline.tables.event_table import windows
from runstate.pipeline.tables.sorted_files import FileEntry, SortedWriter, TableDamaged
from runstate.pipeline.tables.table import Commit, Table, TableInfo, kinds
from runstate.pipeline.tables.versions import at_version, list_versions, restore, vacuum, version_of

schema = pa.schema([("stream", pa.string()), ("seq", pa.int64()), ("body", pa.string())])
info = TableInfo("events", "engine", 1)
Row = tuple[str, int, str]


def new_table(directory: Path) -> Table:
    return Table.make(directory, info, dict.fromkeys(kinds["events"], schema))


def add(table: Table, rows: list[Row], *, replaces: bool = False) -> Commit:
    """Commit rows, which need not be sorted, as one job with one file would."""
    with table.writing():
        commit = Commit(number=table.next_number(), files=written(table, rows), replaces=replaces)
        table.commit(commit)
    return commit


def written(table: Table, rows: list[Row], kind: str = "events") -> list[FileEntry]:
    writer = SortedWriter(table.place(kind), kind, schema)
    for row in sorted(rows):
        writer.write(pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True))], schema))
    return writer.close()


def data_files(table: Table, kind: str = "events") -> list[Path]:
    return sorted(table.place(kind).glob("*.parquet"))


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


@given(
    history(4), st.integers(1, 5), st.tuples(st.sampled_from(["", "a", "b", "m"]), st.sampled_from(["b", "ü", None]))
)
@settings(max_examples=40, deadline=None)
def test_files_of_many_commits_are_read_as_one_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    commits: list[dict[str, int]],
    chunk: int,
    bounds: tuple[str, str | None],
) -> None:
    table = new_table(tmp_path_factory.mktemp("table"))
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
    written(table, [("b", 1, "lost")])
    written(table, [("b", 1, "lost")], "refusals")
    (tmp_path / "t" / "events" / "notes.txt").touch()
    assert rows_of(Table.open(tmp_path / "t")) == [("a", 1, "x")]
    assert (len(data_files(table)), len(data_files(table, "refusals"))) == (2, 1)
    add(table, [("c", 1, "y")])
    assert (len(data_files(table)), len(data_files(table, "refusals"))) == (2, 0)
    assert (tmp_path / "t" / "events" / "notes.txt").exists(), "what is not ours stays"
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
    (path,) = data_files(table)
    data = bytearray(path.read_bytes())
    if harm == "flip":
        data[len(data) // 3] ^= 0x10
    path.unlink() if harm == "remove" else path.write_bytes(data[:-9] if harm == "cut" else data)
    with pytest.raises(TableDamaged, match=path.name):
        rows_of(table)


@pytest.mark.slow
@pytest.mark.parametrize("bit", [0x01, 0x40])
def test_every_flipped_byte_of_a_data_file_is_found_or_harmless(tmp_path: Path, bit: int) -> None:
    table = new_table(tmp_path / "t")
    add(table, [("a", n, f"{n * 7919}") for n in range(1, 40)])
    files = table.files("events")
    expected = [row for piece in table.pieces(files, Shard(), schema.names) for row in piece.to_pylist()]
    (path,) = data_files(table)
    whole = path.read_bytes()
    for offset in range(len(whole)):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ bit]) + whole[offset + 1 :])
        try:
            assert [
                row for piece in table.pieces(files, Shard(), schema.names) for row in piece.to_pylist()
            ] == expected
        except TableDamaged:
            continue


def test_a_file_without_a_column_that_is_wanted_is_named(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    commit = add(table, [("a", 1, "x")])
    with pytest.raises(TableDamaged, match=commit.files[0].name) as refused:
        list(table.pieces(table.files("events"), Shard(), ["stream", "seq", "colour"]))
    assert "colour" in str(refused.value)


@pytest.mark.slow
def test_no_flipped_byte_of_a_commit_gives_other_rows(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    add(table, [("a", 1, "x")])
    expected, found = table.commits(), 0
    path = commit_file(table, 1)
    whole = path.read_bytes()
    for offset in range(len(whole) - 1):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        try:
            assert Table.open(tmp_path / "t").commits() == expected, offset
        except TableDamaged:
            found += 1
    # The rest is of no account: times, and the names of programs.
    assert found > 0.7 * len(whole)


def test_a_missing_commit_is_damage(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    for name in "abc":
        add(table, [(name, 1, "x")])
    commit_file(table, 2).unlink()
    with pytest.raises(TableDamaged, match="cannot be read"):
        Table.open(tmp_path / "t").commits()


@pytest.mark.parametrize("torn", [0, 40, "line", "zeros"])
def test_a_last_commit_that_a_power_cut_has_torn_was_never_there(tmp_path: Path, torn: int | str) -> None:
    table = new_table(tmp_path / "t")
    add(table, [("a", 1, "x")])
    add(table, [("b", 1, "y")])
    path = commit_file(table, 2)
    whole = path.read_bytes()
    size = whole.index(b"\n") + 1 if torn == "line" else torn
    path.write_bytes(whole[:size] if isinstance(size, int) else bytes(len(whole)))
    table = Table.open(tmp_path / "t")
    if torn:
        with pytest.raises(TableDamaged):
            rows_of(table)
    add(table, [("c", 1, "z")])
    assert rows_of(table) == [("a", 1, "x"), ("c", 1, "z")]
    assert len(data_files(table)) == 2


@pytest.mark.slow
def test_a_writer_removes_no_commit_that_is_damaged_and_no_file_of_it(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    for name in "ab":
        add(table, [(name, 1, "x")])
    path, before = commit_file(table, 2), data_files(table)
    whole = path.read_bytes()
    for offset in [*range(0, len(whole) - 60, 9), *range(len(whole) - 60, len(whole) - 2)]:
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        with suppress(TableDamaged, LogTooNew), Table.open(tmp_path / "t").writing():
            pass
        assert path.exists(), offset
        assert data_files(table) == before, offset
    path.write_bytes(whole)
    assert rows_of(Table.open(tmp_path / "t")) == [("a", 1, "x"), ("b", 1, "x")]


def test_a_job_that_is_killed_between_the_tables_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(tmp_path / "t")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with table.writing():
        files = [*written(table, [("a", 1, "x")]), *written(table, [("a", 1, "h")], "heads")]
        with monkeypatch.context() as patched:
            patched.setattr(Table, "_publish", killed)
            with pytest.raises(KeyboardInterrupt):
                table.commit(Commit(number=1, files=files))
    # To us, all of it counts at once.
    assert len(Table.open(tmp_path / "t").files("heads")) == 1
    assert DeltaTable(table.place("heads")).to_pyarrow_table().num_rows == 0
    with table.writing():
        assert DeltaTable(table.place("heads")).to_pyarrow_table().num_rows == 1
    assert len(data_files(table, "heads")) == 1


def test_other_engines_see_the_same_rows_in_every_version(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    by_version: dict[int, list[Row]] = {}
    for number, rows in enumerate([[("a", 1, "x")], [("a", 2, "y"), ("b", 1, "z")], [("c", 1, "w")]], 1):
        add(table, rows, replaces=number == 3)
        by_version[number] = rows_of(table)
    place = table.place("events")
    for number, rows in by_version.items():
        opened = Table.open(tmp_path / "t", as_of=number)
        assert rows_of(opened) == rows
        columns = (
            DeltaTable(place, version=number)
            .to_pyarrow_table()
            .sort_by([("stream", "ascending"), ("seq", "ascending")])
        )
        assert [tuple(row.values()) for row in columns.to_pylist()] == rows
        assert pl.read_delta(str(place), version=number).sort("stream", "seq").rows() == rows
    files = DeltaTable(place).file_uris()
    assert duckdb.execute(f"SELECT * FROM read_parquet({files}) ORDER BY stream, seq").fetchall() == by_version[3]
    with pytest.raises(LogNotFound, match="has no version 4; it has 1, 2, 3"):
        Table.open(tmp_path / "t", as_of=4)


def test_a_vacuum_deletes_what_no_version_of_late_has(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    add(table, [("a", 1, "x")])
    add(table, [("b", 1, "y")], replaces=True)
    (table.place("events") / "precious.parquet").touch()
    now = datetime.now(UTC)
    assert vacuum(tmp_path / "t", now - timedelta(days=1)) == []
    assert rows_of(Table.open(tmp_path / "t", as_of=1)) == [("a", 1, "x")]
    old = [f"events/{entry.name}" for entry in Table.open(tmp_path / "t", as_of=1).files("events")]
    assert vacuum(tmp_path / "t", now, dry_run=True) == old
    assert vacuum(tmp_path / "t", now) == old
    assert vacuum(tmp_path / "t", now) == []
    assert rows_of(table) == [("b", 1, "y")]
    assert len(data_files(table)) == 2, "what is not ours stays"
    with pytest.raises(TableDamaged):
        rows_of(Table.open(tmp_path / "t", as_of=1))
    with pytest.raises(LogNotFound, match="was deleted"):
        restore(tmp_path / "t", 1)
    add(table, [("c", 1, "z")])
    assert rows_of(table) == [("b", 1, "y"), ("c", 1, "z")]


def test_what_another_program_has_changed_is_named_and_nothing_is_added_to_it(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    add(table, [("a", 1, "x")])
    DeltaTable(table.place("events")).delete("stream = 'a'")
    with pytest.raises(TableDamaged, match=r"restore .* --version 1"):
        rows_of(table)
    with pytest.raises(TableDamaged, match=r"restore .* --version 1"):
        add(table, [("b", 1, "x")])
    assert restore(tmp_path / "t", 1) == 3
    add(table, [("b", 1, "x")])
    assert rows_of(table) == [("a", 1, "x"), ("b", 1, "x")]
    assert DeltaTable(table.place("events")).to_pyarrow_table().num_rows == 2


def test_a_version_is_restored_as_a_new_one_in_all_tables(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    for number in (1, 2):
        with table.writing():
            files = [*written(table, [("a", number, "x")]), *written(table, [("a", number, "h")], "heads")]
            table.commit(Commit(number=number, at=f"2026-11-15T09:3{number}:00.000Z", files=files))
    assert restore(tmp_path / "t", 1) == 3
    assert rows_of(table) == [("a", 1, "x")]
    assert DeltaTable(table.place("heads")).to_pyarrow_table().num_rows == 1
    assert restore(tmp_path / "t", 2) == 4
    assert rows_of(table) == [("a", 1, "x"), ("a", 2, "x")]
    assert DeltaTable(table.place("heads")).to_pyarrow_table().num_rows == 2
    found = [(each.number, each.what, each.rows) for each in list_versions(tmp_path / "t")]
    assert found == [(1, "ingest", 1), (2, "ingest", 2), (3, "restore of version 1", 1), (4, "restore of version 2", 2)]
    assert version_of(tmp_path / "t", "2026-11-15T09:31:30Z") == 1
    with pytest.raises(LogNotFound, match="no version yet"):
        version_of(tmp_path / "t", "2026-11-15T09:00:00Z")
    for wrong in ("yesterday", "2026-11-15T09:31:30", "-1"):
        with pytest.raises(InvalidOption):
            version_of(tmp_path / "t", wrong)
    with pytest.raises(LogNotFound, match="no version 9"):
        restore(tmp_path / "t", 9)
    assert at_version(f"table:{tmp_path}/t", "2") == f"table:{tmp_path}/t?version=2"
    with pytest.raises(InvalidOption, match="Only tables"):
        at_version("sqlite:x.db", "2")


@pytest.mark.parametrize("is_to_read", [True, False])
def test_a_table_of_a_newer_protocol_is_refused(tmp_path: Path, is_to_read: bool) -> None:
    table = new_table(tmp_path / "t")
    add(table, [("a", 1, "x")])
    path, newer = commit_file(table, 0), {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["wormholes"]}
    if is_to_read:
        newer |= {"minReaderVersion": 3, "readerFeatures": ["wormholes"]}
    actions = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    changed = [{"protocol": newer} if "protocol" in action else action for action in actions]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, changed)))
    table = Table.open(tmp_path / "t")
    if is_to_read:
        with pytest.raises(LogTooNew, match="newer Delta version"):
            rows_of(table)
    else:
        assert rows_of(table) == [("a", 1, "x")]
    before = data_files(table)
    with pytest.raises(LogTooNew, match="newer Delta version"):
        add(table, [("b", 1, "x")])
    assert set(before) <= set(data_files(table))


def commit_file(table: Table, number: int) -> Path:
    return table.place("events") / "_delta_log" / f"{number:020d}.json"


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
        Table.make(tmp_path / "t", TableInfo("snapshots", "rundir", 1), {"snapshots": schema})
    (tmp_path / "table.json").write_text('{"kind": "events", "model": "engine", "model_version": 1, "version": 1}')
    with pytest.raises(NotALog, match="runstate pipeline convert"):
        Table.open(tmp_path)


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
    place, log = str(table.place("events")), str(commit_file(table, 1))
    data = str(table.place("events") / commit.files[0].name)
    assert synced.index(data) < synced.index(place, synced.index(data)) < synced.index(log)
    assert synced.index(log) < synced.index(str(Path(log).parent), synced.index(log))
