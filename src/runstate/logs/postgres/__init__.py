"""A log in a schema of a Postgres database. The format is described in `docs/formats/postgres.md`."""

from runstate.logs.postgres.log import PostgresLog
from runstate.logs.postgres.url import open_url

__all__ = ["PostgresLog", "open_url"]
