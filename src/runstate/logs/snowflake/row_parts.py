"""Rows on their way into a statement: one JSON array, whatever their number, or several where they are large."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

request_bytes_max = 4 * 1024 * 1024
"""About how much goes into one statement. A bound value ends at 16 MB, and an event alone may have 11 as Base64."""

rows_table = "TABLE(FLATTEN(INPUT => PARSE_JSON(?)))"
"""The bound array as a table, with a row in each `value`."""


def join_rows(rows: Iterable[bytes]) -> Iterator[str]:
    """Rows, each in JSON, as arrays that a statement can take."""
    part: list[bytes] = []
    size = 0
    for row in rows:
        if part and size + len(row) > request_bytes_max:
            yield f"[{b','.join(part).decode()}]"
            part, size = [], 0
        part.append(row)
        size += len(row)
    if part:
        yield f"[{b','.join(part).decode()}]"
