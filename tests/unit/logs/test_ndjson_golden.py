"""Run directories as they were written before runs recorded their models: they must stay readable and writable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runstate.conformance.notes import as_held, note, notes, numbered, snapshot
from runstate.errors import ModelMismatch
from runstate.logs.ndjson import NdjsonLog
from runstate.logs.ndjson.files import run_files
from runstate.logs.ndjson.keys import read_keys
from runstate.storage.disk import RealDisk

run = "site-2026-11-15"


@pytest.fixture
def copy(golden: Path, tmp_path: Path) -> Path:
    shutil.copytree(golden / "ndjson-1", tmp_path / "runs")
    return tmp_path / "runs"


def test_a_run_of_the_first_format_is_read_and_gone_on_from(copy: Path) -> None:
    held = as_held("s", [note("a", "ü\u2028"), note("b"), note("c", tenant="t-2")])
    with NdjsonLog(copy) as log:
        assert log.read("s") == held
        assert log.load_snapshot("s", "notes") == snapshot(3)
        assert log.append("s", notes("b", "d"))[1].seq == 4
        assert log.read("s")[:-1] == held
        assert list(log.verify()) == []


def test_a_framed_run_of_the_first_format_records_no_model_and_never_will(copy: Path) -> None:
    for _ in range(2):
        with NdjsonLog(copy) as log:
            log.append("s", notes("d"))
            log.append("s", [note("e", model="other")])
            assert [(info.stream, info.model) for info in log.streams()] == [("s", ""), (run, "rundir")]
            assert [(head.stream, head.model) for head in log.heads()] == [("s", ""), (run, "rundir")]


def test_a_bare_run_of_the_first_format_is_of_the_model_rundir(copy: Path, golden: Path) -> None:
    with NdjsonLog(copy) as log:
        assert b"\n".join(log.lines(run)) + b"\n" == (golden / "rundir_events.ndjson").read_bytes()
        with pytest.raises(ModelMismatch):
            log.append(run, notes("d"))
        assert list(log.verify(run)) == []


def test_records_of_another_model_that_look_like_those_of_a_run_are_framed(copy: Path, tmp_path: Path) -> None:
    with NdjsonLog(copy) as source, NdjsonLog(tmp_path / "own") as target:
        target.adopt(run, source.read(run), model="own")
        assert target.read(run) == source.read(run)
        assert [info.model for info in target.streams()] == ["own"]


def test_the_frame_of_the_first_event_alone_names_the_model(tmp_path: Path) -> None:
    with NdjsonLog(tmp_path / "runs") as log:
        log.append("s", notes("a", "b"))
        log.append("s", notes("c"))
    lines = (tmp_path / "runs" / "s" / "events.ndjson").read_bytes().split(b"\n")
    assert [b',"model":"notes","crc":"' in line for line in lines] == [True, False, False, False]


def test_a_key_file_of_the_first_format_is_read(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden / "ndjson-keys", tmp_path / "runs")
    with NdjsonLog(tmp_path / "runs") as log:
        held = log.read("s")
        found = read_keys(RealDisk(), run_files(log.root, "s"))
        assert found is not None
        assert [list(found.seqs_of(record.key)) for record in held] == [[n] for n in range(1, 71)] + [[], []]
        with RealDisk().open(tmp_path / "runs/s/events.ndjson", read_only=True) as file:
            for start, record in ((found.span(file, seq)[0], held[seq - 1]) for seq in (1, 64, 65, 70)):
                assert file.read_at(start, 20).startswith(b'{"seq":%d,' % record.seq)
        assert not log.append("s", numbered(72))[71].persisted
