"""What a `wal:` URL says: where the log is, and how it behaves."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl

from runstate.errors import InvalidUrl
from runstate.logs.wal.log import WalLog
from runstate.logs.wal.options import read_options


def open_url(url: str, *, create: bool = True) -> WalLog:
    """`wal:DIR?flush_interval_ms=10&flush_entries=100&history=drop|archive&compress=none|zstd&remembered_keys=10000`.

    Raises:
        InvalidUrl: what is wrong with it.
    """
    path, mark, query = url.removeprefix("wal:").removeprefix("//").partition("?")
    if not path or "\0" in path:
        raise InvalidUrl(f"{url[:80]!r} names no directory: write wal:DIR")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(mark))
    except ValueError as error:
        raise InvalidUrl(f"The options in {url[:80]!r} cannot be read: {error}") from error
    if len({name for name, _ in pairs}) < len(pairs):
        raise InvalidUrl(f"An option stands twice in {url[:80]!r}")
    return WalLog(Path(path), options=read_options(dict(pairs)), create=create)
