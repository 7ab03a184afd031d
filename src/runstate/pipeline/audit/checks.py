"""What an audit looks at in one stream, in one walk over its records. No Spark here, and no storage.

Beside the records there is never more than a few numbers per event in memory, so that a stream may be of any length.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np

from runstate.changes import changes
from runstate.logs.log import Record
from runstate.models import times
from runstate.models.canonical import digest
from runstate.models.model import Alert, AnyModel
from runstate.pipeline.audit.stream_findings import Told
from runstate.pipeline.source.envelopes import disagreement_finder

terminal_words = frozenset(
    ["COMPLETED", "FAILED", "CANCELLED", "CANCELED", "SUCCEEDED", "SUCCESS", "FINISHED", "DONE", "ABORTED", "CLOSED"]
) | {"COMPLETE", "COMPLETE_WITH_GAPS"}
"""How models call a stream that nothing more is expected of, in capitals."""

_block_records = 256
_sorted_from = 4096
"""From so many values on, they are sorted as numbers instead of being put into a set."""
_changes_told = 5


class Bounds(msgspec.Struct, frozen=True):
    """What an audit takes for usual."""

    as_of: datetime | None = None
    """The moment that silence is measured to; None: it is not measured."""
    silent_s: float = 86_400.0
    """A stream that is not over may say nothing for so long."""
    skew_s: float = 60.0
    """A producer's clock may be ahead of the log's by so much."""


class Kept(NamedTuple):
    """A snapshot that somebody keeps, to be held against the fold of the events up to its seq."""

    place: str
    seq: int
    version: int
    digest: str
    body: bytes | None
    """None where there is none of it yet, though there should be."""
    is_current: bool = False
    """Whether it is meant to be of the whole stream, as that of a replay is."""


class Audited(NamedTuple):
    """What came of a walk: how far it went, and which event it found at which seq."""

    events: int
    seqs: array[int]
    event_ids: array[int]
    """A hash of each, which is as good as the id within one process."""
    error: Exception | None
    """What ended the walk before the stream's end. It is told."""


def audit_stream(
    stream: str,
    records: Iterator[Record],
    model: AnyModel,
    bounds: Bounds,
    told: Told,
    *,
    kept: Sequence[Kept] = (),
    whole: bool = True,
) -> Audited:
    """Walk through a stream once and tell everything that is wrong with it.

    Not `whole`: some of its events are known to be out of reach, so that nothing can be said about gaps, and nothing
    can be folded. Never raises: what goes wrong is told too.
    """
    walk = _Walk(stream, records, model, bounds, told, whole)
    if whole:
        _fold(walk, model, kept, bounds, told)
    for _ in walk.lines():  # What no fold has taken: the checks of the records themselves go on to the end.
        pass
    walk.finish()
    return Audited(len(walk.seqs), walk.seqs, walk.event_ids, walk.error)


def conflicts(first: Audited, second: Audited) -> list[int]:
    """The seqs at which two copies of a stream hold different events."""
    seqs, ones, others = np.intersect1d(_numbers(first.seqs), _numbers(second.seqs), return_indices=True)
    differ = _numbers(first.event_ids)[ones] != _numbers(second.event_ids)[others]
    return [int(seq) for seq in seqs[differ]]


def parse_time(text: str) -> datetime | None:
    """A time with its zone; None for anything else."""
    try:
        time = times.parse_time(text)
    except (ValueError, TypeError, AttributeError):
        return None
    return None if time.tzinfo is None else time


# --- the records -------------------------------------------------------------------------------------------------


