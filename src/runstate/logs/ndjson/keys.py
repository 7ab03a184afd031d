"""`keys.idx`: the keys of a run, so that a writer need not read all of its lines. It can be thrown away.

A sealed line tells how far it goes, and the checksum of the run's file up to there. Then come, in numbers of 8 bytes,
where every 64th line begins, and every key in order: 40 bits of its BLAKE2b digest and 24 bits of its seq. Such an
entry is a hint: only the line at that seq tells whether it has that key.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from zlib import crc32

import msgspec

from runstate.logs.ndjson.files import RunFiles
from runstate.logs.ndjson.reading import Mark, whole_lines
from runstate.logs.sealed import sealed, unsealed
from runstate.storage.disk import Disk, File, replace_durably

stride = 64
_seq_bits = 24
seqs_max = (1 << _seq_bits) - 1
"""A longer run has no such file, and is read whole."""


class _Label(msgspec.Struct, frozen=True):
    end: Mark
    crc: int
    """Of the run's file up to the mark."""
    starts: int
    content_crc: int
    format: int = 1


class KeyFile:
    """The keys and lines of a run up to a mark."""

    def __init__(self, end: Mark, crc: int, starts: Sequence[int], entries: Sequence[int]) -> None:
        self.end, self.crc, self.starts, self.entries = end, crc, starts, entries

    def seqs_of(self, key: str) -> Iterator[int]:
        """Where the key may stand, if it stands anywhere."""
        wanted = _entry(key, 0)
        for at in range(bisect_left(self.entries, wanted), len(self.entries)):
            if self.entries[at] >> _seq_bits != wanted >> _seq_bits:
                return
            yield self.entries[at] & seqs_max

    def span(self, file: File, seq: int) -> tuple[int, int]:
        """Where a line begins, and where the next one does.

        Raises:
            LookupError: the file has changed since.
        """
        block, rest = divmod(seq - 1, stride)
        start = self.starts[block]
        for line in whole_lines(file, start, self.end.offset, chunk_bytes=32 * 1024):
            if not rest:
                return start, start + len(line) + 1
            start, rest = start + len(line) + 1, rest - 1
        raise LookupError(seq)


def read_keys(disk: Disk, files: RunFiles) -> KeyFile | None:
    """What the file holds; None where there is none, or one that is damaged."""
    try:
        head, _, content = disk.read(files.keys).partition(b"\n")
    except OSError:
        return None
    label = unsealed(head + b"\n", _Label)
    if label is None or label.format != 1 or crc32(content) != label.content_crc or len(content) % 8:
        return None
    numbers = _numbers(content)
    return KeyFile(label.end, label.crc, numbers[: label.starts], numbers[label.starts :])


def write_keys(
    disk: Disk,
    files: RunFiles,
    base: KeyFile | None,
    end: Mark,
    crc: int,
    bounds: Sequence[int],
    keys: Mapping[str, int],
) -> None:
    """Replace the file: what `base` holds, and the lines behind it, which begin at `bounds` and have these keys."""
    known = 0 if base is None else base.end.seq
    starts = array("Q", () if base is None else base.starts)
    starts.extend(array("Q", bounds[-known % stride : -1 : stride]))
    entries = [] if base is None else list(base.entries)
    entries += sorted(_entry(key, seq) for key, seq in keys.items())
    content = _bytes(starts) + _bytes(array("Q", sorted(entries)))
    label = _Label(end, crc, len(starts), crc32(content))
    replace_durably(disk, files.keys, sealed(label) + content)


def _entry(key: str, seq: int) -> int:
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=5).digest()
    return int.from_bytes(digest, "little") << _seq_bits | seq


def _numbers(content: bytes) -> array[int]:
    numbers = array("Q", content)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _bytes(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = array("Q", numbers)
        numbers.byteswap()
    return numbers.tobytes()
