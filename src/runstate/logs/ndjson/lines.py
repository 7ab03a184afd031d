"""What one line of `events.ndjson` is, how it is written, and how it is found to be damaged.

An event of a run directory stands bare: the line is the model's own. Any other model's line stands in a frame.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from runstate.errors import InvalidJson, LogFailed
from runstate.logs.frames import (
    LINE_DAMAGED,
    OPENING,
    Damage,
    all_unframed,
    check_writable,
    framed,
    framed_model,
    framed_record,
    unframed,
)
from runstate.logs.log import Record
from runstate.models.canonical import undecodable
from runstate.models.hash_chain import compact, event_hash
from runstate.models.model import Draft

CHAIN_BROKEN = "EVENT_CHAIN_BROKEN"
bare_model = "rundir"
"""The model of bare lines."""
openings = re.compile(rb'{"(?:seq|event_id)":')
"""How the lines that we write begin."""


class Envelope(msgspec.Struct, gc=False):
    """What a writer must know of every line."""

    key: str
    tenant: str
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


_framed_seq = re.compile(rb'{"seq":(\d{1,18}),')
_envelopes = msgspec.json.Decoder(Envelope)
_bares = msgspec.json.Decoder(_Bare)
_stamps = msgspec.json.Decoder(_Stamp)
_links = msgspec.json.Decoder(_Link)


# --- writing -------------------------------------------------------------------------------------------------


def write_line(stream: str, seq: int, persisted_at: str, draft: Draft, previous: bytes | None) -> tuple[bytes, Record]:
    """A draft's line without its newline, and the record that a reader will make of it.

    Raises:
        Exception: the draft cannot be rendered, or is no line of JSON.
    """
    body = draft.render(seq, persisted_at, previous)
    check_writable(body)
    if draft.tells_envelope and draft.model in ("", bare_model):
        bare = _bare(body)
        if bare.run_id != stream:
            raise ValueError(f"the event belongs to the run {bare.run_id[:80]!r}")
        return body, Record(stream, seq, bare.event_id, bare.type, bare.event_id, "", bare.ts, bare.ts, body)
    event_id, kind, key, tenant, emitted_at = draft.event_id, draft.type, draft.key, draft.tenant, draft.emitted_at
    record = Record(stream, seq, event_id, kind, key, tenant, emitted_at, persisted_at, body)
    return framed(record, draft.model), record


def adopted_line(record: Record, previous: bytes | None, model: str) -> bytes:
    """The line of a record that comes from another log: bare where that says all of it, else in our frame.

    `model` is what the stream records then; empty: nothing is known of its model.

    Raises:
        LogFailed: it is no line of JSON.
    """
    try:
        check_writable(record.body)
        is_bare = model in ("", bare_model) and _is_bare(record, previous)
        return record.body if is_bare else framed(record, model)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LogFailed(f"Event {record.seq} of {record.stream!r} cannot be written: {error}") from error


def _is_bare(record: Record, previous: bytes | None) -> bool:
    try:
        return read_line(record.stream, record.seq, record.body, previous) == record
    except Damage:  # No event of a run, or one that is not linked to the line before it.
        return False


# --- reading -------------------------------------------------------------------------------------------------


def check_line(seq: int, line: bytes, previous: bytes | None) -> bytes:
    """The model's line in a line of the file, after the checks that cost little.

    They are the checksum and the place of a framed line, and the link of a bare one to the line before. What a bare
    line says is checked by `check_bare`.

    Raises:
        Damage: what is wrong.
    """
    if line.startswith(OPENING):
        return unframed(seq, line)[1]
    if not line.endswith(b"}"):
        raise Damage(LINE_DAMAGED, "The line is no JSON object")
    if _links_of(line)[0] != (b"" if previous is None else _links_of(previous)[1]):
        raise Damage(CHAIN_BROKEN, "prev_hash is not the event_hash of the line before")
    return line


def intact_bodies(seq: int, lines: Sequence[bytes], previous: bytes | None) -> Sequence[bytes] | None:
    """What `check_line` gives for each line, the first of which has that seq; None where it must look at each itself.

    Only for lines as we write them, all framed or all links of the chain, and at a fraction of its cost.
    """
    if lines[0].startswith(OPENING):
        return all_unframed(seq, lines)
    if previous is None:
        return None
    hashes = [previous[-66:-2], *(line[-66:-2] for line in lines)]
    endings = [b',"prev_hash":"%b","event_hash":"' % event_hash for event_hash in hashes]
    ends = [line[-2:] for line in lines].count(b'"}')
    is_chain = [line[-160:-66] for line in lines] == endings[:-1] and ends == len(lines)
    return lines if is_chain else None


def read_line(stream: str, seq: int, line: bytes, previous: bytes | None) -> Record:
    """A line as a record, after every check.

    Raises:
        Damage: what is wrong.
    """
    if line.startswith(OPENING):
        return framed_record(stream, seq, line)
    bare = check_bare(stream, line)
    check_line(seq, line, previous)
    return Record(stream, seq, bare.event_id, bare.type, bare.event_id, "", bare.ts, bare.ts, line)


def check_bare(stream: str, line: bytes) -> _Bare:
    """What a bare line says, checked against its hash, if it has one.

    Raises:
        Damage: what is wrong.
    """
    bare = _bare(line)
    if bare.run_id != stream:
        raise Damage(LINE_DAMAGED, f"The line belongs to the run {bare.run_id[:80]!r}")
    if bare.event_hash is not UNSET and not _is_hashed(bare):
        raise Damage(CHAIN_BROKEN, "event_hash is not the hash of what the line says")
    return bare


def are_hashed(stream: str, lines: Sequence[bytes]) -> bool:
    """Whether `check_bare` finds nothing wrong with any of these lines."""
    try:
        for line in lines:
            check_bare(stream, line)
    except Damage:
        return False
    return True


def envelope_of(line: bytes) -> Envelope:
    """What a writer must know of a line that `check_line` has let through.

    Raises:
        Damage: the line is no event.
    """
    if line.startswith(OPENING):
        return _envelopes.decode(line.partition(b',"event":')[0] + b"}")
    try:
        stamp = _stamps.decode(line)
    except undecodable as error:
        raise Damage(LINE_DAMAGED, f"The line is no event of a run: {error}") from error
    return Envelope(stamp.event_id, "", stamp.ts)


def model_of(first_line: bytes) -> str:
    """The model that a run records, by its first line or the frame at its beginning. Empty where it records none."""
    return framed_model(first_line) if first_line.startswith(OPENING) else bare_model


def body_of(line: bytes) -> bytes:
    """The model's line in a line that was checked before."""
    return line.partition(b',"event":')[2][:-1] if line.startswith(OPENING) else line


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a line belongs by its own word: behind a seq, or behind the line with a hash."""

    after: int | str
    key: str


def own_place(stream: str, line: bytes) -> Place | None:
    """The place of a line that proves itself by a checksum or a hash; None where it does not."""
    try:
        if line.startswith(OPENING):
            found = _framed_seq.match(line)
            seq = int(found[1]) if found else 0
            return Place(seq - 1, framed_record(stream, seq, line).key) if seq else None
        bare = _bare(line)
    except Damage:
        return None
    is_proven = bare.run_id == stream and bare.event_hash is not UNSET and _is_hashed(bare)
    return Place(bare.prev_hash or "", bare.event_id) if is_proven else None


def last_hash(body: bytes) -> str:
    """The hash that the line behind this one names; empty where there is none."""
    try:
        return _links_of(body)[1].decode()
    except (Damage, UnicodeError):
        return ""


def looks_whole(line: bytes) -> bool:
    """Whether a line is one that somebody has written whole, at whatever place it stands."""
    try:
        if line.startswith(OPENING):
            unframed(None, line)
        else:
            _bare(line)
    except Damage:
        return False
    return True


def _bare(line: bytes) -> _Bare:
    try:
        return _bares.decode(line)
    except undecodable as error:
        raise Damage(LINE_DAMAGED, f"The line is no event of a run: {error}") from error


def _links_of(line: bytes) -> tuple[bytes, bytes]:
    """A line's prev_hash and event_hash; empty where it has none."""
    # Where we write them, which saves a replay the parsing of every line.
    if line[-82:-66] == b'","event_hash":"' and line[-160:-146] == b',"prev_hash":"':
        return line[-146:-82], line[-66:-2]
    try:
        link = _links.decode(line)
    except undecodable as error:
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
    except (InvalidJson, *undecodable):
        return False
    return event_hash(bare.event_id, bare.ts, bare.type, payload, prev_hash) == bare.event_hash
