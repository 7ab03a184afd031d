"""A log read through a model: append typed events, read them back, and see the state they fold into.

This is the contract of a run state store. `append_event` may always be retried; `project_snapshot` is the truth
from the log; `get_snapshot` is the same state, from the stored snapshot and what came after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, Generic, Literal, Self, Unpack, overload

import msgspec

from runstate.alerts import AlertBook, content_mismatch
from runstate.changes import Change, changes
from runstate.errors import (
    EventTooLarge,
    InvalidTransition,
    KeyMismatch,
    RunstateError,
    SequenceConflict,
    StreamDeleted,
    Truncated,
)
from runstate.logs.append_checks import check_appendable, index_in_batch
from runstate.logs.archived_streams import answer_from_archive, find_event, source_of, stream_not_found, tombstone_for
from runstate.logs.bulk import Answer
from runstate.logs.log import AppendResult, EventLog, StoredSnapshot, check_after, check_expected
from runstate.logs.pairing import model_for
from runstate.logs.registry import open_log
from runstate.logs.snapshotting import append_batch, append_batches
from runstate.logs.stream_bodies import read_bodies
from runstate.logs.stream_models import find_stream, find_whole_stream
from runstate.logs.stream_times import seq_at
from runstate.logs.unfoldable import folding
from runstate.models.engine.events import RunEventRecord
from runstate.models.engine.model import EngineEvent, EngineModel
from runstate.models.engine.state import RunSnapshot
from runstate.models.model import AlertSink, AnyModel, Draft, E, Model, S, W
from runstate.models.registry import find_model
from runstate.models.transitions import check_possible
from runstate.producer import RunProducer
from runstate.snapshots import Snapshots, StoredState
from runstate.store_options import StoreOptions, event_bytes_default


@overload
def open(
    url: str, model: Literal["engine"] | None = None, *, create: bool = True, **options: Unpack[StoreOptions]
) -> Store[EngineEvent, RunEventRecord, RunSnapshot]: ...
@overload
def open(
    url: str, model: Model[W, E, S], *, create: bool = True, **options: Unpack[StoreOptions]
) -> Store[W, E, S]: ...
@overload
def open(url: str, model: str, *, create: bool = True, **options: Unpack[StoreOptions]) -> Store[Any, Any, Any]: ...
def open(
    url: str, model: str | AnyModel | None = None, *, create: bool = True, **options: Unpack[StoreOptions]
) -> Store[Any, Any, Any]:
    """Open the log at `url` and read it through `model`: a name, `file.py:Class`, or a model of your own.

    By default it is the model that the log's streams record. Where they record none, or several, it is the one that
    goes with the log: `rundir` with `ndjson:`, `session` with `segments:`, `daemon` with `wal:`, else `engine`.
    Creates the log if it is not there, unless `create` is false. The options are those of `StoreOptions`.

    Raises:
        UnknownModel: there is no such model, or the one that the log records is not installed.
        ModelMismatch: the log records other models, and which one to use must be said.
        InvalidUrl, LogNotFound, NotALog, LogTooNew, LogFailed: nothing was changed.
    """
    model = find_model(model) if isinstance(model, str) else model  # Before the log is created.
    log = open_log(url, create=create)
    try:
        return Store(log, model_for(url, log, model), **options)
    except BaseException:
        log.close()
        raise


class Store(Generic[W, E, S]):
    """Typed events in, state out. Safe to share between threads.

    Whatever reads a stream that records another model raises ModelMismatch.
    """

    def __init__(
        self,
        log: EventLog,
        model: Model[W, E, S],
        *,
        snapshot_every: int | None = None,
        check_transitions: bool = False,
        strict_keys: bool = False,
        event_bytes_max: int = event_bytes_default,
        on_alert: AlertSink | None = None,
    ) -> None:
        self.log, self.model, self.alerts = log, model, AlertBook(on_alert)
        self.snapshots = Snapshots(log, model, snapshot_every, self.alerts)
        self._check_transitions, self._strict_keys, self._bytes_max = check_transitions, strict_keys, event_bytes_max

    # --- writing ---------------------------------------------------------------------------------------

    def append_event(self, event: W, *, expected_seq: int | None = None) -> AppendResult:
        """Append one event. Once this returns, it survives a power cut; sending it again changes nothing.

        Raises:
            InvalidEvent, InvalidStream, EventTooLarge, KeyMismatch, InvalidTransition: nothing was written.
            ModelMismatch, TenantMismatch: the stream is of another model or tenant; nothing was written.
            StreamDeleted: the stream was deleted or archived, and does not hold this event; nothing was written.
            SequenceConflict: the stream is not at `expected_seq`.
            AppendOutcomeUnknown, LogBusy, LogFull: try again with the same event.
        """
        stream, draft = self._draft(event)
        return self._append(stream, [draft], expected_seq)[0]

    def check_event(self, event: W) -> str:
        """Everything about an event that can be checked without looking into the log. Returns its stream.

        Raises:
            InvalidEvent, InvalidStream, EventTooLarge, KeyMismatch: what is wrong with it.
        """
        return self._draft(event)[0]

    def append_events(self, events: Sequence[W]) -> list[AppendResult]:
        """Append many events: all are checked before any is written, and each stream gets all of its own or none.

        If a stream changes between the check and its append, others may be written by then: send all events again.

        Raises:
            what `append_event` raises, with `index` among the error's details: of the event, or of the first one of
                its stream.
        """
        by_stream: dict[str, list[tuple[int, Draft]]] = {}
        for index, event in enumerate(events):
            try:
                stream, draft = self._draft(event)
                if stream not in by_stream:
                    self.log.append(stream, [])  # Refuses an id that this log cannot hold.
            except RunstateError as error:
                error.details["index"] = index
                raise
            by_stream.setdefault(stream, []).append((index, draft))
        results: list[Any] = [None] * len(events)
        for stream, numbered in by_stream.items() if len(by_stream) > 1 else ():
            with index_in_batch(numbered):
                check_appendable(self.log, stream, drafts := [draft for _, draft in numbered])
                if self._check_transitions:
                    self._refuse_impossible(stream, drafts)
        batches = [(stream, [draft for _, draft in numbered]) for stream, numbered in by_stream.items()]
        answers: Sequence[Answer | None] = [None] * len(batches)
        if not self._check_transitions:
            with self.snapshots.making(*by_stream) as make:
                answers = append_batches(self.log, batches, make)
        refusals: list[RunstateError] = []
        for (stream, drafts), numbered, answer in zip(batches, by_stream.values(), answers, strict=True):
            try:
                with index_in_batch(numbered):
                    appended = self._append(stream, drafts, None, answer)
            except RunstateError as error:
                refusals.append(error)
            else:
                for (index, _), result in zip(numbered, appended, strict=True):
                    results[index] = result
        if refusals:
            raise refusals[0]
        return results

    def run(
        self: Store[EngineEvent, RunEventRecord, RunSnapshot],
        run_id: str,
        *,
        tenant: str,
        plan: str,
        project: str = "default",
        environment: str = "default",
        plan_version: str = "1",
    ) -> RunProducer:
        """A producer for one run: it derives keys and refuses what is impossible. For the engine model alone."""
        if not isinstance(self.model, EngineModel):
            raise TypeError(
                f"run() needs the model 'engine', and this store has {self.model.name!r}: open it with "
                "runstate.open(url, 'engine')"
            )
        names = {"tenant": tenant, "project": project, "environment": environment}
        return RunProducer(self, run_id, **names, plan=plan, plan_version=plan_version)

    def delete_stream(self, stream: str, *, forget: bool = False) -> None:
        """Delete a whole stream. Later appends are refused, so that no late retry begins it again, unless `forget`.

        Raises:
            StreamNotFound: there is no such stream.
        """
        info = self.log.stream(stream)
        if info is None and not forget:
            raise stream_not_found(self.log, stream)
        tombstone = None if forget or info is None else tombstone_for(self.log, info)
        self.log.delete_stream(stream, tombstone=tombstone)
        self.snapshots.forget(stream)

    # --- reading ---------------------------------------------------------------------------------------

    def fetch_events(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[E]:
        """At most `limit` events with `seq > after_seq`, ascending; empty for a stream that is not there."""
        check_after(after_seq)
        info = find_stream(self.log, stream, self.model.name)
        return list(map(self.model.decode, read_bodies(self.log, stream, info, after_seq, limit)))

    def get_snapshot(self, stream: str) -> S | None:
        """The state now: the stored snapshot, brought up to date with the log. None if there is no such stream."""
        if (info := find_whole_stream(self.log, stream, self.model.name)) is None:
            return None
        stored = self.snapshots.stored(stream)
        state = self._state_at(stream, info.last_seq, stored)
        if stored is None or stored.seq != info.last_seq:
            self.snapshots.save_current(info, state)
        return state

    def stored_snapshot(self, stream: str) -> StoredState[S] | None:
        """The snapshot as it is stored, and how far it is behind the log. None if none is stored."""
        info, stored = find_stream(self.log, stream, self.model.name), self.snapshots.stored(stream)
        if info is None or stored is None:
            return None
        state = self.snapshots.load(stream, stored)
        return None if state is None else StoredState(state, stored.seq, info.last_seq - stored.seq)

    def project_snapshot(self, stream: str) -> S:
        """The state, folded from the log alone; from its snapshot on, where the log was compacted.

        Raises:
            StreamNotFound: there is no such stream.
        """
        return self.snapshot_at(stream)

    def snapshot_at(self, stream: str, *, seq: int | None = None, at: datetime | str | None = None) -> S:
        """The state as of a place in the stream, or as of a time: up to the last event stored by then.

        Raises:
            StreamNotFound: there is no such stream.
            Truncated: the log was compacted since, and no longer tells.
        """
        if seq is not None and at is not None:
            raise ValueError("seq and at are two ways to say one thing; give one of them")
        if find_stream(self.log, stream, self.model.name) is None:
            raise stream_not_found(self.log, stream)
        until = seq if at is None else seq_at(self.log, stream, at)
        try:
            return self._fold(self.model.initial(stream), stream, 0, until)
        except Truncated:
            return self._state_at(stream, until)

    def current_state(self, stream: str) -> S:
        """The state now: the stored snapshot brought up to date. The initial state where there is no stream.

        Of a stream that was moved to an archive, and is not wholly restored, it is the last state there.
        """
        stored, info = self.snapshots.stored(stream), find_whole_stream(self.log, stream, self.model.name)
        if (source := source_of(self.log, stream)) is self.log:
            if stored is not None and (info is None or stored.seq > info.last_seq):  # Of an earlier stream of that id.
                return self._fold(self.model.initial(stream), stream, 0, None)
            return self._state_at(stream, None, stored)
        with folding(source, self.model, stream, 0):
            return self.model.fold(self.model.initial(stream), source.lines(stream))

    def diff(self, stream: str, *, from_seq: int, to_seq: int) -> list[Change]:
        """What changed in the state between two places in the stream."""
        states = (self.model.dump(self.snapshot_at(stream, seq=seq)) for seq in (from_seq, to_seq))
        return changes(*map(msgspec.json.decode, states))

    def holds_key(self, stream: str, key: str) -> bool:
        """Whether the stream, or the archive that it was moved to, holds an event under this idempotency key."""
        return find_event(self.log, stream, key) is not None

    def rebuild_snapshot(self, stream: str) -> StoredSnapshot:
        """Fold the stream from its first event and keep the result in place of what was kept.

        Raises:
            StreamNotFound: there is no such stream.
        """
        fresh = self.fresh_snapshot(stream)
        self.log.save_snapshot(stream, fresh)
        return fresh

    def fresh_snapshot(self, stream: str) -> StoredSnapshot:
        """The snapshot that the log gives now, whatever is kept.

        Raises:
            StreamNotFound: there is no such stream.
        """
        info = find_whole_stream(self.log, stream, self.model.name)
        if info is None:
            raise stream_not_found(self.log, stream)
        return self.snapshots.of(self.snapshot_at(stream, seq=info.last_seq), info.last_seq)

    def close(self) -> None:
        """Save the snapshots that are behind, and close the log."""
        with closing(self.log):
            self.snapshots.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- how -------------------------------------------------------------------------------------------

    def _draft(self, event: W) -> tuple[str, Draft]:
        stream, draft = self.model.checked_draft(event)
        if not draft.model:  # Models outside this package may leave it empty.
            draft = msgspec.structs.replace(draft, model=self.model.name)
        if len(draft.tail) > self._bytes_max:
            raise EventTooLarge(
                f"The event has {len(draft.tail)} bytes, the limit is {self._bytes_max}; "
                "keep the payload as a blob and append its reference, or open the store with a larger event_bytes_max",
                bytes=len(draft.tail),
            )
        if self._strict_keys:
            expected = self.model.expected_key(event)
            if expected is not None and expected != draft.key:
                raise KeyMismatch(f"The key {draft.key[:80]!r} is not the one that the event's fields give: {expected}")
        return stream, draft

    def _append(
        self, stream: str, drafts: list[Draft], expected_seq: int | None, answer: Answer | None = None
    ) -> list[AppendResult]:
        """Append to one stream, and keep its snapshot. `answer` is the log's, where it was asked already."""
        try:
            if isinstance(answer, RunstateError):
                raise answer
            append = self._append_possible if self._check_transitions else self._append_to_log
            results = append(stream, drafts, expected_seq) if answer is None else answer
        except StreamDeleted:
            results = answer_from_archive(self.log, stream, drafts)
        for draft, result in zip(drafts, results, strict=True):
            if result.mismatch:
                self.alerts.raise_once(content_mismatch(stream, draft, result))
        if not (results[-1].persisted and self.snapshots.is_current(stream, results[-1].seq)):
            self.snapshots.appended(stream, self._new_lines(stream, drafts, results))
        return results

    def _append_to_log(self, stream: str, drafts: list[Draft], expected_seq: int | None) -> list[AppendResult]:
        with self.snapshots.making(stream) as make:
            return append_batch(self.log, stream, drafts, make, expected_seq)

    def _new_lines(self, stream: str, drafts: list[Draft], results: list[AppendResult]) -> list[tuple[int, bytes]]:
        """What was just stored: each seq with its line, rendered again, which is cheaper than reading it."""
        new = [(draft, result) for draft, result in zip(drafts, results, strict=True) if result.persisted]
        if any(draft.chained for draft, _ in new):
            records = self.log.read(stream, after_seq=new[0][1].seq - 1, limit=new[-1][1].seq - new[0][1].seq + 1)
            return [(record.seq, record.body) for record in records]
        return [(result.seq, draft.render(result.seq, result.persisted_at)) for draft, result in new]

    def _append_possible(self, stream: str, drafts: list[Draft], expected_seq: int | None) -> list[AppendResult]:
        """Append only what is possible in the state that the stream is in, whoever else appends meanwhile."""
        while True:
            seq = self._refuse_impossible(stream, drafts, expected_seq)
            try:
                return self._append_to_log(stream, drafts, seq if expected_seq is None else expected_seq)
            except SequenceConflict:
                if expected_seq is not None:
                    raise

    def _refuse_impossible(self, stream: str, drafts: list[Draft], expected_seq: int | None = None) -> int:
        """Check drafts one after the other against the stream as it is. Returns the seq that it is at.

        Raises:
            SequenceConflict: one of them is new, and the stream is not yet at `expected_seq`.
            InvalidTransition: with the `index` of the draft; the same answer as long as the stream stays as it is.
        """
        if (info := find_stream(self.log, stream, self.model.name)) is None and self.log.tombstone(stream) is not None:
            return 0  # The append meets the tombstone.
        seq = 0 if info is None else info.last_seq
        new: dict[str, tuple[int, Draft]] = {}
        for index, draft in enumerate(drafts):
            if self.log.find(stream, draft.key) is None:  # Otherwise it is a retry: its first answer stands.
                new.setdefault(draft.key, (index, draft))
        try:
            if new and expected_seq is not None and expected_seq > seq:
                check_expected(stream, seq, expected_seq)  # It may be there by the time of the append, and unchecked.
            check_possible(self.model, self._state_at(stream, seq), seq, new.values())
        except (InvalidTransition, SequenceConflict):
            if self.log.tombstone(stream) is None:
                raise  # Else it was deleted meanwhile, and was not looked at as it should be.
        return seq

    def _state_at(self, stream: str, until_seq: int | None, stored: StoredSnapshot | None = None) -> S:
        """The state after `until_seq`, or at the end: the stored snapshot brought up to there, if it is not beyond."""
        stored = stored or self.snapshots.stored(stream)
        if stored is None or (until_seq is not None and stored.seq > until_seq):
            return self._fold(self.model.initial(stream), stream, 0, until_seq)
        if (state := self.snapshots.load(stream, stored)) is None:
            return self._fold(self.model.initial(stream), stream, 0, until_seq)
        return state if stored.seq == until_seq else self._fold(state, stream, stored.seq, until_seq)

    def _fold(self, state: S, stream: str, after_seq: int, until_seq: int | None) -> S:
        # Looking back raises no alerts: whoever folded these events first has raised them.
        with folding(self.log, self.model, stream, after_seq):
            return self.model.fold(state, self.log.lines(stream, after_seq=after_seq, until_seq=until_seq))
