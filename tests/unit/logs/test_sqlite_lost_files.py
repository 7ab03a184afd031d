"""SQLite logs whose files are taken away, replaced or cut while a writer has them open, or before one opens them."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from runstate.conformance.notes import notes, numbered
from runstate.errors import AppendOutcomeUnknown, LogClosed, LogDamaged
from runstate.logs.registry import open_log


def remove(path: Path) -> None:
    path.unlink()


def remove_all(path: Path) -> None:
    for name in path.parent.glob(f"{path.name}*"):
        name.unlink()


def remove_newest_commits(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def replace(path: Path) -> None:
    shutil.copy(path, copy := path.with_name("copy"))
    copy.rename(path)


@pytest.mark.parametrize("happens", [remove, remove_all, remove_newest_commits, replace])
def test_a_commit_to_a_file_that_is_gone_is_not_acknowledged(tmp_path: Path, happens: Callable[[Path], None]) -> None:
    with open_log(f"sqlite:{tmp_path / 'runs.db'}") as log:
        log.append("s", numbered(2))
        happens(tmp_path / "runs.db")
        with pytest.raises(AppendOutcomeUnknown, match="removed or replaced while it was open"):
            log.append("s", notes("late"))
        with pytest.raises(LogClosed, match="open the log again"):
            log.append("s", notes("later"))


@pytest.mark.parametrize("made_before", [True, False])
def test_a_log_behind_a_link_is_written_where_it_is(tmp_path: Path, made_before: bool) -> None:
    real, link = tmp_path / "real.db", tmp_path / "link.db"
    link.symlink_to(real)
    if made_before:
        open_log(f"sqlite:{real}").close()
    with open_log(f"sqlite:{link}") as log:
        log.append("s", numbered(2))
        assert not link.with_name("link.db-wal").exists()
        replace(real)
        with pytest.raises(AppendOutcomeUnknown, match="removed or replaced while it was open"):
            log.append("s", notes("late"))
    assert real.stat().st_mode & 0o777 == 0o600


def test_the_process_may_go_to_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_log("sqlite:runs.db") as log:
        os.mkdir("elsewhere")
        monkeypatch.chdir("elsewhere")
        log.append("s", numbered(2))
        assert len(log.read("s")) == 2
        assert os.listdir() == []


def test_an_empty_file_is_no_log_to_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_log(f"sqlite:{path}") as log:
        log.append("s", numbered(2))
    os.truncate(path, 0)
    with pytest.raises(LogDamaged, match="is empty"):
        open_log(f"sqlite:{path}", create=False)
    assert path.stat().st_size == 0
    with open_log(f"sqlite:{path}") as log:  # Whoever was killed while creating it left just such a file.
        assert log.append("s", numbered(1))[0].seq == 1


def test_text_that_is_no_utf_8_is_named_and_set_aside(tmp_path: Path) -> None:
    with open_log(f"sqlite:{tmp_path / 'runs.db'}") as log:
        log.append("s", numbered(4))
        with sqlite3.connect(tmp_path / "runs.db") as connection:
            connection.execute("DROP TRIGGER events_are_never_updated")
            connection.execute("UPDATE events SET type = CAST(x'ff80' AS TEXT) WHERE seq = 3")
        connection.close()
        with pytest.raises(LogDamaged, match="Event 3 of 's'"):
            log.read("s")
        with pytest.raises(LogDamaged, match="Event 3 of 's'"):
            log.feed(after=log.feed().next)
        assert [(finding.code, finding.seq) for finding in log.verify()] == [("log.event_changed", 3)]
        log.repair("s", salvage=True)
        assert [record.seq for record in log.read("s")] == [1, 2, 4]
        assert list(log.verify("s")) == []
