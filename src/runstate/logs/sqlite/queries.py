"""What readers of a SQLite log ask."""

from __future__ import annotations

from runstate.logs.stored_rows import record_columns

_of_stream = "stream_id = (SELECT id FROM streams WHERE stream = ?)"
select_records = f"""
SELECT {record_columns} FROM events e
WHERE {_of_stream} AND seq > ? ORDER BY seq LIMIT ?
"""
select_by_key = f"SELECT {record_columns} FROM events e WHERE {_of_stream} AND key = ?"
select_lines = f"SELECT seq, body, crc FROM events WHERE {_of_stream} AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
select_feed = f"""
SELECT e.position, s.stream, {record_columns} FROM events e JOIN streams s ON s.id = e.stream_id
WHERE e.position > ? ORDER BY e.position LIMIT ?
"""
select_last_position = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events'"
select_info = "SELECT stream, tenant, last_seq, events, first_persisted_at, last_persisted_at, model FROM streams"
last_position_of_stream = "(SELECT position FROM events WHERE stream_id = id AND seq = last_seq)"
"""A version: no position is ever given twice."""
select_heads = """
SELECT stream, last_seq, {version}, model FROM streams
WHERE stream > ? AND (? IS NULL OR stream <= ?) ORDER BY stream LIMIT ?
"""
