"""Compressed files of lines: `.gz` and `.zst`. They are read from their beginning to their end, and only whole.

What is in memory is a chunk, whatever the file unpacks to. A file that ends too early, or whose bytes were changed,
raises: it never looks like a shorter one.
"""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from runstate.errors import LogFailed, RunstateError

packed_suffixes = (".gz", ".zst")
_chunk_bytes = 1 << 18
_copies_max = 4
_copies: OrderedDict[str, BinaryIO] = OrderedDict()
"""Unpacked, for those who look for lines here and there. They have no names, and end with the process."""


class FileDamaged(RunstateError):
    """A compressed file cannot be unpacked to its end; nothing was taken from it."""

    code = "pipeline.file_damaged"


class Unpackable(Exception):
    """Where a compressed file cannot be unpacked on. The text says why."""


class _Packed:
    """Reads like a file."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def read(self, size: int) -> bytes:
        try:
            return bytes(self._source.read(size))
        except (OSError, EOFError, zlib.error) as error:
            raise Unpackable(str(error)) from error


def is_packed(file: str) -> bool:
    return file.endswith(packed_suffixes)


@contextmanager
def unpacking(file: str) -> Iterator[BinaryIO]:
    """What a compressed file unpacks to, to be read from its beginning. Reading raises `Unpackable`.

    Raises:
        LogFailed: the file cannot be opened.
    """
    import pyarrow as pa

    try:
        source = gzip.GzipFile(file, "rb") if file.endswith(".gz") else pa.input_stream(file, compression="zstd")
    except OSError as error:
        raise LogFailed(f"{file} cannot be read: {error.strerror or error}", path=file) from error
    with source:
        yield cast(BinaryIO, _Packed(cast(BinaryIO, source)))


def damaged(file: str, line: int | None, why: object) -> FileDamaged:
    where = "" if line is None else f" on from line {line}"
    return FileDamaged(
        f"{file} cannot be unpacked{where}: {why}. Nothing was ingested. Wait until it is written to its end, put an "
        "intact one in its place, or take it away; then run the job again",
        path=file,
        line=line,
    )


def unpacked(file: str) -> BinaryIO:
    """A copy that can be sought in. The last few are kept for the next who asks.

    Raises:
        FileDamaged, LogFailed: it cannot be unpacked, or read.
    """
    if file not in _copies:
        copy = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - kept beyond this call
        try:
            with unpacking(file) as source:
                while chunk := source.read(_chunk_bytes):
                    copy.write(chunk)
        except Unpackable as error:
            copy.close()
            raise damaged(file, None, error) from error
        _copies[file] = copy
        if len(_copies) > _copies_max:
            _copies.popitem(last=False)[1].close()
    _copies.move_to_end(file)
    return _copies[file]
