"""What readers of a Postgres log ask."""

from __future__ import annotations

from runstate.logs.stored_rows import record_columns

_of_stream = "stream_id = (SELECT id FROM $schema.streams WHERE stream = %s)"
select_records = f"SELECT {record_columns} FROM $schema.events e WHERE {_of_stream} AND seq > %s ORDER BY seq LIMIT %s"
select_by_key = f"SELECT {record_columns} FROM $schema.events e WHERE {_of_stream} AND key = %s"
select_lines = (
    f"SELECT seq, body, crc FROM $schema.events WHERE {_of_stream} AND seq > %s AND seq <= %s ORDER BY seq LIMIT %s"
)
select_feed = f"""
SELECT e.transaction::text, e.position, s.stream, {record_columns}
FROM $schema.events e JOIN $schema.streams s ON s.id = e.stream_id
WHERE (e.transaction, e.position) > (%s::xid8, %s) AND e.transaction < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.transaction, e.position LIMIT %s
"""
# Ordered, and not in EXISTS, which drops the order: without it Postgres may look through the whole table.
select_is_more = """
SELECT transaction < pg_snapshot_xmin(pg_current_snapshot()) FROM $schema.events
WHERE (transaction, position) > (%s::xid8, %s) ORDER BY transaction, position LIMIT 1
"""
select_oldest_pending = """
SELECT persisted_at, transaction < pg_snapshot_xmin(pg_current_snapshot()) FROM $schema.events
WHERE (transaction, position) > (%s::xid8, %s) ORDER BY transaction, position LIMIT 1
"""
# Of the whole server: a transaction of another database, or a prepared one, holds the feed back too. A role that may
# not see the activity of others finds the session without its details.
select_oldest_transaction = """
SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::float8, coalesce(application_name, ''),
    coalesce(datname, ''), coalesce(usename, '')
FROM (
    SELECT pid, xact_start, application_name, datname, usename, age(backend_xid) AS age
    FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT NULL, prepared, 'prepared transaction ' || gid, database, owner, age(transaction) FROM pg_prepared_xacts
) AS open_transactions ORDER BY age DESC LIMIT 1
"""
select_is_handed_out = """
SELECT %s::xid8 < pg_snapshot_xmin(pg_current_snapshot()) AND %s <= (SELECT last_value FROM $schema.events_position_seq)
"""
select_info = (
    "SELECT stream, tenant, last_seq, events, first_persisted_at, last_persisted_at, {model} FROM $schema.streams"
)
select_infos = f"{select_info} WHERE stream > %s ORDER BY stream LIMIT %s"
select_heads = """
SELECT stream, last_seq, id || '-' || transaction, {model} FROM $schema.streams
WHERE stream > %s AND (%s::text IS NULL OR stream <= %s) ORDER BY stream LIMIT %s
"""
