"""The frame that a line stands in where the file itself does not tell the event's envelope, and its checksum.

    {"seq":7,"event_id":"…","type":"…","key":"…","tenant":"…","emitted_at":"…","persisted_at":"…","crc":"…","event":LINE}

The frame of a stream's first event has `"model":"…"` before `crc`: the model that the stream records.
`crc` is CRC-32 over everything before `,"crc"` and over LINE; what is left of the frame is fixed. No string of the
frame can hold `,"event":`, because JSON escapes the quotes inside a string, so the first one is the frame's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from zlib import crc32

import msgspec

from runstate.logs.log import Record
from runstate.models.canonical import undecodable
from runstate.storage.disk import File

_newline = ord("\n")
OPENING = b'{"seq":'
"""How every framed line begins."""
_beginning_bytes = 4096
"""Nearly always enough for a frame."""
_starts_max = 16
"""Of lines that may be welded together."""
LINE_DAMAGED = "log.line_damaged"
OUT_OF_ORDER = "log.out_of_order"


class Damage(Exception):
    """A line that no append wrote there."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Frame(msgspec.Struct, gc=False):
    seq: int
    event_id: str
    type: str
    key: str
    tenant: str
    emitted_at: str
    persisted_at: str
    model: str = ""


class _Model(msgspec.Struct, gc=False):
    model: str = ""


_frames = msgspec.json.Decoder(_Frame)
_models = msgspec.json.Decoder(_Model)
_encode = msgspec.json.Encoder().encode


def check_writable(body: bytes) -> None:
    """Read a model's line before it is written: one that nobody can read would end the file for every reader.

    Raises:
        ValueError: it is no JSON, or holds what ends a line or stands for data that never came.
    """
    if _newline in body or 0 in body:
        raise ValueError("an event's line holds a newline or a NUL")
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except undecodable as error:
        raise ValueError(str(error)) from error


def framed(record: Record, model: str) -> bytes:
    """A record as a line of a file, without its newline. The model of the stream is written with its first event."""
    head = b'{"seq":%d,"event_id":%b,"type":%b,"key":%b,"tenant":%b,"emitted_at":%b,"persisted_at":%b' % (
        record.seq,
        _encode(record.event_id),
        _encode(record.type),
        _encode(record.key),
        _encode(record.tenant),
        _encode(record.emitted_at),
        _encode(record.persisted_at),
    )
    if record.seq == 1 and model:
        head += b',"model":%b' % _encode(model)
    return b'%b,"crc":"%08x","event":%b}' % (head, crc32(record.body, crc32(head)), record.body)


def framed_model(line: bytes) -> str:
    """The model that a framed line, or the frame alone, records for its stream; empty where it records none."""
    try:
        return _models.decode(line.partition(b',"event":')[0] + b"}").model
    except (msgspec.MsgspecError, UnicodeError):  # Damaged: reading the line reports it.
        return ""


def read_first_frame(file: File) -> bytes:
    """The beginning of a file: with the whole frame of its first line, where that stands in one."""
    size = _beginning_bytes
    while True:
        start = file.read_at(0, size)
        if not start.startswith(OPENING) or b',"event":' in start or len(start) < size:
            return start
        size *= 8


def unframed(seq: int | None, line: bytes) -> tuple[bytes, bytes]:
    """A framed line's envelope (without its closing brace), and the model's line. No seq: at whatever place.

    Raises:
        Damage: what is wrong.
    """
    head, _, rest = line.partition(b',"event":')
    envelope, body = head[:-17], rest[:-1]
    if head[-17:] != b',"crc":"%08x"' % crc32(body, crc32(envelope)) or not rest.endswith(b"}"):
        raise Damage(LINE_DAMAGED, "The line does not fit its checksum")
    if seq is not None and not envelope.startswith(b'{"seq":%d,' % seq):
        raise Damage(OUT_OF_ORDER, f"The line is not number {seq}")
    return envelope, body


def all_unframed(seq: int, lines: Sequence[bytes]) -> list[bytes] | None:
    """The models' lines in framed ones, the first of which has that seq; None where one of them is not intact."""
    bodies = []
    for number, line in enumerate(lines, seq):
        head, _, rest = line.partition(b',"event":')
        envelope, body = head[:-17], rest[:-1]
        is_intact = head[-17:] == b',"crc":"%08x"' % crc32(body, crc32(envelope)) and rest[-1:] == b"}"
        if not (is_intact and envelope.startswith(b'{"seq":%d,' % number)):
            return None
        bodies.append(body)
    return bodies


def whole_parts(line: bytes, openings: re.Pattern[bytes], is_whole: Callable[[bytes], bool]) -> Iterator[bytes]:
    """A line if it is whole, else the whole ones that it is welded from: their newlines became something else."""
    if is_whole(line):
        yield line
        return
    starts = [0, *(match.start() for match in islice(openings.finditer(line, 1), _starts_max))]
    stops = [stop for start in (*starts[1:], len(line)) for stop in (start - 1, start)]
    at = 0
    for start in starts:
        for stop in (stop for stop in stops if start >= at and stop > start):
            if is_whole(line[start:stop]):
                yield line[start:stop]
                at = stop
                break


def framed_record(stream: str, seq: int, line: bytes) -> Record:
    """The record in a framed line.

    Raises:
        Damage: what is wrong.
    """
    head, body = unframed(seq, line)
    try:
        frame = _frames.decode(head + b"}")
    except undecodable as error:
        raise Damage(LINE_DAMAGED, f"The frame is no JSON: {error}") from error
    return Record(
        stream, seq, frame.event_id, frame.type, frame.key, frame.tenant, frame.emitted_at, frame.persisted_at, body
    )
