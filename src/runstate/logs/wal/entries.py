"""What one line of `wal.jsonl` is, how it is written, and how it is found to be damaged.

    {"seq":7,"event":LINE,"crc":"8 hex","record":{"sum":"8 hex","event_id":"…","type":"…","persisted_at":"…",…}}

LINE is the model's own. `crc` is CRC-32C over LINE; `sum` is CRC-32C over `{"seq":7,` and what follows `sum`, up to and
with the brace that closes `record`; what is left is fixed. No string of `record` can hold `,"crc":"`, because JSON
escapes the quotes inside a string, so the last one in a line is the entry's own. Entries of the seed's plainer form,
without `record` and perhaps without `crc`, are read too.
"""

from __future__ import annotations

from array import array
from binascii import hexlify
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import concat
from sys import byteorder
from typing import NamedTuple

import msgspec
from google_crc32c import value as crc32c

from runstate.logs.log import Record
from runstate.models.canonical import undecodable
from runstate.models.model import stable_uuid

ENTRY_DAMAGED = "log.entry_damaged"
OUT_OF_ORDER = "log.out_of_order"
NOT_UTF8 = "log.not_utf8"
unknown_at = "1970-01-01T00:00:00.000Z"
"""When an entry that does not tell was stored."""


class Damage(Exception):
    """A line that no append wrote there."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Envelope(msgspec.Struct, gc=False, omit_defaults=True):
    """What an entry tells beside its event: the record's own data, and its place among its neighbours."""

    event_id: str
    type: str
    persisted_at: str
    key: str | None = None
    """None: the event's id."""
    tenant: str = ""
    emitted_at: str = ""
    after: int | None = None
    """The seq of the entry before it, where that is not the one before this seq."""
    more: int = 0
    """How many entries of the same append follow. An append that lacks some of them never happened."""
    flush: bool = False
    """True: everything before it had been flushed when it was written. So damage before it is no torn write."""

    @property
    def known_key(self) -> str:
        return self.event_id if self.key is None else self.key


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A line that is intact."""

    seq: int
    envelope: Envelope
    body: bytes

    @property
    def previous_seq(self) -> int:
        """The seq of the entry before it, wherever that is now; 0 where it was the first."""
        return self.seq - 1 if self.envelope.after is None else self.envelope.after

    def record(self, stream: str) -> Record:
        told = self.envelope
        return Record(
            stream,
            self.seq,
            told.event_id,
            told.type,
            told.known_key,
            told.tenant,
            told.emitted_at,
            told.persisted_at,
            self.body,
        )


class _Plain(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The seed's own entry."""

    seq: int
    event: msgspec.Raw
    crc: str | None = None


class _Told(msgspec.Struct, gc=False):
    """What the seed's events tell of themselves."""

    type: str
    event_id: str = ""


_encode = msgspec.json.Encoder().encode
_envelopes = msgspec.json.Decoder(Envelope)
_envelope_lists = msgspec.json.Decoder(list[Envelope])
_plains = msgspec.json.Decoder(_Plain)
_tellings = msgspec.json.Decoder(_Told)
_any_json = msgspec.json.Decoder(msgspec.Raw)
_newline = ord("\n")
"""As a number, which is found in bytes five times faster than as a byte."""
_seq_name = b'{"seq":'
_event_name = b'"event":'
_crc_name = b',"crc":"'
_record_name = b'","record":{"sum":"'
_sum_start = 8 + len(_record_name)
_members_start = _sum_start + 8 + len(b'",')


# --- writing -------------------------------------------------------------------------------------------------


def write_entry(seq: int, body: bytes, envelope: Envelope) -> bytes:
    """An entry with its newline."""
    members = _encode(envelope)[1:]
    head = b'{"seq":%d,' % seq
    sums = crc32c(body), crc32c(head + members)
    return b'%b"event":%b,"crc":"%08x","record":{"sum":"%08x",%b}\n' % (head, body, *sums, members)


def check_body(body: bytes) -> None:
    """
    Raises:
        ValueError: no reader could make a line of it.
    """
    if _newline in body:
        raise ValueError("an event's line holds a newline")
    if not body.isascii():
        body.decode()  # A reader of text stops at what is no UTF-8.
    try:
        _any_json.decode(body)
    except undecodable as error:
        raise ValueError(str(error)) from error


# --- reading -------------------------------------------------------------------------------------------------


def intact_bodies(seq: int, lines: Sequence[bytes]) -> list[bytes] | None:
    """The events of lines that are numbered from `seq` on; None where each must be looked at by `read_entry`.

    What `sum` covers is not looked at: nothing of it is given out.
    """
    parts = _parts(seq, lines)
    return None if parts is None else parts.bodies


