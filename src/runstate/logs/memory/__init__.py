"""A log in memory: for tests, and for what may be forgotten."""

from runstate.logs.memory.log import MemoryLog, open_url

__all__ = ["MemoryLog", "open_url"]
