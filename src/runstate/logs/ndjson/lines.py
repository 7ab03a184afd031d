"""What one line of `events.ndjson` is, how it is written, and how it is found to be damaged.

An event of a run directory stands bare: the line is the model's own. Any other model's line stands in our frame:

    {"seq":7,"event_id":"…","type":"…","key":"…","tenant":"…","emitted_at":"…","persisted_at":"…","crc":"…","event":LINE}

`crc` is CRC-32 over everything before `,"crc"` and over LINE; what is left of the frame is fixed. No string of the
frame can hold `,"event":`, because JSON escapes the quotes inside a string, so the first one is the frame's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from zlib import crc32

import msgspec
from msgspec import UNSET, UnsetType

from runstate.errors import InvalidJson, LogFailed
from runstate.logs.log import Record
from runstate.models.model import Draft
from runstate.models.rundir.events import compact, event_hash
from runstate.models.rundir.model import RunDraft

CHAIN_BROKEN = "EVENT_CHAIN_BROKEN"
LINE_DAMAGED = "log.line_damaged"
OUT_OF_ORDER = "log.out_of_order"
openings = re.compile(rb'{"(?:seq|event_id)":')
"""How the lines that we write begin."""


class Damage(Exception):
    """A line that no append wrote there."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Envelope(msgspec.Struct, gc=False):
    """What a writer must know of every line."""

    key: str
    tenant: str
    persisted_at: str


class _Frame(msgspec.Struct, gc=False):
    seq: int
    event_id: str
    type: str
    key: str
    tenant: str
    emitted_at: str
    persisted_at: str


