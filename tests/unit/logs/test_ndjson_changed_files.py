"""Run directories whose files are changed under a running writer: nothing is acknowledged that is not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runstate.conformance.notes import keys, notes, stored
from runstate.errors import AppendOutcomeUnknown, LogBusy
from runstate.logs.registry import open_log


def remove_file(run: Path) -> None:
    (run / "events.ndjson").unlink()


def remove_directory(run: Path) -> None:
    shutil.rmtree(run)


def remove_log(run: Path) -> None:
    shutil.rmtree(run.parent)


def replace_file(run: Path) -> None:
    shutil.copy(run / "events.ndjson", run / "copy")
    (run / "copy").rename(run / "events.ndjson")


def cut_file(run: Path) -> None:
    os.truncate(run / "events.ndjson", 10)


@pytest.mark.parametrize("happens", [remove_file, remove_directory, remove_log, replace_file, cut_file])
def test_nothing_is_acknowledged_that_a_changed_file_does_not_hold(
    tmp_path: Path, happens: Callable[[Path], None]
) -> None:
    with open_log(f"ndjson:{tmp_path / 'runs'}") as log:
        log.append("r", notes("a"))
        happens(tmp_path / "runs" / "r")
        with pytest.raises(AppendOutcomeUnknown, match="send the same keys"):
            log.append("r", notes("b"))


def test_a_removed_lock_file_lets_no_second_writer_in(tmp_path: Path) -> None:
    url = f"ndjson:{tmp_path / 'runs'}"
    with open_log(url) as first, open_log(url) as second:
        first.append("r", notes("a"))
        shutil.rmtree(tmp_path / "runs" / ".locks")
        with pytest.raises(LogBusy):
            second.append("r", notes("b"))
        first.append("r", notes("c"))
        assert keys(stored(first, "r")) == ["a", "c"]
