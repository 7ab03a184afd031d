"""The blobs of a stream: which of them its lines refer to, whether they are there, and taking them to another log.

A string `"sha256:<64 hex>"` in a line may be the reference of a blob, or the digest of anything else. What the stream's
model says about it decides: a blob that it names must be there. Where the model does not know, a blob is taken along if
there is one, and is reported as unresolved if there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from runstate.errors import BlobNotFound, LogBusy, LogDamaged, Truncated, UnknownModel
from runstate.logs.blob_refs import CHANGED, MISSING, BlobStates, blob_finding, blob_refs
from runstate.logs.log import BlobRef, Capability, EventLog, Finding, Record, StreamInfo, begins_after, refuse
from runstate.models.model import AnyModel
from runstate.models.registry import resolve_model

UNRESOLVED = "blob.unresolved"
_listed_max = 10

Needed = Callable[[bytes], Collection[str] | None]
"""The blobs without which a line is not whole; None where that is not known."""


class Carried(NamedTuple):
    """What became of the blobs that some records refer to."""

    blobs: int = 0
    """How many the target holds now."""
    unresolved: int = 0
    """How many strings have the form of a reference, where neither log holds such a blob and no model knows."""

    def __add__(self, other: object) -> Carried:
        if not isinstance(other, Carried):
            return NotImplemented
        return Carried(self.blobs + other.blobs, self.unresolved + other.unresolved)


def needed_by(model: AnyModel | None) -> Needed:
    """What a model says about lines. A line that it cannot read is `verify`'s to report: here it is not known."""

    def needed(line: bytes) -> Collection[str] | None:
        if model is None:
            return None
        try:
            found = model.blob_refs(line)
        except Exception:  # noqa: BLE001 -- the model may be anybody's, and raise anything
            return None
        return None if found is None else frozenset(found)

    return needed


def model_of(info: StreamInfo, given: AnyModel | None = None) -> AnyModel | None:
    """The model that a stream records; None where it records none, or one that is not installed."""
    if given is None and info.model:
        with suppress(UnknownModel):
            return resolve_model(info.model, None, f"The stream {info.stream!r}")
    return given


def carry_blobs(
    source: EventLog, target: EventLog | None, records: Iterable[Record], needed: Needed, *, dry_run: bool = False
) -> Carried:
    """Put the blobs that records refer to into the target, each checked against its digest; before the records.

    Raises:
        BlobNotFound: a blob that is needed is in neither log; with stream, seq and ref.
        LogDamaged: a blob of the source was changed; with stream, seq and ref.
        Unsupported: the target keeps no blobs.
    """
    carried, unresolved = set[BlobRef](), set[BlobRef]()
    for record in records:
        for ref in blob_refs(record.body):
            if ref in carried:
                continue
            data = read_blob(source, ref, record)
            if data is not None:
                if target is not None and Capability.BLOBS not in target.capabilities:
                    raise refuse(Capability.BLOBS, "target")
                if target is not None and not dry_run:
                    target.put_blob(data)
                carried.add(ref)
            elif target is not None and read_blob(target, ref, record) is not None:
                carried.add(ref)
            elif (names := needed(record.body)) is None:
                unresolved.add(ref)
            elif ref in names:
                raise missing_blob(record, ref)
    return Carried(len(carried), len(unresolved))


def read_blob(log: EventLog, ref: BlobRef, record: Record) -> bytes | None:
    """The blob that a record refers to; None if the log holds none.

    Raises:
        LogDamaged: its bytes no longer have that digest; with stream, seq and ref.
    """
    if Capability.BLOBS not in log.capabilities:
        return None
    try:
        return log.get_blob(ref)
    except BlobNotFound:
        return None
    except LogDamaged as error:
        raise LogDamaged(
            f"Event {record.seq} of {record.stream!r} refers to a blob that was changed: {error}",
            stream=record.stream,
            seq=record.seq,
            ref=ref,
        ) from error


def missing_blob(record: Record, ref: BlobRef) -> BlobNotFound:
    return BlobNotFound(
        f"Event {record.seq} of {record.stream!r} refers to the blob {ref}, which is gone",
        stream=record.stream,
        seq=record.seq,
        ref=ref,
    )


class BlobCheck:
    """Whether the blobs that the streams of a log refer to are there, and intact. Each blob is read once."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._states = BlobStates(log.get_blob)
        self._reported: set[tuple[str | None, object]] = set()

    def note(self, finding: Finding) -> None:
        """Remember what the log has reported itself, which is not reported again."""
        for ref in (finding.details.get("ref"), *finding.details.get("refs", ())):
            self._reported.add((finding.stream, ref))

    def findings(self, stream: str, model: AnyModel | None) -> Iterator[Finding]:
        """Damage for each blob that is needed and missing, or was changed; a warning for what is unresolved.

        Raises:
            LogDamaged, LogBusy, LogFailed: the stream cannot be read.
        """
        is_kept = Capability.BLOBS in self._log.capabilities
        bad = self._find_bad(stream, needed_by(model)) if is_kept else {}
        if not bad:
            return
        seqs = _first_seqs(self._log, stream, bad)
        unresolved = sorted((seqs[ref], ref) for ref, code in bad.items() if code == UNRESOLVED)
        for seq, ref in sorted((seqs[ref], ref) for ref in bad.keys() - {ref for _, ref in unresolved}):
            yield blob_finding(bad[ref], stream, seq, ref)
        if unresolved:
            seq, ref = unresolved[0]
            yield Finding(
                code=UNRESOLVED,
                message=f"{len(unresolved)} strings look like references to blobs that the log does not hold, first "
                f"in event {seq}: {ref}. They are lost blobs, or digests of something else",
                severity="warning",
                stream=stream,
                seq=seq,
                details={"count": len(unresolved), "refs": [ref for _, ref in unresolved[:_listed_max]]},
            )

    def _find_bad(self, stream: str, needed: Needed) -> dict[BlobRef, str]:
        bad: dict[BlobRef, str] = {}
        for line in _lines(self._log, stream):
            for ref in blob_refs(line):
                code = self._states.code(ref)
                if code is None or bad.get(ref) == MISSING or (stream, ref) in self._reported:
                    continue
                names = needed(line) if code == MISSING else ()
                if names is None:
                    bad[ref] = UNRESOLVED
                elif code == CHANGED or ref in names:
                    bad[ref] = code
        return bad


def _lines(log: EventLog, stream: str) -> Iterator[bytes]:
    try:
        yield from log.lines(stream)
    except Truncated as truncated:  # Raised before the first line.
        yield from log.lines(stream, after_seq=int(truncated.details["first_seq"]) - 1)


def _first_seqs(log: EventLog, stream: str, refs: Collection[BlobRef]) -> dict[BlobRef, int]:
    """Where each of the references stands first."""
    found, after_seq = dict[BlobRef, int](), begins_after(log, stream)
    while len(found) < len(refs) and (page := log.read(stream, after_seq=after_seq)):
        for record in page:
            found |= {ref: record.seq for ref in blob_refs(record.body) if ref in refs and ref not in found}
        after_seq = page[-1].seq
    if len(found) < len(refs):
        raise LogBusy(f"The stream {stream!r} was changed while it was read; try again", stream=stream)
    return found
