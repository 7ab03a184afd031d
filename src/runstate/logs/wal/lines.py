"""The lines of a WAL file, and where an entry stands among them: seqs ascend, so it is found by halving the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runstate.logs.wal.entries import Entry, whole_entry
from runstate.storage.disk import File

chunk_bytes = 1 << 20
_probe_bytes = 1 << 12
_seq_pattern = re.compile(rb'{"seq":(\d{1,19})[,}]')


class Block(NamedTuple):
    """Whole lines, and where the first of them stands in the WAL; lines of the archive stand at -1."""

    lines: Sequence[bytes]
    offset: int


def file_blocks(file: File, start: int, end: int) -> Iterator[Block]:
    """The lines between two offsets without their newlines. Blank ones, and an unfinished last one, are left out."""
    rest, offset, size = [b""], start, _probe_bytes
    while start < end and (chunk := file.read_at(start, min(size, end - start))):
        start += len(chunk)
        size = min(4 * size, chunk_bytes)  # A small piece first: many readers want one line.
        rest.append(chunk)
        if b"\n" not in chunk:
            continue  # Joined once the line has ended: to join a long line with each chunk would take its size squared.
        data = b"".join(rest)
        lines = data.split(b"\n")
        last = lines.pop()
        block, rest = Block(lines, offset), [last]
        yield from _without_blanks(block) if _has_blanks(lines) else (block,)
        offset += len(data) - len(last)


def _has_blanks(lines: Sequence[bytes]) -> bool:
    return b"" in lines or b"\r" in lines


def _without_blanks(block: Block) -> Iterator[Block]:
    """The stretches between blank lines, which an editor may have left."""
    offset = start = block.offset
    lines: list[bytes] = []
    for line in (*block.lines, b""):
        if line not in (b"", b"\r"):
            lines.append(line)
        elif lines:
            yield Block(lines, start)
            lines = []
        offset += len(line) + 1
        start = start if lines else offset


def numbered_lines(file: File, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Each line with its offset."""
    for block in file_blocks(file, start, end):
        offset = block.offset
        for line in block.lines:
            yield offset, line
            offset += len(line) + 1


def offset_after(file: File, end: int, seq: int) -> int:
    """An offset where a line begins, before which all entries have a seq up to `seq`; as far on as can be found.

    Only a hint: lines are taken at their word. Whoever begins there checks the first line that he finds.
    """
    low, high = 0, end
    while high - low > _probe_bytes:
        middle = (low + high) // 2
        found = _line_after(file, middle, high)
        if found is None:
            high = middle
        elif found[1] <= seq:
            low = found[0]
        else:
            high = middle
    for offset, line in numbered_lines(file, low, end):
        match = _seq_pattern.match(line)
        if match is None or int(match[1]) > seq:
            break
        low = offset
    return low


def entry_before(stream: str, file: File, end: int, seq: int) -> int:
    """`offset_after`, checked: an intact entry stands there, or the file begins there."""
    start = offset_after(file, end, seq)
    line = next((line for _, line in numbered_lines(file, start, end)), b"")
    return start if whole_entry(stream, line) is not None else 0


def _line_after(file: File, offset: int, end: int) -> tuple[int, int] | None:
    """The first line that begins behind an offset and looks like an entry: where, and its seq."""
    data = b""
    while offset + len(data) < end:
        more = file.read_at(offset + len(data), min(max(_probe_bytes, len(data)), end - offset - len(data)))
        if not more:
            return None  # The file was cut short under its writer.
        data += more
        start = data.find(b"\n") + 1
        while start and (stop := data.find(b"\n", start)) >= 0:
            if match := _seq_pattern.match(data, start):
                return offset + start, int(match[1])
            start = stop + 1
    return None


def is_blank(file: File, start: int, end: int) -> bool:
    """Whether nothing but blank lines stands between two offsets."""
    return end - start <= _probe_bytes and not file.read_at(start, end - start).strip(b"\r\n")


def last_entry(stream: str, file: File, end: int) -> Entry | None:
    """The entry before an offset; None where there is none, or it is not intact."""
    span = _probe_bytes
    while end:
        start = max(0, end - span)
        data = file.read_at(start, end - start).rstrip(b"\r\n")
        begin = data.rfind(b"\n") + 1
        if begin or not start:
            return whole_entry(stream, data[begin:])
        span *= 4
    return None


def count_lines(file: File, start: int, end: int) -> int:
    lines = 0
    for offset in range(start, end, chunk_bytes):
        parts = file.read_at(offset, min(chunk_bytes, end - offset)).split(b"\n")[:-1]
        if _has_blanks(parts):  # Or a line ends where the chunk does.
            return sum(len(block.lines) for block in file_blocks(file, start, end))
        lines += len(parts)
    return lines


def start_of(file: File, end: int, first_seq: int) -> int:
    """Where the first entry with at least that seq begins, or where the file ends. Lines are taken at their word."""
    for offset, line in numbered_lines(file, offset_after(file, end, first_seq - 1), end):
        match = _seq_pattern.match(line)
        if match is None or int(match[1]) >= first_seq:
            return offset
    return end
