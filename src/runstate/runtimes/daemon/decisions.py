"""One state, one lock: whatever a daemon decides, it decides on the state that everything before has left.

A decision is appended before the lock is let go of, and answered once it is durable. So decisions share flushes, and
none can be answered whose reason is not durable too: the log keeps them in order, and a flush that fails takes all that
come after it with it. The state is then read from the log again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from runstate.errors import InvalidEvent, InvalidTransition, LogClosed, RunstateError, SequenceConflict
from runstate.logs.buffering import Ticket
from runstate.logs.log import EventLog
from runstate.models.daemon import DAEMON, DaemonEvent, MaterializedState
from runstate.models.daemon.events import default_daemon, tag_of
from runstate.models.daemon.evolve import apply
from runstate.models.daemon.refusals import refusal
from runstate.models.model import Draft
from runstate.runtimes.daemon.journal import Journal, nothing
from runstate.runtimes.daemon.leases import Clock, Leases
from runstate.runtimes.daemon.lines import Lines

logger = logging.getLogger("runstate.runtimes.daemon")
T = TypeVar("T")
Bell = Callable[[], None]
OnLost = Callable[[RunstateError], None]
"""Told once, by whichever thread learns it, that the log takes nothing more: the daemon must be opened again."""


class _Refused(NamedTuple):
    error: InvalidTransition
    reasons: Ticket
    """What has to be durable before anybody is told."""


class Decisions:
    """The state of a daemon in memory, and the only way to change it."""

    _state: MaterializedState
    _seq: int
    _lines: Lines
    _last: Ticket

    def __init__(self, log: EventLog, name: str, *, lease_s: float, clock: Clock, on_lost: OnLost | None) -> None:
        self.name, self._on_lost = name, on_lost
        self._journal = Journal(log, name)
        self._lock = Lock()
        self._leases = Leases(lease_s, clock)
        self._bells: dict[str, dict[Bell, None]] = {}
        self._is_closed = False
        self._reload()

    # --- for everyone --------------------------------------------------------------------------------------

    def emit(self, event: DaemonEvent, *, durable: bool = True) -> int:
        """Append an event and apply it. Returns its seq, once it survives a power cut; at once if not `durable`.

        An event that carries an id the log holds already changes nothing, and gets the first one's seq.

        Raises:
            InvalidEvent, InvalidStream, InvalidJson: the event is put together wrongly.
            InvalidTransition: it is about something that is not there, or not as it says. Nothing was written.
            AppendOutcomeUnknown, LogFull: it may not be stored; send it again with the same id.
        """
        named = bool(event.event_id)
        event = self._addressed(event)
        drafts = [DAEMON.draft(event)[1]]

        def decide() -> tuple[Ticket, int]:
            if named and (seq := self._journal.known(event.event_id)) is not None:
                return self._last, seq
            self._check(event)
            ticket = self._append([event], drafts)
            return ticket, ticket.results[0].seq

        ticket, seq = self._decided(decide)
        if durable:
            self._settle(ticket)
        return seq

    @property
    def state(self) -> MaterializedState:
        """Everything the daemon knows, as of one moment; all of it is durable. It is the caller's own."""
        return self.look(MaterializedState.copy)

    @property
    def seq(self) -> int:
        """Of the last event."""
        with self._lock:
            return self._seq

    def look(self, at: Callable[[MaterializedState], T]) -> T:
        """What a function sees in the state, without a copy of the whole. It must be quick, and change nothing."""
        ticket, seen = self._decided(lambda: (self._last, at(self._state)))
        self._settle(ticket)
        return seen

    def flush(self) -> None:
        """Return once everything that was emitted is durable."""
        self._settle(self._decided(lambda: self._last))

    # --- for those who build on it -------------------------------------------------------------------------

    def _decided(self, decide: Callable[[], T]) -> T:
        """Decide on the state as it is, under the lock. Decided anew if the log turns out not to be where it was.

        A refusal is an answer too: it is given once its reasons are durable.
        """
        while True:
            try:
                with self._lock:
                    decided = self._decide(decide)
            except LogClosed as error:
                self._lose(error)
                raise
            if not isinstance(decided, _Refused):
                return decided
            if self._is_durable(decided.reasons):
                raise decided.error

    def _decide(self, decide: Callable[[], T]) -> T | _Refused:
        if self._is_closed:
            raise LogClosed("The daemon was closed; open it again")
        if self._is_stale:
            self._reload()
        try:
            return decide()
        except SequenceConflict:
            self._reload()
            return decide()
        except InvalidTransition as error:
            return _Refused(error, self._last)

    def _lose(self, error: RunstateError) -> None:
        """The log takes nothing more, and nobody has closed it."""
        told, self._on_lost = self._on_lost, None
        if told is not None and not self._is_closed:
            told(error)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """After some failures the log takes nothing more. That is told at once, and not when somebody asks again."""
        try:
            yield
        except (RunstateError, OSError):
            try:
                self._journal.check_open()
            except LogClosed as error:
                self._lose(error)
            except (RunstateError, OSError) as error:
                logger.warning("%s: the log does not answer: %s", self.name, error)
            raise

    def _is_durable(self, reasons: Ticket) -> bool:
        try:
            self._settle(reasons)
        except RunstateError:
            return False
        return True

    def _check(self, event: DaemonEvent) -> None:
        """
        Raises:
            InvalidTransition: it is impossible as things stand.
        """
        if (why := refusal(self._state, event)) is not None:
            raise InvalidTransition(f"{why}; nothing was written", type=tag_of(event))

    def _write(self, events: Sequence[DaemonEvent]) -> Ticket:
        """Append and apply what was decided, all or nothing. The caller holds the lock."""
        named = [self._addressed(event) for event in events]
        return self._append(named, [DAEMON.draft(event)[1] for event in named])

    def _append(self, events: Sequence[DaemonEvent], drafts: Sequence[Draft]) -> Ticket:
        ticket = self._journal.append(drafts, self._seq)
        changed = []
        for event, result in zip(events, ticket.results, strict=True):
            if result.persisted:
                self._lines.before(self._state, event)
                apply(self._state, event)
                changed.append(self._lines.after(self._state, event))
                self._seq = result.seq
        if any(result.persisted for result in ticket.results):
            self._last = ticket  # Else it says nothing about those before it.
        if self._leases.keys() != self._state.workers.keys():
            self._leases.follow(self._state.workers)
        for key in dict.fromkeys(changed):
            self._ring(key)
        return ticket

    def _settle(self, ticket: Ticket) -> None:
        """Return once a decision is durable."""
        try:
            with self._watching():
                ticket.wait()
        except RunstateError:
            with self._lock:
                self._is_stale = True
            raise

    def _ring(self, queue_key: str | None) -> None:
        for bell in self._bells.pop(queue_key, ()) if queue_key is not None else ():
            bell()

    def forget(self, bell: Bell) -> None:
        """Whoever has waited for this bell waits no more."""
        with self._lock:
            for key in [key for key, bells in self._bells.items() if bell in bells]:
                del self._bells[key][bell]
                if not self._bells[key]:
                    del self._bells[key]

    def _reload(self) -> None:
        self._state, self._seq = self._journal.load()
        self._lines = Lines(self._state)
        self._last = nothing
        self._is_stale = False
        self._leases.follow(self._state.workers)

    def _addressed(self, event: DaemonEvent) -> DaemonEvent:
        if event.daemon not in (default_daemon, self.name):
            raise InvalidEvent(f"The event is for the daemon {event.daemon!r}, this is {self.name!r}")
        return msgspec.structs.replace(event, daemon=self.name, event_id=event.event_id or str(uuid4()))
