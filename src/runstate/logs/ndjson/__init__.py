"""Run directories: one file of lines per run. The format is described in `docs/formats/ndjson.md`."""

from runstate.logs.ndjson.log import NdjsonLog, open_url

__all__ = ["NdjsonLog", "open_url"]