class _Walk:
    """A walk over records, a block at a time. The lines that a fold takes from it have been checked."""

    def __init__(
        self, stream: str, records: Iterator[Record], model: AnyModel, bounds: Bounds, told: Told, whole: bool
    ) -> None:
        self.seqs, self.event_ids, self._keys = array("q"), array("q"), array("q")
        self.last_time: datetime | None = None
        """When the last event was stored, if that can be known."""
        self.taken_seq = 0
        """The seq of the last line that was taken."""
        self.error: Exception | None = None
        self.ended = False
        self.stream, self._records, self._told, self._whole = stream, iter(records), told, whole
        self._disagreement = disagreement_finder(model)
        self._block: list[Record] = []
        self._place = self._last_seq = 0
        self._ahead, self._ahead_seq = timedelta(seconds=bounds.skew_s), 0

    def lines(self, until_seq: int | None = None) -> Iterator[bytes]:
        """The lines from where the last ones have ended, up to a seq or to the end."""
        while True:
            while self._place < len(self._block):
                record = self._block[self._place]
                if until_seq is not None and record.seq > until_seq:
                    return
                self._place += 1
                self.taken_seq = record.seq
                yield record.body
            if self.ended or not self._next():
                return

    def finish(self) -> None:
        """Tell what only the whole stream can tell."""
        for what, code, values in (
            ("idempotency key", "key_twice", self._keys),
            ("event id", "event_id_twice", self.event_ids),
        ):
            for first, again in _repeated(values, self.seqs):
                if not self._told.log_told(f"log.{code}", again):
                    message = f"The events {first} and {again} have the same {what}"
                    self._told.damage(f"audit.{code}", message, again, firstSeq=first)
        if self._ahead_seq:
            ahead_s = self._ahead.total_seconds()
            message = f"A producer's clock was ahead of the log's by {ahead_s:.3f} s, at worst"
            self._told.warn("audit.clock_skew", message, self._ahead_seq, aheadS=ahead_s)

    def _next(self) -> bool:
        block: list[Record] = []
        try:
            block.extend(islice(self._records, _block_records))  # Those that come before an error stay in the list.
        except Exception as error:  # noqa: BLE001 - whatever storage raises, it is told, and the audit goes on
            self.error = error
            self._told.failed(error)
        self.ended = self.error is not None or len(block) < _block_records
        try:
            self._check(block)
        except Exception as error:  # noqa: BLE001 - a record that holds values of other types than it should
            self.error, self.ended, block = error, True, []
            self._told.failed(error)
        self._block, self._place = block, 0
        return bool(block)

    def _check(self, block: list[Record]) -> None:
        seqs = [record.seq for record in block]
        # All three before any is kept: they stay of one length, whatever the records hold.
        places, keys, ids = array("q", seqs), [hash(record.key) for record in block], [hash(r.event_id) for r in block]
        self.seqs.extend(places)
        self._keys.extend(keys)
        self.event_ids.extend(ids)
        if block:
            self._check_order(seqs)
            self._check_times(block)
            self._check_envelopes(block)

    def _check_order(self, seqs: list[int]) -> None:
        if seqs == list(range(self._last_seq + 1, self._last_seq + 1 + len(seqs))):
            self._last_seq = seqs[-1]
            return
        for seq in seqs:
            last = self._last_seq
            if seq < last or seq < 1:
                self._told.damage("audit.out_of_order", f"Event {seq} comes after event {last}", seq, after=last)
            elif seq == last:
                self._told.damage("audit.seq_twice", f"Two events have the seq {seq}", seq)
            elif seq > last + 1 and self._whole and not self._told.log_told("log.events_missing", last + 1):
                message = f"There are no events {last + 1} to {seq - 1}"
                self._told.warn("audit.gap", message, last + 1, **{"from": last + 1, "to": seq - 1})
            self._last_seq = max(seq, last)

    def _check_times(self, block: list[Record]) -> None:
        previous = self.last_time
        for record in block:
            stored = parse_time(record.persisted_at)
            if stored is None:
                self._unreadable("persisted_at", record)
                previous = None
                continue
            if previous is not None and stored < previous:
                back_s = (previous - stored).total_seconds()
                message = f"The log's clock went back by {back_s:.3f} s"
                self._told.warn("audit.clock_backwards", message, record.seq, backS=back_s)
            previous = stored
            if not record.emitted_at or record.emitted_at == record.persisted_at:
                continue  # A producer need not give a time.
            emitted = parse_time(record.emitted_at)
            if emitted is None:
                self._unreadable("emitted_at", record)
            elif emitted - stored > self._ahead:
                self._ahead, self._ahead_seq = emitted - stored, record.seq
        self.last_time = previous

    def _unreadable(self, name: str, record: Record) -> None:
        text = str(getattr(record, name))[:80]
        self._told.warn("audit.time_unreadable", f"{name} is no time with a zone: {text!r}", record.seq, member=name)

    def _check_envelopes(self, block: list[Record]) -> None:
        for record in block:
            differing = self._disagreement(record)
            if record.stream != self.stream:
                differing = {**differing, "stream": self.stream}
            if differing:
                message = f"The envelope and the line disagree about: {', '.join(differing)}"
                self._told.damage("audit.envelope_differs", message, record.seq, line=differing)


def _repeated(values: array[int], seqs: array[int]) -> Iterator[tuple[int, int]]:
    """The seqs of two events with one value, for every event after the first."""
    if len(values) < _sorted_from and len(set(values)) == len(values):
        return
    order = np.argsort(_numbers(values), kind="stable")
    ordered = _numbers(values)[order]
    for place in np.flatnonzero(ordered[1:] == ordered[:-1]):
        yield seqs[order[place]], seqs[order[place + 1]]


