"""Logs in databases whose rows a test changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.changed_rows import Change, change_rows
from tests.log_urls import url_at

from runstate.conformance.notes import numbered
from runstate.logs.log import EventLog
from runstate.logs.registry import open_log


@pytest.fixture(params=["sqlite", "postgresql", "snowflake"])
def changed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[EventLog, Change]]:
    """A log with two streams of five events, and a way to change its rows without the triggers that forbid it."""
    with open_log(url := url_at(request.param, tmp_path / "log")) as log:
        for stream in ("s", "t"):
            log.append(stream, numbered(5))
        yield log, lambda statement: change_rows(log, url, statement)