def intact_envelopes(seq: int, lines: Sequence[bytes]) -> list[Envelope] | None:
    """What lines that are numbered from `seq` on tell, all of them checked in full; None where one is unusual."""
    parts = _parts(seq, lines)
    if parts is None:
        return None
    members = [tail[_members_start:-1] for tail in parts.tails]
    sums = map(crc32c, map(concat, parts.heads, members))
    between = b"".join([tail[8:_members_start] for tail in parts.tails])
    if between != b'%b%b",' % (_record_name, _hexes(sums).replace(b"-", b'",' + _record_name)):
        return None
    if not all(map(bytes.endswith, parts.tails, repeat(b"}}"))):
        return None
    try:
        found = _envelope_lists.decode(b"[{%b]" % b",{".join(members))
    except undecodable:
        return None
    return found if all(envelope.after is None for envelope in found) else None


class _Parts(NamedTuple):
    """Lines that were taken apart, and whose events fit their checksums."""

    heads: list[bytes]
    """What each line must begin with, and does: `{"seq":7,`."""
    bodies: list[bytes]
    tails: list[bytes]
    """What follows `,"crc":"`."""


def _parts(seq: int, lines: Sequence[bytes]) -> _Parts | None:
    heads = [b'{"seq":%d,' % number for number in range(seq, seq + len(lines))]
    stops = [line.rfind(_crc_name) for line in lines]
    starts = [head + _event_name for head in heads]
    if not lines or min(stops) < 0 or not all(map(bytes.startswith, lines, starts)):
        return None
    bodies = [line[len(start) : stop] for line, start, stop in zip(lines, starts, stops, strict=True)]
    tails = [line[stop + len(_crc_name) :] for line, stop in zip(lines, stops, strict=True)]
    is_intact = _hexes(map(crc32c, bodies)) == b"-".join([tail[:8] for tail in tails])
    return _Parts(heads, bodies, tails) if is_intact else None


def _hexes(sums: Iterable[int]) -> bytes:
    """Checksums as the lines write them, with a `-` between any two. One by one, they would take much longer."""
    packed = array("I", sums)
    if byteorder == "little":
        packed.byteswap()
    return hexlify(packed, "-", packed.itemsize)


def read_entry(stream: str, line: bytes, previous_seq: int | None) -> Entry:
    """A line as an entry, after every check. `previous_seq`: of the entry before it, None where that is not known.

    Raises:
        Damage: what is wrong.
    """
    line = line.removesuffix(b"\r")  # An editor may have put it there; it is none of the entry's.
    entry = _own_entry(line) or _plain_entry(stream, line)
    if entry.seq < 1 or (previous_seq is not None and entry.previous_seq != previous_seq):
        raise Damage(OUT_OF_ORDER, f"Entry {entry.seq} does not stand behind entry {previous_seq}")
    return entry


def seq_of(line: bytes) -> int:
    """The seq of a line that is intact."""
    return int(line[len(_seq_name) : line.index(b",")])


def whole_entry(stream: str, line: bytes) -> Entry | None:
    """The entry in a line, at whatever place it stands; None where the line is none."""
    try:
        return read_entry(stream, line, None)
    except Damage:
        return None


def proven_entry(line: bytes) -> Entry | None:
    """The entry in a line if checksums cover every byte of it, as those of the seed's entries do not."""
    entry = _own_entry(line.removesuffix(b"\r"))
    return entry if entry is not None and entry.seq > 0 else None


def _own_entry(line: bytes) -> Entry | None:
    head, _, tail = line.rpartition(_crc_name)
    start, _, body = head.partition(b'"event":')
    members = tail[_members_start:-1]
    fixed = b'%08x","record":{"sum":"%08x",' % (crc32c(body), crc32c(start + members))
    if tail[:_members_start] != fixed or line[-2:] != b"}}" or not start.startswith(b'{"seq":'):
        return None
    try:
        return Entry(int(start[7:-1]), _envelopes.decode(b"{" + members), body)
    except (ValueError, *undecodable):
        return None


def _plain_entry(stream: str, line: bytes) -> Entry:
    try:
        line.decode()
    except UnicodeError as error:
        raise Damage(NOT_UTF8, f"The line is no UTF-8: {error}") from error
    try:
        plain = _plains.decode(line)
        body = bytes(plain.event)
        told = _tellings.decode(body)
    except undecodable as error:
        raise Damage(ENTRY_DAMAGED, f"The line is no entry, or does not fit its checksums: {error}") from error
    if plain.crc is not None and plain.crc != f"{crc32c(body):08x}":
        raise Damage(ENTRY_DAMAGED, "The event does not fit its checksum")
    event_id = told.event_id or stable_uuid(stream, str(plain.seq), body.decode())
    return Entry(plain.seq, Envelope(event_id, told.type, unknown_at), body)
