"""The one way in and out of the log: a session's state as it is now, and plans that are appended whole.

A plan was decided in one state. It is appended only if the session is still in that state, so that two writers can
never interleave: one of them decides again. Every event is checked by the model before anything is written.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import msgspec

from runstate.errors import InvalidTransition, SequenceConflict, StreamNotFound
from runstate.logs.log import AppendResult, now
from runstate.models.canonical import digest
from runstate.models.model import Alert, Draft
from runstate.models.session.events import SessionEvent
from runstate.models.session.ids import SessionId
from runstate.models.session.state import Session
from runstate.store import Store

SessionStore = Store[SessionEvent, SessionEvent, Session]

_states_max = 64
"""States kept in memory; a forgotten one is folded again."""
_decisions_max = 10
"""How often a plan is decided anew because another writer was faster."""


class Plan(msgspec.Struct, frozen=True):
    """Events that are appended together or not at all, and the blobs that they refer to. Without events: nothing."""

    events: list[SessionEvent] = []
    blobs: list[bytes] = []


class _Kept(msgspec.Struct):
    """A state, and a line that it has taken in: if the log has another one there, it holds another history by now."""

    state: Session
    seq: int
    """Of that line; 0 before the first."""
    digest: str

    @property
    def last_seq(self) -> int:
        """Of the last line that the state has taken in."""
        return self.state.last_event_index + 1


class Journal:
    """Sessions in one store. Safe to share between threads: they take turns."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self.turn = RLock()
        self._kept: OrderedDict[SessionId, _Kept] = OrderedDict()

    @contextmanager
    def reading(self, session_id: SessionId) -> Iterator[Session]:
        """The session's state now. It is this thread's until the block ends, and not to be changed.

        Raises:
            StreamNotFound: there is no such session.
            LogDamaged: the session's log is damaged; nothing is guessed around that.
        """
        with self.turn:
            yield self._current(session_id).state

    def begin(self, session_id: SessionId, plan: Plan) -> None:
        """Append the first plan of a session.

        Raises:
            SequenceConflict: there is a session of that id.
            InvalidEvent, InvalidTransition, LogBusy, …: nothing was written.
        """
        with self.turn:
            self._append(session_id, _Kept(self.store.model.initial(session_id), 0, ""), plan)

    def append(self, session_id: SessionId, decide: Callable[[Session], Plan]) -> None:
        """Append what `decide` makes of the session's state, all or none. It may be asked again; it may decide nothing.

        Raises:
            whatever `decide` raises.
            StreamNotFound, InvalidEvent, InvalidTransition: nothing was written.
            LogBusy, LogFull, AppendOutcomeUnknown, SequenceConflict: try again.
        """
        with self.turn:
            for decision in range(1, _decisions_max + 1):
                kept = self._current(session_id)
                plan = decide(kept.state)
                if not plan.events:
                    return
                try:
                    self._append(session_id, kept, plan)
                    return
                except SequenceConflict:
                    if decision == _decisions_max:
                        raise

    def _current(self, session_id: SessionId) -> _Kept:
        """Kept in memory as long as the log holds the history that it was folded from; only what is new is folded."""
        info = self.store.log.stream(session_id)
        if info is None:
            raise StreamNotFound(f"There is no session {session_id!r}", stream=session_id)
        kept = self._kept.pop(session_id, None)
        if kept is None or not self._goes_on(kept, session_id, info.last_seq):
            kept = self._loaded(session_id, info.last_seq)
        self._kept[session_id] = kept
        if len(self._kept) > _states_max:
            self._kept.popitem(last=False)
        return kept

    def _goes_on(self, kept: _Kept, session_id: SessionId, last_seq: int) -> bool:
        """Fold what is new. False: the session was repaired, or deleted and begun again, maybe by another process."""
        if kept.seq > last_seq:
            return False
        lines = [*self.store.log.lines(session_id, after_seq=kept.seq - 1, until_seq=last_seq)]
        if not lines or digest(lines[0]) != kept.digest:
            return False
        if len(lines) > 1:
            kept.state = self.store.model.fold(kept.state, lines[1:])
            kept.seq, kept.digest = kept.seq + len(lines) - 1, digest(lines[-1])
        return True

    def _loaded(self, session_id: SessionId, last_seq: int) -> _Kept:
        # The line before the state: if the history changes in between, the line will not be found again.
        log = self.store.log
        line = next(log.lines(session_id, after_seq=max(last_seq - 1, 0), until_seq=last_seq), None)
        if line is None:  # The last seqs that were given out may stand for events that are lost.
            line = next(iter(deque(log.lines(session_id), maxlen=1)), None)
        state = self.store.current_state(session_id)
        if line is None:
            raise StreamNotFound(f"There is no session {session_id!r}", stream=session_id)
        return _Kept(state, last_seq, digest(line))

    def _append(self, session_id: SessionId, kept: _Kept, plan: Plan) -> None:
        """
        Raises:
            SequenceConflict: another writer was faster, and what it wrote may be this very plan.
        """
        seq = kept.last_seq
        drafts = [self.store.model.draft(event)[1] for event in plan.events]
        # The state takes the plan in before the log does. If the log refuses the plan, the state goes with it.
        self._kept.pop(session_id, None)
        new = self._take_in(session_id, kept, drafts)
        # Blobs before events: no event may refer to what a crash could have kept from being there.
        for blob in plan.blobs:
            self.store.log.put_blob(blob)
        results = self.store.log.append(session_id, drafts, expected_seq=seq)
        if seq and any(result.idempotent and result.seq > seq for result in results):
            raise _faster(session_id)
        for draft, result in zip(drafts, results, strict=True):
            if result.mismatch:
                self.store.alerts.raise_once(_mismatch(session_id, draft, result))
        lines = [(r.seq, d.render(r.seq, r.persisted_at)) for d, r in zip(drafts, results, strict=True) if r.persisted]
        self.store.snapshots.appended(session_id, lines)
        if len(lines) == new:
            if lines:
                kept.seq, kept.digest = lines[-1][0], digest(lines[-1][1])
            self._kept[session_id] = kept

    def _take_in(self, session_id: SessionId, kept: _Kept, drafts: list[Draft]) -> int:
        """Fold drafts into the state, each checked against what is before it. How many of them are new.

        Raises:
            InvalidTransition: what is impossible, with the `index` of the event in the plan.
            SequenceConflict: another writer has stored one of them since the state was read.
        """
        model, seq, new = self.store.model, kept.last_seq, set[str]()
        for index, draft in enumerate(drafts):
            held = self.store.log.find(session_id, draft.key) if seq else None
            if held is not None and held.seq > seq:
                raise _faster(session_id)
            if draft.key in new or held is not None:
                continue  # A retry: its first answer stands.
            new.add(draft.key)
            line = draft.render(seq + len(new), now())
            for refusal in model.refusals(kept.state, model.decode(line)):
                raise impossible(refusal, index=index)
            kept.state = model.fold(kept.state, [line])
        return len(new)


def impossible(refusal: Alert, **details: Any) -> InvalidTransition:
    """What the model says about an event, as an error. Without times: the same event always gets the same answer."""
    told = {name: value for name, value in refusal.details.items() if name != "persistedAt"}
    return InvalidTransition(
        f"{told['eventType']} is impossible: {told['why']}; nothing was written", **told, **details
    )


def _mismatch(session_id: SessionId, draft: Draft, result: AppendResult) -> Alert:
    return Alert(
        code="IDEMPOTENCY_CONTENT_MISMATCH",
        level="P2",
        subject=session_id,
        event_id=draft.event_id,
        details={"key": draft.key, "type": draft.type, "storedEventId": result.event_id, "storedSeq": result.seq},
    )


def _faster(session_id: SessionId) -> SequenceConflict:
    return SequenceConflict(f"Another writer of the session {session_id!r} was faster; try again", stream=session_id)
