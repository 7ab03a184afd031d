"""Small files that may be torn by a crash: JSON with a checksum in front, so that half of one is never believed."""

from __future__ import annotations

from typing import TypeVar
from zlib import crc32

import msgspec

from runstate.models.canonical import undecodable

T = TypeVar("T")


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
