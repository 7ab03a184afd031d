"""Zstandard, imported when somebody asks for it or a compressed file is met, and not before."""

from __future__ import annotations

from typing import Any

from runstate.errors import Unsupported


def compressed(data: bytes) -> bytes:
    return bytes(_library().ZstdCompressor(write_checksum=True).compress(data))


def decompressed(data: bytes) -> bytes:
    """
    Raises:
        ValueError: they are no compressed bytes.
        Unsupported: the library is not installed.
    """
    library = _library()
    try:
        return bytes(library.ZstdDecompressor().decompress(data))
    except library.ZstdError as error:
        raise ValueError(f"these are no bytes that zstd wrote: {error}") from error


def _library() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise Unsupported(f"Compression needs a library: pip install 'runstate[zstd]' ({error})") from error
    return zstandard
