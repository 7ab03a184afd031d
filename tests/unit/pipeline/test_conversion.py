"""Tables of earlier versions become Delta tables that hold the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.tables import change_info, new_table

from runstate.errors import LogNotFound, NotALog
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.shards import Shard
from runstate.pipeline.tables import conversion
from runstate.pipeline.tables.conversion import convert
from runstate.pipeline.tables.event_table import TableOrigin
from runstate.pipeline.tables.sorted_files import TableDamaged
from runstate.pipeline.tables.table import Table

golden = Path(__file__).parents[2] / "golden"


@pytest.fixture(params=["parquet", "arrow"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree(golden / f"table-1-{request.param}", tmp_path / "table")
    return tmp_path / "table"


def lines_of(table: Path) -> list[bytes]:
    return [line for reader in TableOrigin(f"table:{table}").streams(Shard()) for line in reader.lines()]


expected = (golden / "table-1-lines.ndjson").read_bytes().splitlines()


def test_it_holds_the_same_and_nothing_of_the_old_files_is_left(old: Path) -> None:
    with pytest.raises(NotALog, match=f"runstate pipeline convert {old}"):
        Table.open(old)
    assert convert(old) == {"events": len(expected), "heads": 6, "refusals": 0, "quarantine": 0}
    assert lines_of(old) == expected
    assert [commit.consumed["urls"] for commit in Table.open(old).commits()] == [["sqlite:log.db"]] * 2
    bodies = DeltaTable(old / "events").to_pyarrow_table()["body"].to_pylist()
    assert sorted(bodies) == sorted(line.decode() for line in expected)
    names = {path.name for path in old.iterdir()} - {".lock"}
    assert names == {"table.json", "events", "heads", "refusals", "quarantine"}
    with pytest.raises(NotALog, match="of the current version already"):
        convert(old)


@pytest.mark.parametrize("step", ["_convert_commit", "write_info", "remove_own"])
def test_a_conversion_that_was_killed_is_run_again(old: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    done = getattr(conversion, step)
    calls = []

    def killed(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == (1 if step == "write_info" else 2):
            raise KeyboardInterrupt
        done(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(conversion, step, killed)
        with pytest.raises(KeyboardInterrupt):
            convert(old)
    if step == "remove_own":
        with pytest.raises(NotALog, match="of the current version already"):
            convert(old)
        assert not (old / "data").exists()
    else:
        convert(old)
    assert lines_of(old) == expected


def test_a_damaged_table_is_left_as_it_is(old: Path) -> None:
    path = next((old / "data").glob("events-*"))
    whole = path.read_bytes()
    for place in (len(whole) // 2, len(whole) - 20):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(TableDamaged, match=path.name):
            convert(old)
    path.write_bytes(whole)
    commit = old / "commits" / "00000001.json"
    commit.write_bytes(commit.read_bytes().replace(b"sqlite:log.db", b"sqlite:lag.db"))
    with pytest.raises(TableDamaged, match=commit.name):
        convert(old)
    commit.unlink()
    with pytest.raises(TableDamaged, match="missing"):
        convert(old)
    assert path.read_bytes() == whole


def test_a_snapshot_table_is_made_again_by_the_next_replay(tmp_path: Path) -> None:
    shutil.copytree(golden / "table-1-snapshots", tmp_path / "table")
    assert convert(tmp_path / "table") == {"snapshots": 0}
    assert Table.open(tmp_path / "table").commits() == []
    assert new_table(tmp_path / "table", "snapshots").info.model == "engine"


def test_what_cannot_be_converted_is_refused(old: Path, tmp_path: Path) -> None:
    with pytest.raises(LogNotFound):
        convert(tmp_path / "nowhere")
    change_info(old, model_version=1)
    with pytest.raises(InvalidOption, match="ingest its logs into another directory"):
        convert(old)
    (old / "table.json").write_text("no table")
    with pytest.raises(NotALog):
        convert(old)