def _numbers(values: array[int]) -> Any:
    return np.frombuffer(values, np.int64) if values else np.empty(0, np.int64)


# --- the fold ------------------------------------------------------------------------------------------------------


def _fold(walk: _Walk, model: AnyModel, kept: Iterable[Kept], bounds: Bounds, told: Told) -> None:
    """Fold the stream, with a stop at every snapshot that is kept of it."""

    def alert(found: Alert) -> None:
        seq = found.details.get(model.seq_name)
        told.warn(found.code, _words(found), seq if isinstance(seq, int) else walk.taken_seq, **found.details)

    try:
        state = model.initial(walk.stream)
        equal = []
        for snapshot in sorted(kept, key=lambda snapshot: snapshot.seq):
            if snapshot.body is None:
                equal.append(snapshot)
            elif snapshot.version == model.version:  # What another version has made means nothing to this one.
                state = model.fold(state, walk.lines(snapshot.seq), alert)
                if _is_equal(walk, snapshot, snapshot.body, model.dump(state), told):
                    equal.append(snapshot)
        state = model.fold(state, walk.lines(), alert)
        status = model.status(state)
        _tell_behind(equal, walk.taken_seq, told)
    except Exception as error:  # noqa: BLE001 - a model may be anybody's
        message = f"The model {model.name!r} cannot fold the stream: {error!r}; is it the right model?"
        told.damage("model.failed", message, walk.taken_seq or None)
        return
    if walk.error is None:
        _check_silence(walk, status, bounds, told)


def _words(found: Alert) -> str:
    details = found.details
    if "why" in details:
        return f"{details.get('eventType', 'The event')} was impossible: {details['why']}"
    if "priorState" in details and "attemptedState" in details:
        kind = details.get("eventType", "The event")
        return f"{kind} was impossible: {details['priorState']} does not become {details['attemptedState']}"
    return f"The model raises the alert {found.code} of level {found.level}"


def _is_equal(walk: _Walk, snapshot: Kept, body: bytes, folded: bytes, told: Told) -> bool:
    """Whether a snapshot is what the events up to its seq fold into; else what differs is told."""

    def differs(message: str, **details: Any) -> bool:
        command = "pipeline replay --full" if snapshot.is_current else "replay"
        words = f"The snapshot in {snapshot.place} {message}; rebuild it with 'runstate {command}'"
        told.damage("audit.snapshot_differs", words, snapshot.seq, place=snapshot.place, **details)
        return False

    if walk.ended and walk.taken_seq < snapshot.seq:
        if walk.error is not None:  # Its events may be beyond the damage.
            return False
        return differs(f"is ahead of its events, which end at {walk.taken_seq}", lastSeq=walk.taken_seq)
    if body != folded:
        return differs(
            f"is not what the events up to {snapshot.seq} fold into",
            kept=digest(body),
            folded=digest(folded),
            changes=_changes(folded, body),
        )
    if snapshot.digest != digest(body):
        return differs("has another digest than its bytes", kept=snapshot.digest, folded=digest(folded))
    return True


def _tell_behind(snapshots: Iterable[Kept], last_seq: int, told: Told) -> None:
    """Of snapshots that are right as far as they go, those that do not go far enough."""
    for snapshot in snapshots:
        if snapshot.is_current and snapshot.seq < last_seq:
            has = "has no snapshot of this stream" if snapshot.body is None else f"ends at event {snapshot.seq}"
            message = (
                f"{snapshot.place} {has}, and the stream at {last_seq}; 'runstate pipeline replay' goes on from there"
            )
            told.warn("audit.snapshot_behind", message, snapshot.seq or None, place=snapshot.place, lastSeq=last_seq)


def _changes(folded: bytes, kept: bytes) -> Any:
    """What differs, as far as it can be told in a few words."""
    try:
        found = changes(msgspec.json.decode(folded), msgspec.json.decode(kept))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return "not JSON"
    return msgspec.to_builtins(found[:_changes_told])


def _check_silence(walk: _Walk, status: str, bounds: Bounds, told: Told) -> None:
    if bounds.as_of is None or walk.last_time is None or not status or status.upper() in terminal_words:
        return
    silent_s = (bounds.as_of - walk.last_time).total_seconds()
    if silent_s > bounds.silent_s:
        message = f"The stream is {status} and has said nothing for {silent_s / 3600:.1f} hours"
        told.warn("audit.silent", message, walk.taken_seq, status=status, silentS=silent_s)