class _Bare(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    event_id: str
    run_id: str
    ts: str
    type: str
    payload: msgspec.Raw
    trace_id: str
    span_id: str
    parent_span_id: str | UnsetType = UNSET
    prev_hash: str | UnsetType = UNSET
    event_hash: str | UnsetType = UNSET


class _Stamp(msgspec.Struct, gc=False):
    event_id: str
    ts: str


class _Link(msgspec.Struct, gc=False):
    prev_hash: str = ""
    event_hash: str = ""


_envelopes = msgspec.json.Decoder(Envelope)
_frames = msgspec.json.Decoder(_Frame)
_bares = msgspec.json.Decoder(_Bare)
_stamps = msgspec.json.Decoder(_Stamp)
_links = msgspec.json.Decoder(_Link)
_encode = msgspec.json.Encoder().encode


# --- writing -------------------------------------------------------------------------------------------------


def write_line(stream: str, seq: int, persisted_at: str, draft: Draft, previous: bytes | None) -> tuple[bytes, Record]:
    """A draft's line without its newline, and the record that a reader will make of it.

    Raises:
        Exception: the draft cannot be rendered, or is no line of JSON.
    """
    body = draft.render(seq, persisted_at, previous)
    if b"\n" in body or b"\0" in body:
        raise ValueError("an event's line holds a newline or a NUL")
    # Read back: a line that nobody can read would end the file for every reader.
    if isinstance(draft, RunDraft):
        bare = _bare(body)
        if bare.run_id != stream:
            raise ValueError(f"the event belongs to the run {bare.run_id[:80]!r}")
        return body, Record(stream, seq, bare.event_id, bare.type, bare.event_id, "", bare.ts, bare.ts, body)
    msgspec.json.decode(body, type=msgspec.Raw)
    event_id, kind, key, tenant, emitted_at = draft.event_id, draft.type, draft.key, draft.tenant, draft.emitted_at
    record = Record(stream, seq, event_id, kind, key, tenant, emitted_at, persisted_at, body)
    return _framed(record), record


def adopted_line(record: Record, previous: bytes | None) -> bytes:
    """The line of a record that comes from another log: bare where that says all of it, else in our frame.

    Raises:
        LogFailed: it is no line of JSON.
    """
    try:
        if b"\n" in record.body or b"\0" in record.body:
            raise ValueError("it holds a newline or a NUL")
        msgspec.json.decode(record.body, type=msgspec.Raw)
        return record.body if _is_bare(record, previous) else _framed(record)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LogFailed(f"Event {record.seq} of {record.stream!r} cannot be written: {error}") from error


def _is_bare(record: Record, previous: bytes | None) -> bool:
    try:
        return read_line(record.stream, record.seq, record.body, previous) == record
    except Damage:  # No event of a run, or one that is not linked to the line before it.
        return False


def _framed(record: Record) -> bytes:
    head = b'{"seq":%d,"event_id":%b,"type":%b,"key":%b,"tenant":%b,"emitted_at":%b,"persisted_at":%b' % (
        record.seq,
        _encode(record.event_id),
        _encode(record.type),
        _encode(record.key),
        _encode(record.tenant),
        _encode(record.emitted_at),
        _encode(record.persisted_at),
    )
    return b'%b,"crc":"%08x","event":%b}' % (head, crc32(record.body, crc32(head)), record.body)


# --- reading -------------------------------------------------------------------------------------------------


def check_line(seq: int, line: bytes, previous: bytes | None) -> bytes:
    """The model's line in a line of the file, after the checks that cost little.

    They are the checksum and the place of a framed line, and the link of a bare one to the line before. What a bare
    line says is checked by `read_line`.

    Raises:
        Damage: what is wrong.
    """
    if line.startswith(b'{"seq":'):
        return _unframed(seq, line)[1]
    if not line.endswith(b"}"):
        raise Damage(LINE_DAMAGED, "The line is no JSON object")
    if _links_of(line)[0] != (b"" if previous is None else _links_of(previous)[1]):
        raise Damage(CHAIN_BROKEN, "prev_hash is not the event_hash of the line before")
    return line


def intact_bodies(seq: int, lines: Sequence[bytes], previous: bytes | None) -> Sequence[bytes] | None:
    """What `check_line` gives for each line, the first of which has that seq; None where it must look at each itself.

    Only for lines as we write them, all framed or all links of the chain, and at a fraction of its cost.
    """
    if lines[0].startswith(b'{"seq":'):
        return _all_unframed(seq, lines)
    if previous is None:
        return None
    hashes = [previous[-66:-2], *(line[-66:-2] for line in lines)]
    endings = [b',"prev_hash":"%b","event_hash":"' % event_hash for event_hash in hashes]
    ends = [line[-2:] for line in lines].count(b'"}')
    is_chain = [line[-160:-66] for line in lines] == endings[:-1] and ends == len(lines)
    return lines if is_chain else None


def _all_unframed(seq: int, lines: Sequence[bytes]) -> list[bytes] | None:
    bodies = []
    for number, line in enumerate(lines, seq):
        head, _, rest = line.partition(b',"event":')
        envelope, body = head[:-17], rest[:-1]
        is_intact = head[-17:] == b',"crc":"%08x"' % crc32(body, crc32(envelope)) and rest[-1:] == b"}"
        if not (is_intact and envelope.startswith(b'{"seq":%d,' % number)):
            return None
        bodies.append(body)
    return bodies


def read_line(stream: str, seq: int, line: bytes, previous: bytes | None) -> Record:
    """A line as a record, after every check.

    Raises:
        Damage: what is wrong.
    """
    if line.startswith(b'{"seq":'):
        head, body = _unframed(seq, line)
        try:
            frame = _frames.decode(head + b"}")
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise Damage(LINE_DAMAGED, f"The frame is no JSON: {error}") from error
        return Record(
            stream, seq, frame.event_id, frame.type, frame.key, frame.tenant, frame.emitted_at, frame.persisted_at, body
        )
    bare = _bare(line)
    check_line(seq, line, previous)
    if bare.run_id != stream:
        raise Damage(LINE_DAMAGED, f"The line belongs to the run {bare.run_id[:80]!r}")
    if bare.event_hash is not UNSET and not _is_hashed(bare):
        raise Damage(CHAIN_BROKEN, "event_hash is not the hash of what the line says")
    return Record(stream, seq, bare.event_id, bare.type, bare.event_id, "", bare.ts, bare.ts, line)


def envelope_of(line: bytes) -> Envelope:
    """What a writer must know of a line that `check_line` has let through.

    Raises:
        Damage: the line is no event.
    """
    if line.startswith(b'{"seq":'):
        return _envelopes.decode(line.partition(b',"event":')[0] + b"}")
    try:
        stamp = _stamps.decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Damage(LINE_DAMAGED, f"The line is no event of a run: {error}") from error
    return Envelope(stamp.event_id, "", stamp.ts)


def body_of(line: bytes) -> bytes:
    """The model's line in a line that was checked before."""
    return line.partition(b',"event":')[2][:-1] if line.startswith(b'{"seq":') else line


def looks_whole(line: bytes) -> bool:
    """Whether a line is one that somebody has written whole, at whatever place it stands."""
    try:
        if line.startswith(b'{"seq":'):
            _unframed(None, line)
        else:
            _bare(line)
    except Damage:
        return False
    return True


def _unframed(seq: int | None, line: bytes) -> tuple[bytes, bytes]:
    """A framed line's envelope (without its closing brace), and the model's line."""
    head, _, rest = line.partition(b',"event":')
    envelope, body = head[:-17], rest[:-1]
    if head[-17:] != b',"crc":"%08x"' % crc32(body, crc32(envelope)) or not rest.endswith(b"}"):
        raise Damage(LINE_DAMAGED, "The line does not fit its checksum")
    if seq is not None and not envelope.startswith(b'{"seq":%d,' % seq):
        raise Damage(OUT_OF_ORDER, f"The line is not number {seq}")
    return envelope, body


def _bare(line: bytes) -> _Bare:
    try:
        return _bares.decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Damage(LINE_DAMAGED, f"The line is no event of a run: {error}") from error


def _links_of(line: bytes) -> tuple[bytes, bytes]:
    """A line's prev_hash and event_hash; empty where it has none."""
    # Where we write them, which saves a replay the parsing of every line.
    if line[-82:-66] == b'","event_hash":"' and line[-160:-146] == b',"prev_hash":"':
        return line[-146:-82], line[-66:-2]
    try:
        link = _links.decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise Damage(LINE_DAMAGED, f"The line is no JSON object: {error}") from error
    return link.prev_hash.encode(), link.event_hash.encode()


def _is_hashed(bare: _Bare) -> bool:
    prev_hash = bare.prev_hash or ""
    # Most payloads stand in the line as the chain hashes them; only the others are sorted again.
    try:
        payload = bytes(bare.payload).decode()
        if event_hash(bare.event_id, bare.ts, bare.type, payload, prev_hash) == bare.event_hash:
            return True
        payload = compact(msgspec.json.decode(bare.payload))
    except (msgspec.MsgspecError, UnicodeError, InvalidJson):
        return False
    return event_hash(bare.event_id, bare.ts, bare.type, payload, prev_hash) == bare.event_hash
