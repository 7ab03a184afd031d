"""Another program on a SQLite log: its events can be read and added to, never changed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from runstate.conformance.notes import notes, stored
from runstate.logs.sqlite import SqliteLog

_columns = "position, stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body"


@pytest.mark.parametrize("same", ["seq", "key", "position"])
@pytest.mark.parametrize("how", ["INSERT OR REPLACE", "REPLACE"])
def test_no_insert_takes_the_place_of_an_event(tmp_path: Path, same: str, how: str) -> None:
    with SqliteLog(tmp_path / "log.db") as log:
        log.append("s", notes("a", "b"))
        before = stored(log, "s")
        with closing(sqlite3.connect(tmp_path / "log.db")) as other:
            row = dict(
                zip(_columns.split(", "), other.execute(f"SELECT {_columns} FROM events").fetchone(), strict=True)
            )
            forged = {**row, "position": 99, "seq": 99, "key": "forged", "body": b"forged", same: row[same]}
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                other.execute(f"{how} INTO events VALUES ({', '.join('?' * len(forged))})", [*forged.values()])
        assert stored(log, "s") == before
        assert list(log.verify()) == []
