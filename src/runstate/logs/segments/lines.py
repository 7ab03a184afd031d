"""What one line of a segment is. An event of the session model stands bare, any other model's line in a frame.

A bare line tells its own envelope: `{"eventIndex":N,"persistedAt":…,"eventId":…,"sessionId":…,"kind":…,"dedupeKey":…`.
The segment's digest proves every line in it, so reading one back needs no further check than that it can be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from runstate.errors import LogFailed
from runstate.logs.frames import (
    LINE_DAMAGED,
    OPENING,
    OUT_OF_ORDER,
    Damage,
    check_writable,
    framed,
    framed_model,
    framed_record,
)
from runstate.logs.log import Record
from runstate.models.canonical import undecodable
from runstate.models.model import Draft

_bare_model = "session"
"""The model of bare lines."""


class _Bare(msgspec.Struct, rename="camel", gc=False):
    event_index: int
    persisted_at: str
    event_id: str
    session_id: str
    kind: str
    dedupe_key: str


_bares = msgspec.json.Decoder(_Bare)
openings = re.compile(rb'{"(?:seq|eventIndex)":')
"""How the lines that we write begin."""
_framed_seq = re.compile(rb'{"seq":(\d{1,18}),')


def write_line(stream: str, seq: int, persisted_at: str, draft: Draft, previous: bytes | None) -> tuple[bytes, Record]:
    """A draft's line without its newline, and the record that a reader will make of it.

    Raises:
        Exception: the draft cannot be rendered, or is no line of JSON.
    """
    body = draft.render(seq, persisted_at, previous)
    event_id, kind, key, tenant, emitted_at = draft.event_id, draft.type, draft.key, draft.tenant, draft.emitted_at
    record = Record(stream, seq, event_id, kind, key, tenant, emitted_at, persisted_at, body)
    return _line(record, draft.model), record


def adopted_line(record: Record, model: str) -> bytes:
    """The line of a record that comes from another log, in a stream that records `model`.

    Raises:
        LogFailed: it is no line of JSON.
    """
    try:
        return _line(record, model)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LogFailed(f"Event {record.seq} of {record.stream!r} cannot be written: {error}") from error


def read_line(stream: str, seq: int, line: bytes) -> Record:
    """
    Raises:
        Damage: what is wrong.
    """
    if line.startswith(OPENING):
        return framed_record(stream, seq, line)
    try:
        bare = _bares.decode(line)
    except undecodable as error:
        raise Damage(LINE_DAMAGED, f"The line is no event of a session: {error}") from error
    if (bare.event_index, bare.session_id) != (seq - 1, stream):
        whose = f"event {bare.event_index} of the session {bare.session_id[:80]!r}"
        raise Damage(OUT_OF_ORDER, f"The line is {whose}, and stands in the place of event {seq - 1} of {stream!r}")
    return Record(stream, seq, bare.event_id, bare.kind, bare.dedupe_key, "", "", bare.persisted_at, line)


def locate_line(stream: str, line: bytes) -> Record | None:
    """The record of a line at the place that the line itself names; None where it is no event of this stream."""
    try:
        if line.startswith(OPENING):
            found = _framed_seq.match(line)
            return None if found is None else framed_record(stream, int(found[1]), line)
        return read_line(stream, _bares.decode(line).event_index + 1, line)
    except (Damage, *undecodable):
        return None


def bodies(lines: Sequence[bytes]) -> Sequence[bytes]:
    """The models' lines, in lines whose segment was checked."""
    if not any(line.startswith(OPENING) for line in lines):
        return lines
    return [body_of(line) for line in lines]


def body_of(line: bytes) -> bytes:
    return line.partition(b',"event":')[2][:-1] if line.startswith(OPENING) else line


def model_of(first_line: bytes) -> str:
    """The model that a session records, by its first line. Empty where it records none."""
    return framed_model(first_line) if first_line.startswith(OPENING) else _bare_model


def _line(record: Record, model: str) -> bytes:
    """Bare where that says all of the record, else framed."""
    check_writable(record.body)
    try:
        is_bare = model in ("", _bare_model) and read_line(record.stream, record.seq, record.body) == record
    except Damage:
        is_bare = False
    return record.body if is_bare else framed(record, model)
