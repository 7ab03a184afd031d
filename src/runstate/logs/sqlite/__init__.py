"""A log in one SQLite file. The format is described in `docs/formats/sqlite.md`."""

from runstate.logs.sqlite.log import SqliteLog, open_url

__all__ = ["SqliteLog", "open_url"]
