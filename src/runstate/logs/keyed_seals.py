"""Seals: proof, for the holder of a secret key, that the events of a log were not changed since they were sealed.

The checksums and hash chains of the logs find accidents. They need no key, so anyone who can write the log can compute
them again. A seal is an HMAC-SHA-256 chain over all events of one stream: it cannot be computed without the key.
It covers the whole record as the log returns it, so it also fits every verbatim copy of the stream in another log.
The format is described in docs/formats/seals.md.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from runstate.errors import InvalidSealKey, InvalidSeals, LogDamaged, Truncated
from runstate.logs.log import EventLog, Finding, Record, now

seal_version = 1
key_bytes_min = 32
seal_line_bytes_max = 4096
_page_events = 1000


class Seal(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The events of one stream up to `seq`."""

    stream: str
    seq: int
    events: int
    mac: str
    """The last link of the chain, as hex."""
    key_id: str
    sealed_at: str


class SealsEnd(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The last line of a file of seals: no line before it was changed, added or removed."""

    version: int
    seals: int
    mac: str
    key_id: str


class SealKey:
    """A secret that makes and checks seals."""

    def __init__(self, secret: bytes) -> None:
        """
        Raises:
            InvalidSealKey: the secret is too short.
        """
        if len(secret) < key_bytes_min:
            raise InvalidSealKey(f"A key for seals needs at least {key_bytes_min} bytes; this one has {len(secret)}")
        self._secret = hmac.digest(secret, b"runstate seals 1 mac", "sha256")
        self.id = hmac.digest(secret, b"runstate seals 1 id", "sha256")[:8].hex()
        """Tells keys apart, and tells nothing about the secret."""

    def mac(self, kind: bytes, *parts: bytes) -> bytes:
        """HMAC-SHA-256 of the parts. Each has its length in front, so that no other parts give the same text."""
        text = b"".join(len(part).to_bytes(8, "big") + part for part in (kind, *parts))
        return hmac.digest(self._secret, text, "sha256")

    def first_link(self, stream: str) -> bytes:
        """The chain of a stream without events."""
        return self.mac(b"stream", stream.encode())

    def next_link(self, link: bytes, record: Record) -> bytes:
        """The chain with one more event.

        Raises:
            LogDamaged: the record holds something that no append stored.
        """
        envelope = (record.event_id, record.type, record.key, record.tenant, record.emitted_at, record.persisted_at)
        try:
            fields = [field.encode("utf-8", "surrogatepass") for field in envelope]
            return self.mac(b"event", link, b"%d" % record.seq, *fields, record.body)
        except (AttributeError, TypeError) as error:  # A damaged database returns values of other types.
            raise LogDamaged(f"Event {record.seq} of the stream {record.stream!r} is not an event: {error}") from error


def seal_stream(log: EventLog, stream: str, key: SealKey, previous: Seal | None = None) -> Seal | None:
    """Seal all events that the stream has now. None: it has none.

    With `previous`, an earlier seal of the stream, only the events after it are read. A change of the earlier events is
    then not sealed: the chain continues from what they were.

    Raises:
        Truncated: the log was compacted, and does not hold all events.
    """
    info = log.stream(stream)
    if previous is not None:
        link, seq, events = bytes.fromhex(previous.mac), previous.seq, previous.events
    else:
        link, seq, events = key.first_link(stream), 0, 0
    for record in _records(log, stream, seq, 0 if info is None else info.last_seq):
        link, seq, events = key.next_link(link, record), record.seq, events + 1
    if previous is not None and seq == previous.seq:
        return previous
    return Seal(stream, seq, events, link.hex(), key.id, now()) if events else None


def check_seal(log: EventLog, seal: Seal, key: SealKey) -> Finding | None:
    """Compare the sealed events of a stream with those that the log holds now. None: they are the same."""

    def found(code: str, message: str, seq: int | None = None) -> Finding:
        return Finding(code=f"seal.{code}", message=f"{message} (sealed {seal.sealed_at})", stream=seal.stream, seq=seq)

    try:
        if log.stream(seal.stream) is None:
            return found("deleted", f"The stream was deleted; {seal.events} events were sealed")
        link, seq = key.first_link(seal.stream), 0
        for record in _records(log, seal.stream, 0, seal.seq):
            link, seq = key.next_link(link, record), record.seq
    except Truncated as error:
        return found("unchecked", f"The sealed events cannot be checked, because the log was compacted: {error}")
    except LogDamaged as error:
        return found("unchecked", f"The sealed events cannot be read: {error}")
    if _is_same(link, seal.mac):
        return None
    if seq < seal.seq:
        return found("truncated", f"The stream ends with seq {seq}; it was sealed up to seq {seal.seq}", seq)
    return found("changed", f"The events up to seq {seal.seq} are not those that were sealed")


def check_seals(log: EventLog, seals: Sequence[Seal], key: SealKey) -> Iterator[Finding]:
    """Compare every sealed stream with the log, and report as a warning how many streams have no seal."""
    for seal in seals:
        if (finding := check_seal(log, seal, key)) is not None:
            yield finding
    sealed = {seal.stream for seal in seals}
    # An append that never finished may have left a name without a stream.
    others = (head.stream for head in log.heads(versions=False) if head.stream not in sealed)
    missing = [name for name in others if log.stream(name) is not None]
    if missing:
        message = f"{len(missing)} of the log's streams have no seal and were not compared; the first is {missing[0]!r}"
        details = {"streams": len(missing), "first": missing[0]}
        yield Finding(code="seal.missing", message=message, severity="warning", details=details)


def _records(log: EventLog, stream: str, after_seq: int, until_seq: int) -> Iterator[Record]:
    while after_seq < until_seq and (page := log.read(stream, after_seq=after_seq, limit=_page_events)):
        for record in page:
            if record.seq > until_seq:
                return
            yield record
        after_seq = page[-1].seq


def encode_seals(seals: Iterable[Seal], key: SealKey) -> Iterator[bytes]:
    """The lines of a file of seals, without line ends."""
    lines: list[bytes] = []
    for seal in seals:
        lines.append(msgspec.json.encode(seal))
        yield lines[-1]
    yield msgspec.json.encode(SealsEnd(seal_version, len(lines), key.mac(b"file", *lines).hex(), key.id))


def decode_seals(lines: Iterable[bytes], key: SealKey) -> list[Seal]:
    """The seals of a file, once its last line has proven that they are what the holder of the key wrote.

    Raises:
        InvalidSeals: the file was changed or cut, belongs to another key, or is not a file of seals.
    """
    *body, last = [*lines] or [b""]
    try:
        end = msgspec.json.decode(last, type=SealsEnd)
    except msgspec.MsgspecError as error:
        raise InvalidSeals(
            "The last line does not end a file of seals: the file was cut, or is another file"
        ) from error
    if end.version != seal_version:
        raise InvalidSeals(f"The seals have version {end.version}; this Runstate checks version {seal_version}")
    if end.key_id != key.id:
        raise InvalidSeals(f"The seals were made with the key {end.key_id}, not with the given key {key.id}")
    if end.seals != len(body) or not _is_same(key.mac(b"file", *body), end.mac):
        raise InvalidSeals("The file of seals was changed after it was written")
    return [msgspec.json.decode(line, type=Seal) for line in body]


def _is_same(mac: bytes, written: str) -> bool:
    # The time that this takes does not depend on where the two differ.
    return hmac.compare_digest(mac.hex().encode(), written.encode())
