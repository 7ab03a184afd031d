"""The JSON of a record: what `fetch` and `tail` write, and `append` and `validate` read back.

    {"stream": …, "seq": …, "eventId": …, "type": …, "key": …, "tenant": …,
     "emittedAt": …, "persistedAt": …, "event": {…}}

One line each. `event` is the model's own line, byte for byte.
"""

from __future__ import annotations

import msgspec

from runstate.logs.log import Record


class _RecordJson(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    stream: str
    seq: int
    event_id: str
    type: str
    key: str
    tenant: str
    emitted_at: str
    persisted_at: str
    event: msgspec.Raw


def encode_record(record: Record) -> bytes:
    """The record as one line of JSON, without its newline."""
    envelope = {name: getattr(record, name) for name in _RecordJson.__struct_fields__ if name != "event"}
    return msgspec.json.encode(_RecordJson(**envelope, event=msgspec.Raw(record.body)))


def record_seq(line: bytes) -> int | None:
    """The seq in a line that `encode_record` wrote; None for any other line."""
    try:
        return _decoder.decode(line).seq
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def event_in_record(line: bytes) -> bytes | None:
    """The stored event inside a line that `encode_record` wrote; None for any other line."""
    try:
        return bytes(_decoder.decode(line).event)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


_decoder = msgspec.json.Decoder(_RecordJson)
