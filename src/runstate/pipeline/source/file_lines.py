"""Lines of plain files: stretches of files, the lines that begin in them, and the numbers of those lines.

A file is known again by its last bytes. What was planned of it may be read by any task, wherever the file is cut.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from socket import gethostname
from typing import BinaryIO, NamedTuple

import msgspec

from runstate.errors import LogFailed, RunstateError
from runstate.pipeline.source.packed_files import damaged, is_packed, unpacked

content_bytes_max = 1 << 16
"""What is kept of a line that is no event."""
tail_bytes = 1 << 16
"""By so many of its last bytes, a file is known again."""
_chunk_bytes = 1 << 18
_step_bytes = 1 << 15


class FileChanged(RunstateError):
    """A file that was read before is no longer what it was; nothing was taken from it."""

    code = "pipeline.file_changed"


class Part(msgspec.Struct, frozen=True, gc=False):
    """What is to be read of a file: the lines that begin at `start` or later, up to the byte `end`.

    Of a compressed file these are places in the compressed bytes, and all of it is read.
    """

    file: str
    start: int
    end: int
    tail: str
    """SHA-256 of the last bytes before `end`."""


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """The lines of a part that begin at `start` or later, and before `stop`."""

    part: Part
    start: int
    stop: int


@contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """The bytes of a file as they are.

    Raises:
        LogFailed: the file cannot be opened or read.
    """
    try:
        with open(file, "rb") as found:
            yield found
    except OSError as error:
        raise LogFailed(f"{file} cannot be read: {error.strerror}", path=file) from error


@contextmanager
def opened_lines(file: str) -> Iterator[BinaryIO]:
    """The lines of a file, to be sought in: what it unpacks to, if it is compressed.

    Raises:
        LogFailed, FileDamaged: the file cannot be opened, read or unpacked.
    """
    if is_packed(file):
        yield unpacked(file)
    else:
        with opened(file) as found:
            yield found


def whole(file: str) -> Part:
    """All that is in a file now.

    Raises:
        LogFailed: it cannot be read.
        FileDamaged: it is compressed, and has no bytes at all.
    """
    with opened(file) as found:
        end = os.fstat(found.fileno()).st_size
        if not end and is_packed(file):
            raise damaged(file, 1, "the file is empty")
        return Part(file, 0, end, fingerprint(found, end))


def fingerprint(file: BinaryIO, end: int) -> str:
    """By this, the first `end` bytes of a file are known again: SHA-256 of the last of them."""
    start = max(0, end - tail_bytes)
    file.seek(start)
    return sha256(file.read(end - start)).hexdigest()


class Line(NamedTuple):
    offset: int
    size: int
    """Without its newline."""
    content: bytes
    """All of it, or its beginning if it is longer than the limit."""
    is_ended: bool


def read_lines(file: BinaryIO, stretch: Stretch, bytes_max: int) -> Iterator[Line]:
    """The lines that begin in a stretch. Of one longer than `bytes_max`, no more than its beginning is ever held.

    The stretch of a compressed file is all of it, and `file` what it unpacks to.

    Raises:
        FileChanged: the file ends before the part does.
        Unpackable: it is compressed, and cannot be unpacked to its end.
    """
    if is_whole := is_packed(stretch.part.file):
        begins, stop, end = 0, sys.maxsize, sys.maxsize
    else:
        if (first := _first_line(file, stretch)) is None:
            return
        begins, stop, end = first, stretch.stop, stretch.part.end
        file.seek(begins)
    held, size, position = bytearray(), 0, begins
    while begins < stop and position < end:
        size_wanted = min(_chunk_bytes, end - position)
        chunk = file.read(size_wanted) if is_whole else _read(file, size_wanted, stretch.part)
        if not chunk:
            break
        position += len(chunk)
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            size += len(piece)
            content = bytes(held) + piece if held else piece
            yield Line(begins, size, content if size <= bytes_max else content[:content_bytes_max], True)
            begins += size + 1
            if held:
                held.clear()
            size = 0
            if begins >= stop:
                return
        size += len(rest)
        held += rest
        if size > bytes_max:
            del held[content_bytes_max:]
    if begins < min(stop, position):
        yield Line(begins, size, bytes(held), False)


def _first_line(file: BinaryIO, stretch: Stretch) -> int | None:
    """Where the first line of a stretch begins; None if a line of another stretch goes on to its end."""
    if stretch.start == 0:
        return 0
    # One byte back: if that is a newline, the first line begins right where the stretch does.
    position = stretch.start - 1
    file.seek(position)
    while position < stretch.stop - 1:
        chunk = _read(file, min(_chunk_bytes, stretch.stop - 1 - position), stretch.part)
        found = chunk.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(chunk)
    return None


def _read(file: BinaryIO, size: int, part: Part) -> bytes:
    chunk = file.read(size)
    if not chunk:
        raise changed(part, "became shorter while it was read")
    return chunk


def changed(part: Part, how: str) -> FileChanged:
    host = gethostname()
    return FileChanged(
        f"{part.file} {how}, or {host} does not see the file that the driver sees; run the job again", path=part.file
    )


class LineNumbers:
    """Numbers of lines by their offsets. Files are counted through only as far as somebody asks."""

    def __init__(self) -> None:
        self._newlines: dict[str, list[int]] = {}
        """How many there are in the first so many steps of a file."""

    def of(self, file: str, offset: int) -> int:
        """The number, from 1, of the line that begins at an offset."""
        counted = self._newlines.setdefault(file, [0])
        steps, rest = divmod(offset, _step_bytes)
        with opened_lines(file) as source:
            source.seek((len(counted) - 1) * _step_bytes)
            while len(counted) <= steps:
                counted.append(counted[-1] + source.read(_step_bytes).count(b"\n"))
            source.seek(steps * _step_bytes)
            return 1 + counted[steps] + source.read(rest).count(b"\n")
