"""A log of its own for each test, and somebody else on the same tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.postgres.sessions import Session
from tests.postgres_server import plain_and_schema, url_at

from runstate.logs.postgres import PostgresLog, open_url


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_at(tmp_path)


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[], PostgresLog]]:
    """Opens the log again, as another process would; each has connections of its own."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(open_url(url)))


@pytest.fixture
def log(url: str) -> Iterator[PostgresLog]:
    with open_url(url) as opened:
        yield opened


@pytest.fixture
def session(url: str, log: PostgresLog) -> Iterator[Session]:
    """Somebody else on the same tables, as with psql."""
    plain, schema = plain_and_schema(url)
    with Session.connect(plain, autocommit=True) as connection:
        connection.prepare_log(schema, 0)
        connection.execute("SELECT set_config('search_path', %s, false)", (schema,))
        yield connection
