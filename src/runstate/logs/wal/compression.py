"""Gzip, and Zstandard, which is imported when it is asked for or a compressed file is met, and not before."""

from __future__ import annotations

import zlib
from typing import Any

from runstate.errors import Unsupported

unpacked_bytes_max = 1 << 30
"""A file that holds more is refused: a small one can hold more than there is memory. Ours hold a few MiB."""


def compressed(data: bytes) -> bytes:
    return bytes(_library().ZstdCompressor(write_checksum=True).compress(data))


def decompressed(data: bytes) -> bytes:
    """
    Raises:
        ValueError: they are no compressed bytes, or more than `unpacked_bytes_max`.
        Unsupported: the library is not installed.
    """
    library = _library()
    try:
        # The size stands in what we write. It is believed, and allocated, by the library.
        size = library.frame_content_size(data)
        if not 0 <= size <= unpacked_bytes_max:
            raise ValueError(f"it has no size, or one of more than {unpacked_bytes_max} bytes: {size}")
        return bytes(library.ZstdDecompressor().decompress(data))
    except library.ZstdError as error:
        raise ValueError(f"these are no bytes that zstd wrote: {error}") from error


def gunzipped(data: bytes) -> bytes:
    """
    Raises:
        ValueError: they are not one whole gzip file, or more than `unpacked_bytes_max`.
    """
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        found = unpacker.decompress(data, unpacked_bytes_max + 1)
    except zlib.error as error:
        raise ValueError(f"these are no bytes that gzip wrote: {error}") from error
    if len(found) > unpacked_bytes_max:
        raise ValueError(f"it holds more than {unpacked_bytes_max} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("it is not one whole gzip file")
    return found


def _library() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise Unsupported(f"Compression needs a library: pip install 'runstate[zstd]' ({error})") from error
    return zstandard
