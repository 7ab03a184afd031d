"""Rows packed into batches: nothing is lost or changed on the way, and no batch grows without bound."""

from __future__ import annotations

import pyarrow as pa
import pytest

from runstate.pipeline.source.rows import bytes_max, pack, rows_max

_schema = pa.schema([("stream", pa.string()), ("seq", pa.int64()), ("body", pa.string())])


def test_a_body_may_come_as_bytes_as_text_or_not_at_all() -> None:
    rows = [("a", 1, "Grüße".encode()), ("b", 2, "Grüße"), ("c", 3, None)]
    (batch,) = pack(_schema, rows)
    assert batch.schema == _schema
    assert batch.column("body").to_pylist() == ["Grüße", "Grüße", None]


def test_bytes_that_are_no_utf_8_are_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        list(pack(_schema, [("a", 1, b"\xff")]))


def test_large_rows_come_in_small_batches_and_in_order() -> None:
    size = bytes_max // 3
    batches = list(pack(_schema, ((str(number), number, b"x" * size) for number in range(10))))
    assert [seq for batch in batches for seq in batch.column("seq").to_pylist()] == list(range(10))
    assert max(batch.nbytes for batch in batches) < bytes_max + 2 * size


def test_small_rows_come_many_at_a_time() -> None:
    batches = list(pack(_schema, (("a", number, b"{}") for number in range(rows_max + 1))))
    assert [batch.num_rows for batch in batches] == [rows_max, 1]
