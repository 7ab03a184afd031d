"""Gzip, and Zstandard, which is imported when it is asked for or a compressed file is met, and not before.

Compressed bytes are unpacked piece by piece: a few megabytes of them can hold more than there is memory.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

from runstate.errors import Unsupported

unpacked_bytes_max = 1 << 30
"""A file that holds more is refused. Ours hold a few MiB."""
piece_bytes = 1 << 20
_window_bytes_max = 1 << 23
"""What a frame may make Zstandard keep in memory while it is unpacked. Ours need 2 MiB."""


class Source(Protocol):
    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes; none where it ends."""


def compressed(data: bytes) -> bytes:
    return bytes(_library().ZstdCompressor(write_checksum=True).compress(data))


def decompressed(data: bytes) -> bytes:
    """A JSON object that was compressed with Zstandard, whole.

    Raises:
        ValueError: they are no compressed bytes, no object, or more than `unpacked_bytes_max`.
        Unsupported: the library is not installed.
    """
    found = io.BytesIO()
    for piece in unzstd(io.BytesIO(data)):
        if not found.tell() and not piece.startswith(b"{"):
            raise ValueError("it is no JSON object")  # Before the rest of it takes memory.
        found.write(piece)
    return found.getvalue()


def unzstd(source: Source) -> Iterator[bytes]:
    """The content of one Zstandard frame, a piece at a time.

    Raises:
        ValueError: it is not one whole frame with its size, or holds more than `unpacked_bytes_max`.
        Unsupported: the library is not installed.
    """
    library = _library()
    try:
        head = source.read(piece_bytes)
        size = left = library.frame_content_size(head)
        if not 0 <= size <= unpacked_bytes_max:
            raise ValueError(f"it has no size, or one of more than {unpacked_bytes_max} bytes: {size}")
        unpacker = library.ZstdDecompressor(max_window_size=_window_bytes_max)
        with unpacker.stream_reader(_Rest(head, source), closefd=False) as reader:
            while piece := reader.read(piece_bytes):
                left -= len(piece)
                yield piece
    except library.ZstdError as error:
        raise ValueError(f"these are no bytes that zstd wrote: {error}") from error
    if left:
        raise ValueError(f"it does not hold the {size} bytes that it announces")


def gunzip(source: Source) -> Iterator[bytes]:
    """The content of a gzip file, a piece at a time.

    Raises:
        ValueError: it is not one whole gzip file, or holds more than `unpacked_bytes_max`.
    """
    unpacker, left = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), unpacked_bytes_max
    try:
        while data := unpacker.unconsumed_tail or source.read(piece_bytes):
            piece = unpacker.decompress(data, piece_bytes)
            left -= len(piece)
            if left < 0:
                raise ValueError(f"it holds more than {unpacked_bytes_max} bytes")
            if piece:
                yield piece
            if unpacker.eof:
                break
    except zlib.error as error:
        raise ValueError(f"these are no bytes that gzip wrote: {error}") from error
    if not unpacker.eof or unpacker.unused_data or source.read(1):
        raise ValueError("it is not one whole gzip file")


class _Rest:
    """A source with the bytes that were taken from it in front."""

    def __init__(self, head: bytes, source: Source) -> None:
        self._head, self._source = head, source

    def read(self, size: int = -1, /) -> bytes:
        head, self._head = self._head, b""
        return head or self._source.read(size)


def _library() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise Unsupported(f"Compression needs a library: pip install 'runstate[zstd]' ({error})") from error
    return zstandard
