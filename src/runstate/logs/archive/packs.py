"""The bytes of an archive.

A pack is NDJSON: one line for each event, all lines of a run in one stretch. Its manifest says which runs it holds, and
where. Each line carries a checksum of its own, each run's stretch and each pack a SHA-256, and so do the small files.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Annotated, Literal, TypeVar
from zlib import crc32

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from runstate.errors import LogTooNew, RunstateError
from runstate.logs.log import Record, StreamInfo
from runstate.models.canonical import undecodable

format_version = 1
INFO = "archive.json"
PACKS = "packs"
BLOBS = "blobs"
BLOBS_LOCK = ".blobs.lock"
PACK_SUFFIX = ".ndjson"
MANIFEST_SUFFIX = ".manifest.json"
LOCK_SUFFIX = ".lock"
pack_name = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{16}")
"""When it was begun, and something that no other pack has."""

Size = Annotated[int, Meta(ge=0)]
Place = Annotated[int, Meta(ge=1)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Ref = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
T = TypeVar("T")


class ArchiveInfo(msgspec.Struct, frozen=True):
    """`archive.json`: fixed when the archive is made."""

    model: str
    format: Literal["runstate-archive"] = "runstate-archive"
    version: int = format_version


class ArchivedRun(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A run in a pack."""

    stream: str
    tenant: str
    first_seq: Place
    last_seq: Place
    events: Place
    first_persisted_at: str
    last_persisted_at: str
    offset: Size
    bytes: Size
    sha256: Digest
    """Of the run's lines in the pack, each with its newline."""
    blobs: tuple[Ref, ...] | UnsetType = UNSET
    """The blobs that its lines refer to. Not set: an earlier version archived the run, without its blobs."""

    def info(self, model: str) -> StreamInfo:
        times = (self.first_persisted_at, self.last_persisted_at)
        return StreamInfo(self.stream, self.tenant, self.last_seq, self.events, *times, model)


class Manifest(msgspec.Struct, frozen=True):
    """`NAME.manifest.json`: a pack counts once this stands beside it."""

    model: str
    bytes: Size
    sha256: Digest
    runs: list[ArchivedRun]
    format: Literal["runstate-archive"] = "runstate-archive"
    version: int = format_version


class Unfit(RunstateError):
    """An event cannot be written to an archive: its line is no JSON value on one line."""

    code = "archive.unfit"


class Broken(ValueError):
    """Bytes of an archive that are not what was written. The text says how."""


class _Line(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    stream: str
    seq: int
    event_id: str
    type: str
    key: str
    tenant: str
    emitted_at: str
    persisted_at: str
    body: Raw


class _Sealed(msgspec.Struct, frozen=True):
    sha256: str
    content: Raw


class _Version(msgspec.Struct, frozen=True):
    version: int


_line_encoder = msgspec.json.Encoder()
_line_decoder = msgspec.json.Decoder(_Line)
_crc_bytes = len(b',"crc":"00000000"}')


def encode_line(record: Record) -> bytes:
    """An event as a line of a pack, with its newline. The model's own line stands in it byte for byte.

    Raises:
        Unfit: its body is no JSON value on one line.
    """
    try:
        head = _line_encoder.encode(
            _Line(
                record.stream,
                record.seq,
                record.event_id,
                record.type,
                record.key,
                record.tenant,
                record.emitted_at,
                record.persisted_at,
                Raw(record.body),
            )
        )[:-1]
        line = b'%b,"crc":"%08x"}' % (head, crc32(head))
        # A line that would be read as anything else must not be written: the run is deleted for it.
        fits = b"\n" not in line and decode_line(line) == record
    except (Broken, *undecodable) as error:
        raise _unfit(record) from error
    if not fits:
        raise _unfit(record)
    return line + b"\n"


def decode_line(line: bytes) -> Record:
    """The event in a line, which comes without its newline.

    Raises:
        Broken: it is not what was written.
    """
    head = line[:-_crc_bytes]
    if line[-_crc_bytes:] != b',"crc":"%08x"}' % crc32(head):
        raise Broken("the line does not fit its checksum")
    try:
        found = _line_decoder.decode(head + b"}")
    except undecodable as error:
        raise Broken(f"the line is no archived event: {error}") from error
    return Record(
        found.stream,
        found.seq,
        found.event_id,
        found.type,
        found.key,
        found.tenant,
        found.emitted_at,
        found.persisted_at,
        bytes(found.body),
    )


def sealed(value: msgspec.Struct) -> bytes:
    """A small file's bytes: JSON behind its own SHA-256."""
    content = msgspec.json.encode(value)
    return b'{"sha256":"%b","content":%b}\n' % (sha256(content).hexdigest().encode(), content)


def unsealed(data: bytes, kind: type[T]) -> T:
    """What was sealed.

    Raises:
        Broken: it is not what was written.
        LogTooNew: a newer Runstate wrote it.
    """
    try:
        content = bytes(msgspec.json.decode(data, type=_Sealed).content)
        if data != b'{"sha256":"%b","content":%b}\n' % (sha256(content).hexdigest().encode(), content):
            raise Broken("it does not fit its digest")
        version = msgspec.json.decode(content, type=_Version).version
        if version > format_version:
            raise LogTooNew(f"The archive has format version {version}; upgrade Runstate to read it")
        return msgspec.json.decode(content, type=kind)
    except undecodable as error:
        raise Broken(f"it is nothing that we have written: {error}") from error


def _unfit(record: Record) -> Unfit:
    return Unfit(
        f"Event {record.seq} of {record.stream!r} cannot be archived: its line is no JSON value on one line",
        stream=record.stream,
        seq=record.seq,
    )
