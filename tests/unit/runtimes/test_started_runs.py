"""The record of who started a run with what: private, for one working directory, and never believed from others."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from runstate.errors import LogFailed
from runstate.runtimes.orchestrator import started_runs
from runstate.runtimes.orchestrator.started_runs import AppNotRecorded, recall_place, record_started_run


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state directory; the working directory is another one."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "runstate" / "runs"


@pytest.fixture
def record(state: Path) -> Path:
    """The record of the run `runs/r`."""
    record_started_run(Path("runs/r"), "app.py:graph")
    (found,) = state.iterdir()
    return found


def test_what_was_recorded_is_recalled(record: Path) -> None:
    assert recall_place(Path("runs/r")) == "app.py:graph"


def test_a_run_is_known_by_its_real_path(record: Path) -> None:
    Path("runs/r").mkdir(parents=True)
    Path("link").symlink_to("runs")
    assert recall_place(Path("link/r")) == recall_place(Path("runs/r").absolute()) == "app.py:graph"


def test_a_later_record_replaces_the_earlier_one(record: Path) -> None:
    record_started_run(Path("runs/r"), "moved.py:graph")
    assert recall_place(Path("runs/r")) == "moved.py:graph"


def test_a_record_and_its_directory_are_private(record: Path) -> None:
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700


def test_another_run_has_no_record(record: Path) -> None:
    with pytest.raises(AppNotRecorded, match="no record that you started the run in runs/other"):
        recall_place(Path("runs/other"))


def test_another_working_directory_has_no_claim_to_the_record(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Path("runs/r").absolute()
    monkeypatch.chdir("..")
    with pytest.raises(AppNotRecorded, match="another working directory, "):
        recall_place(run)


def test_a_record_that_others_can_write_is_not_trusted(record: Path) -> None:
    for mode in (0o620, 0o602):
        record.chmod(mode)
        with pytest.raises(AppNotRecorded, match="is not trusted"):
            recall_place(Path("runs/r"))


def test_a_directory_that_others_can_write_is_not_trusted(record: Path) -> None:
    record.parent.chmod(0o770)
    with pytest.raises(AppNotRecorded, match="is not trusted"):
        recall_place(Path("runs/r"))
    with pytest.raises(LogFailed, match="others can write to it"):
        record_started_run(Path("runs/r"), "app.py:graph")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_record_of_another_user_is_not_trusted(record: Path) -> None:
    os.chown(record, 65534, 65534)
    with pytest.raises(AppNotRecorded, match="is not trusted"):
        recall_place(Path("runs/r"))


def test_a_link_in_place_of_a_record_is_not_followed(record: Path, tmp_path: Path) -> None:
    record.rename(tmp_path / "elsewhere.json")
    record.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(AppNotRecorded, match="cannot be read"):
        recall_place(Path("runs/r"))


def test_a_pipe_in_place_of_a_record_is_not_waited_for(record: Path) -> None:
    record.unlink()
    os.mkfifo(record, 0o600)
    with pytest.raises(AppNotRecorded, match="is not trusted"):
        recall_place(Path("runs/r"))


def test_a_record_that_was_copied_to_another_run_is_not_believed(record: Path, state: Path) -> None:
    content = record.read_bytes()
    record_started_run(Path("runs/other"), "app.py:graph")
    (other,) = set(state.iterdir()) - {record}
    other.write_bytes(content)
    with pytest.raises(AppNotRecorded, match="no record that you started"):
        recall_place(Path("runs/other"))


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b'{"place": 1}'])
def test_what_is_not_a_record_is_refused(record: Path, content: bytes) -> None:
    record.write_bytes(content)
    with pytest.raises(AppNotRecorded, match="is not the record of a run"):
        recall_place(Path("runs/r"))


def test_a_state_directory_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(LogFailed, match="cannot be written"):
        record_started_run(tmp_path / "r", "app.py:graph")
    with pytest.raises(AppNotRecorded):
        recall_place(tmp_path / "r")


def test_a_relative_state_directory_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    record_started_run(Path("r"), "app.py:graph")
    assert not Path("state").exists()
    assert len(list(Path("home/.local/state/runstate/runs").iterdir())) == 1


def test_only_the_newest_records_are_kept(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started_runs, "records_max", 3)
    for number in range(5):
        record_started_run(Path(f"runs/{number}"), "app.py:graph")
        for age, path in enumerate(sorted(state.iterdir(), key=lambda path: -path.stat().st_mtime)):
            os.utime(path, (1_000_000 - age, 1_000_000 - age))
    assert len(list(state.iterdir())) == 3
    assert recall_place(Path("runs/4")) == "app.py:graph"
    with pytest.raises(AppNotRecorded):
        recall_place(Path("runs/0"))
