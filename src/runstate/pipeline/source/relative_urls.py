"""URLs that name a place relative to the driver's working directory. Executors have other ones.

What is stored names logs by the URLs as they were given; only to open them, a task completes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_of_files = frozenset({"sqlite", "ndjson", "segments", "wal", "archive", "table", "files"})
_base: list[str] = []
"""Directories that relative URLs begin at; the last one counts, and without any the process' own."""


def located(url: str) -> str:
    """The URL of the same log or table, wherever this process works."""
    scheme, _, path = url.partition(":")
    if scheme not in _of_files or path.startswith("/") or not path:
        return url
    return f"{scheme}:{os.path.join(_base[-1] if _base else os.getcwd(), path)}"


@contextmanager
def relative_to(base: str) -> Iterator[None]:
    """Let relative URLs begin at the driver's directory. A worker of Spark has one task at a time."""
    _base.append(base)
    try:
        yield
    finally:
        _base.pop()
