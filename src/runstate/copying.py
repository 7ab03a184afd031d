"""Copies streams from one log to another, record by record as they are, and proves each copy by reading it back.

The target says itself what it holds already, so a copy that was killed is simply run again: what is there is compared,
what is missing is adopted. A source may go on growing meanwhile; a copy goes as far as its stream went when it began.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from hashlib import sha256

import msgspec

from runstate.errors import InvalidUrl, LogDamaged, StreamNotFound, shown_url
from runstate.logs.archived_streams import check_not_older
from runstate.logs.log import Capability, EventLog, Record, StreamInfo, begins_after, refuse
from runstate.logs.stream_blobs import Carried, carry_blobs, model_of, needed_by
from runstate.logs.stream_models import check_model
from runstate.models.model import AnyModel
from runstate.models.model_errors import translate_model_errors

page_events = 500
_encode = msgspec.msgpack.Encoder().encode

Advance = Callable[[int], None]
"""Told how many events were gone through, page by page."""


class Copied(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One stream that the target now holds as the source does, up to `last_seq`."""

    stream: str
    last_seq: int
    events: int
    """How many there are up to it."""
    adopted: int
    """How many of them the target did not hold before."""
    blobs: int
    """Blobs that those refer to, and that the target now holds too."""
    unresolved: int
    """Strings of the form of a reference, where no log holds such a blob and the model does not know what they are."""
    digest: str
    """SHA-256 over the records, read back from the target; the same over the source's."""


def check_apart(source_url: str, target_url: str) -> None:
    """
    Raises:
        InvalidUrl: both name one log.
    """
    if shown_url(source_url) == shown_url(target_url) or _is_same_file(source_url, target_url):
        raise InvalidUrl(f"{target_url[:80]!r} is the source itself; copy to another place")


def check_target(target: EventLog) -> None:
    """
    Raises:
        Unsupported: the log adopts no records.
    """
    if Capability.ADOPT not in target.capabilities:
        raise refuse(Capability.ADOPT, "target")


def copy_stream(
    source: EventLog,
    target: EventLog,
    stream: str,
    advance: Advance = lambda events: None,
    *,
    model: AnyModel | None = None,
) -> Copied:
    """Copy a stream as far as it goes now, with the blobs that its lines refer to, and read the copy back.

    The copy records the stream's model; if the stream records none, it is `model`.

    Raises:
        StreamNotFound: the source holds no such stream.
        ModelMismatch: the stream records another model, or the target holds one of another model under this name,
            which was left as it is.
        InvalidEvent, InvalidJson, ModelFailed: `model` cannot read the stream's first event.
        SequenceConflict: the target holds something else under this name; it was left as it is.
        Unsupported: the target cannot keep it: gaps between seqs, or blobs.
        BlobNotFound: the stream refers to a blob that the source does not hold; its events up to there may be copied.
        LogDamaged: the source is damaged there, or a blob, or the copy is not what was copied.
        AppendOutcomeUnknown, LogBusy, LogFull, LogClosed: copy again, and it goes on from there.
    """
    check_target(target)
    info = source.stream(stream)
    if info is None:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    check_not_older(target, stream, info.last_seq)
    name = _model_to_record(source, info, model)
    needed = needed_by(model_of(info, model))
    copied, events, adopted, carried = sha256(), 0, 0, Carried()
    for page in _pages(source, stream, info.last_seq):
        # Blobs first: a copy that is killed must not leave lines that refer to nothing.
        carried += carry_blobs(source, target, page, needed)
        adopted += target.adopt(stream, page, model=name)
        events += len(page)
        copied.update(_framed(page))
        advance(len(page))
    held = sha256()
    for page in _pages(target, stream, info.last_seq):
        held.update(_framed(page))
    if held.digest() != copied.digest():
        raise _difference(source, target, stream, info.last_seq)
    return Copied(
        stream=stream,
        last_seq=info.last_seq,
        events=events,
        adopted=adopted,
        blobs=carried.blobs,
        unresolved=carried.unresolved,
        digest=held.hexdigest(),
    )


def _model_to_record(source: EventLog, info: StreamInfo, model: AnyModel | None) -> str:
    if model is None:
        return info.model
    check_model(info.stream, info.model, model.name)
    for first in () if info.model else source.read(info.stream, after_seq=begins_after(source, info.stream), limit=1):
        with translate_model_errors(model, info.stream):
            model.decode(first.body)
    return model.name


def _pages(log: EventLog, stream: str, until_seq: int) -> Iterator[list[Record]]:
    """A stream up to a seq. It is read on until there is nothing, so that damage right behind it is met too."""
    after = 0
    while page := log.read(stream, after_seq=after, limit=page_events):
        wanted = [record for record in page if record.seq <= until_seq]
        if wanted:
            yield wanted
        if len(wanted) < len(page):
            return
        after = page[-1].seq


def _framed(page: list[Record]) -> bytes:
    """Every field of every record, in a form in which no two different pages are equal."""
    return b"".join(
        _encode((r.seq, r.event_id, r.type, r.key, r.tenant, r.emitted_at, r.persisted_at, r.body)) for r in page
    )


def _difference(source: EventLog, target: EventLog, stream: str, until_seq: int) -> LogDamaged:
    seq = 0
    for ours, theirs in zip(_records(source, stream, until_seq), _records(target, stream, until_seq), strict=False):
        if ours != theirs:
            seq = min(ours.seq, theirs.seq)
            break
        seq = ours.seq + 1
    return LogDamaged(
        f"The copy of {stream!r} is not what was copied, from seq {seq} on; run 'runstate verify' on both logs",
        stream=stream,
        seq=seq,
    )


def _records(log: EventLog, stream: str, until_seq: int) -> Iterator[Record]:
    for page in _pages(log, stream, until_seq):
        yield from page


def _is_same_file(one: str, other: str) -> bool:
    (scheme, _, path), (other_scheme, _, other_path) = one.partition(":"), other.partition(":")
    if scheme != other_scheme:
        return False
    paths = [place.removeprefix("//").partition("?")[0] for place in (path, other_path)]
    try:
        return os.path.samefile(*paths)
    except (OSError, ValueError):  # One of them is no file, or not there yet.
        return False
