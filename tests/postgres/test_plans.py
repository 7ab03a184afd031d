"""What the server does for an append, a fetch and the feed, by its own account: ten thousand rows, and a million."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from psycopg import sql
from tests.postgres.sessions import Session

from runstate.logs.log import now
from runstate.logs.postgres import PostgresLog, appends, deletion, guesses, open_url, queries, writer
from runstate.logs.postgres.arrays import Blobs, Numbers, Texts

pytestmark = pytest.mark.slow

_fill = """
INSERT INTO $schema.streams (stream, tenant, last_seq, events, first_persisted_at, last_persisted_at)
SELECT 's' || n, '', 100, 100, '', '' FROM generate_series({first}, {last}) n;
INSERT INTO $schema.events (stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body)
SELECT s.id, n, '', '', 'k' || n, '', '', '', 0, 'body' FROM generate_series(1, 100) n, $schema.streams s
WHERE s.stream = ANY(SELECT 's' || m FROM generate_series({first}, {last}) m);
"""
_grow = """
INSERT INTO $schema.events (stream_id, seq, event_id, type, key, tenant, emitted_at, persisted_at, crc, body)
SELECT s.id, n, '', '', 'k' || n, '', '', '', 0, 'body' FROM $schema.streams s, generate_series(101, 500000) n
WHERE s.stream = 's7';
UPDATE $schema.streams SET last_seq = 500000, events = 500000 WHERE stream = 's7';
"""
_some = Texts(["n1", "n2"])
_rows: dict[str, Any] = {
    "seqs": Numbers([900_001, 900_002]),
    "event_ids": _some,
    "types": _some,
    "keys": _some,
    "tenants": _some,
    "emitted": _some,
    "persisted": _some,
    "crcs": Numbers([0, 0]),
    "bodies": Blobs([b"1", b"2"]),
    "lasts": Numbers([900_001, 900_002]),
    "counts": Numbers([1, 1]),
    "ends": _some,
    "models": _some,
}


_snapshots: dict[str, Any] = {
    "kept_of": _some,
    "kept_models": _some,
    "kept_versions": Numbers([1, 1]),
    "kept_seqs": Numbers([9, 9]),
    "kept_digests": _some,
    "kept_bodies": Blobs([b"{}", b"{}"]),
}


def _statements(last_seq: int, transaction: str) -> dict[str, tuple[str, Any]]:
    """Every statement that an append, a fetch or the feed sends, with values from the middle of the table."""
    heads = {"ids": Numbers([7, 8]), "of": Numbers([7, 8]), "befores": Numbers([last_seq, 100])}
    guessed = {"transactions": Texts([transaction] * 2), "ends": Texts([now(-100)] * 2)}
    made = {"streams": _some, "firsts": _some, "starts": _some, "of": _some}
    names = Texts(["s7", "s8"])
    return {
        "lock": (appends.lock_heads, (names,)),
        "lock free": (appends.lock_free_heads, (names,)),
        "known": (appends._known, (names, Numbers([1, 3]), Numbers([2, 4]), Texts(["k1", "new", "k100", "other"]))),
        "last body": (appends._ends, (names,)),
        "move heads": (appends.without_snapshots(appends._move_heads), heads | _rows),
        "make heads": (appends.without_snapshots(appends._make_heads), made | _rows),
        "move guessed heads": (appends.without_snapshots(guesses._move_guessed), heads | _rows | guessed),
        "make guessed heads": (appends.without_snapshots(guesses._make_guessed), made | _rows | guessed),
        "save snapshots": (appends.with_snapshots(appends._move_heads), heads | _rows | _snapshots),
        "tombstones": (deletion.select_tombstones, (names,)),
        "adopt": (writer._held, ("s7", Numbers([1, 50, 900_000]), Texts(["k1", "new"]))),
        "fetch": (queries.select_records, ("s7", 10, 20)),
        "lines": (queries.select_lines, ("s7", 10, 50, 20)),
        "find": (queries.select_by_key, ("s7", "k77")),
        "feed": (queries.select_feed, ("0", 5000, 20)),
        "feed at its end": (queries.select_feed, ("99999999", 0, 20)),
        "more": (queries.select_is_more, ("0", 5000)),
        "no more": (queries.select_is_more, ("99999999", 0)),
        "heads": (queries.select_heads.format(model="model"), ("s7", None, None, 20)),
        "infos": (queries.select_infos.format(model="model"), ("s7", 20)),
    }


class Explained(NamedTuple):
    node_types: set[str]
    tables: set[str]
    """Those that were gone through as a whole."""
    blocks: int


def _explain(session: Session, query: str, values: Any) -> Explained:
    """What the server did for a statement, in a transaction that is rolled back."""
    given: list[Any] = []

    def place(found: re.Match[str]) -> str:
        given.append(values[found[1]] if found[1] else values[len(given)])
        return f"${len(given)}"

    prepared = re.sub(r"%(?:\((\w+)\))?s", place, query)
    types = [
        {Texts: "text[]", Numbers: "bigint[]", Blobs: "bytea[]", int: "bigint"}.get(type(v), "text") for v in given
    ]
    literals = [sql.Literal(getattr(value, "elements", value)) for value in given]
    session.execute(f"PREPARE asked ({', '.join(types)}) AS {prepared}")
    asked = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked ({})").format(sql.SQL(", ").join(literals))
    with session.transaction(force_rollback=True):
        row = session.execute(asked).fetchone()
    session.execute("DEALLOCATE asked")
    assert row is not None
    plan = row[0][0]["Plan"] if isinstance(row[0], list) else json.loads(row[0])[0]["Plan"]
    nodes = list(_nodes(plan))
    scanned = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}
    return Explained(
        {node["Node Type"] for node in nodes}, scanned, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    )


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


def _explain_all(session: Session, last_seq: int) -> dict[tuple[str, str], Explained]:
    found = {}
    row = session.execute("SELECT transaction::text FROM $schema.streams WHERE id = 8").fetchone()
    transaction = row[0] if row else ""
    for mode in ("force_custom_plan", "force_generic_plan"):
        session.execute("SELECT set_config('plan_cache_mode', %s, false)", (mode,))
        for name, (query, values) in _statements(last_seq, transaction).items():
            found[name, mode] = _explain(session, query, values)
    return found


@pytest.mark.parametrize("partitioned", ["", "&partitions=4"], ids=["plain", "partitioned"])
def test_append_fetch_and_feed_go_by_an_index_and_touch_no_more_of_a_million_rows(url: str, partitioned: str) -> None:
    with open_url(url + partitioned) as log, log._connections.one() as session:
        session.execute(_fill.format(first=1, last=100))
        session.execute("ANALYZE $schema.events, $schema.streams")
        few = _explain_all(session, 100)
        session.execute(_fill.format(first=101, last=5001))
        session.execute(_grow)
        # In a run that goes on for hours there are vacuums; what is looked at here is not the first look at each row.
        session.execute("VACUUM ANALYZE $schema.events, $schema.streams")
        assert session.execute("SELECT count(*) >= 1000000 FROM $schema.events").fetchone() == (True,)
        many = _explain_all(session, 500_000)
    assert {name: plan.tables for name, plan in many.items() if plan.tables} == {}
    # An index is a level or two deeper, for each key that is looked up in it.
    grown = {
        name: (few[name].blocks, many[name].blocks) for name in many if many[name].blocks > 2 * few[name].blocks + 10
    }
    assert grown == {}


def test_the_last_one_can_fail(log: PostgresLog) -> None:
    """A query without an index is seen, whatever the session prefers."""
    with log._connections.one() as session:
        session.execute(_fill.format(first=1, last=20))
        found = _explain(session, "SELECT * FROM $schema.events WHERE type = %s", ("x",))
        assert found.tables == {"events"}
