"""Text in a damaged file that is no UTF-8: it is read as what it is, so that its row can be named and set aside."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def is_undecodable(error: sqlite3.Error) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "decode to UTF-8" in str(error)


@contextmanager
def any_text(connection: sqlite3.Connection) -> Iterator[None]:
    """Read text that is no UTF-8 as lone surrogates, which no checksum fits."""
    connection.text_factory = lambda data: data.decode(errors="surrogateescape")
    try:
        yield
    finally:
        connection.text_factory = str


def fetch_rows(connection: sqlite3.Connection, query: str, values: Sequence[object]) -> list[Any]:
    """All rows of a query, whatever their text is."""
    try:
        return connection.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if not is_undecodable(error):
            raise
    with any_text(connection):
        return connection.execute(query, values).fetchall()
