"""Small files that may be torn by a crash: JSON with a checksum in front, so that half of one is never believed."""

from __future__ import annotations

from pathlib import PurePath
from typing import TypeVar
from zlib import crc32

import msgspec

from runstate.errors import LogTooNew
from runstate.models.canonical import undecodable

T = TypeVar("T")


class _Format(msgspec.Struct):
    format: int = 0


def sealed(value: msgspec.Struct) -> bytes:
    content = msgspec.json.encode(value)
    return b'{"crc":"%08x","content":%b}\n' % (crc32(content), content)


def unsealed(data: bytes, kind: type[T]) -> T | None:
    """What was sealed, or None: torn, changed, or written by another version."""
    content = data[28:-2]
    if data != b'{"crc":"%08x","content":%b}\n' % (crc32(content), content):
        return None
    try:
        return msgspec.json.decode(content, type=kind)
    except undecodable:
        return None


def refuse_newer(data: bytes, path: PurePath, format_max: int) -> None:
    """
    Raises:
        LogTooNew: what was sealed says that it has a newer format.
    """
    found = unsealed(data, _Format)
    if found is not None and found.format > format_max:
        raise too_new(path, f"has the format {found.format}, this Runstate reads up to {format_max}")


def too_new(path: PurePath, what: str) -> LogTooNew:
    return LogTooNew(f"{path} {what}; upgrade Runstate to open this log. It was left untouched", path=str(path))
