"""Which events behind the damage in a run's file can still be proven, and which of them the run can hold.

The checksum of a frame proves its line and its seq. The hashes of a bare line prove it, and the line that it follows.
A bare line without hashes proves nothing behind damage: its seq is the number of its line, which may have changed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from runstate.logs.frames import Damage, whole_parts
from runstate.logs.ndjson.lines import last_hash, openings, own_place, read_line
from runstate.logs.ndjson.reading import chunk_bytes
from runstate.storage.disk import File


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A whole line in the file, at whatever place."""

    offset: int
    bytes: int
    seq: int
    """By its own word, or by the number of its line."""


class Salvaged(msgspec.Struct, frozen=True):
    """What is left behind the damage."""

    held: list[Piece]
    """Events that follow the intact ones without a gap."""
    behind: list[Piece]
    """Proven ones that the run cannot hold."""
    had: int
    """How many events there were, as far as the file tells."""


def salvage_behind(
    stream: str, file: File, intact: int, keys: set[str], offset: int, end: int, previous: bytes | None
) -> Salvaged:
    """What is proven behind an offset, before which stand `intact` events with these keys."""
    found: dict[int | str, Piece] = {}
    last_framed, bad = 0, list[int]()
    for number, (start, line) in enumerate(_raw_lines(file, offset, end), intact + 1):
        is_known = False
        for part in whole_parts(line, openings, lambda part: own_place(stream, part) is not None):
            if (place := own_place(stream, part)) is None:
                continue
            is_framed = isinstance(place.after, int)
            seq = place.after + 1 if isinstance(place.after, int) else number
            last_framed = max(last_framed, seq if is_framed else 0)
            is_known = True
            if place.key not in keys:
                found.setdefault(place.after, Piece(start + line.index(part), len(part), seq))
        if not is_known:
            bad.append(start)
    held: list[Piece] = []
    while (piece := _next(stream, file, found, intact + len(held), previous)) is not None:
        del found[piece[2]]
        held.append(msgspec.structs.replace(piece[0], seq=intact + len(held) + 1))
        previous = piece[1]
    behind = sorted(found.values(), key=lambda each: each.offset)
    # Frames tell their seqs. In a chain of hashes, what stands before a line that follows without a gap is no event.
    end_held = max((piece.offset for piece in held), default=offset - 1)
    had = last_framed or intact + len(held) + len(behind) + sum(start > end_held for start in bad)
    return Salvaged(held, behind, max(had, intact + len(held)))


def read_piece(file: File, piece: Piece) -> bytes:
    return file.read_at(piece.offset, piece.bytes)


def _next(
    stream: str, file: File, found: dict[int | str, Piece], seq: int, previous: bytes | None
) -> tuple[Piece, bytes, int | str] | None:
    """The piece that stands behind an event in the run, the model's line in it, and its key in `found`."""
    link = "" if previous is None else last_hash(previous)
    for after in (seq, *((link,) if link or not seq else ())):
        if (piece := found.get(after)) is not None:
            try:
                return piece, read_line(stream, seq + 1, read_piece(file, piece), previous).body, after
            except Damage:
                continue
    return None


def _raw_lines(file: File, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Lines with their offsets; what stands behind the last newline counts as one."""
    rest = b""
    while start < end and (chunk := file.read_at(start, min(chunk_bytes, end - start))):
        at = start - len(rest)
        start += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield at, line
            at += len(line) + 1
    if rest:
        yield start - len(rest), rest
