"""What was changed by hand, and who is told where."""

from __future__ import annotations

import pytest
from tests.postgres.sessions import Session

from runstate.conformance.notes import notes, numbered, snapshot
from runstate.logs.postgres import PostgresLog


@pytest.fixture(params=["", "&partitions=3"], ids=["plain", "partitioned"])
def url(url: str, request: pytest.FixtureRequest) -> str:
    return f"{url}{request.param}"


@pytest.mark.parametrize(
    ("statement", "code", "stream", "seq"),
    [
        ("UPDATE events SET body = 'x' WHERE seq = 2", "log.event_changed", "s", 2),
        ("UPDATE events SET tenant = 'x' WHERE seq = 3", "log.event_changed", "s", 3),
        ("DELETE FROM events WHERE seq = 2", "log.events_missing", "s", 2),
        ("DELETE FROM events WHERE seq = 3", "log.events_missing", "s", 3),
        ("UPDATE streams SET last_seq = 5", "log.events_missing", "s", 4),
        ("UPDATE events SET transaction = '1' WHERE seq = 3", "log.out_of_order", "s", 3),
        ("UPDATE events SET transaction = '999999999999' WHERE seq = 3", "postgres.transaction_ahead", "s", 3),
        ("DELETE FROM streams", "postgres.orphan_events", None, None),
        ("UPDATE snapshots SET body = 'x'", "snapshot.digest_mismatch", "s", 3),
        ("UPDATE blobs SET data = 'x'", "blob.digest_mismatch", None, None),
    ],
)
def test_what_was_changed_by_hand_is_found(
    log: PostgresLog, session: Session, statement: str, code: str, stream: str | None, seq: int | None
) -> None:
    log.append("s", numbered(3))
    log.append("t", notes("other"))
    log.save_snapshot("s", snapshot(3))
    log.put_blob(b"data")
    session.execute("SET session_replication_role = replica")  # Nobody's triggers fire.
    session.execute(statement.encode())
    assert (code, stream, seq) in [(finding.code, finding.stream, finding.seq) for finding in log.verify()]
    if stream is not None and "transaction_ahead" not in code:
        assert (code, seq) in [(finding.code, finding.seq) for finding in log.verify(stream)]


def test_a_row_that_was_copied_in_is_found(log: PostgresLog, session: Session) -> None:
    log.append("s", numbered(3))
    session.execute(
        "INSERT INTO events (stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body) "
        "SELECT stream_id, 9, event_id, type, 'forged', tenant, emitted_at, persisted_at, crc, body FROM events "
        "WHERE seq = 3"
    )
    assert ("log.event_changed", 9) in [(finding.code, finding.seq) for finding in log.verify("s")]


def test_a_blob_that_was_changed_is_replaced_by_putting_it_again(log: PostgresLog, session: Session) -> None:
    ref = log.put_blob(b"data")
    session.execute("UPDATE blobs SET data = 'x'")
    assert log.put_blob(b"data") == ref
    assert log.get_blob(ref) == b"data"
    assert list(log.verify()) == []
