"""Writes appends: with those of other threads in one transaction, or alone where that cannot be.

Each is tried in one round trip first. A group never waits for a head that somebody else holds, and one that fails has
written nothing. Appends to a head that is held wait for it together, on a connection of their own. What is still open
then is tried one by one, each by its own thread: no append fails for what its neighbour did.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import TypeVar

from runstate.errors import AppendOutcomeUnknown, LogBusy, LogFailed, RunstateError, StreamDeleted
from runstate.logs.adoption import key_taken, new_records
from runstate.logs.group_commit import GroupCommit
from runstate.logs.log import AppendResult, Record
from runstate.logs.postgres.appends import Answer, Append, Head, Written, commit, lock_heads, plan, read_head
from runstate.logs.postgres.arrays import Numbers, Texts
from runstate.logs.postgres.connections import Connections
from runstate.logs.postgres.deletion import drop_tombstone, find_tombstones, select_tombstones
from runstate.logs.postgres.guesses import Guesses, commit_guessed
from runstate.logs.postgres.transactions import Connection, ConnectionLost, begin, set_local
from runstate.logs.stream_models import model_after
from runstate.logs.tombstones import Tombstone, check_not_deleted

T = TypeVar("T")

shared_drafts_max = 32
"""Drafts of an append that shares its transaction. The work of a larger one is better done beside the others'."""

group_drafts_max = 1000
"""Drafts that share a transaction; more would only make all of them wait longer."""

gather_pause_s = 0.001

appends_max = 500
"""Appends of one caller that share a transaction. Others wait for the heads that it has locked."""

_refusals = (RunstateError, ValueError, TypeError)
"""Of a group. It was rolled back, and the append that is to blame will meet it again when it is tried alone."""

_held = """
SELECT e.seq, e.event_id, e.type, e.key, e.tenant, e.emitted_at, e.persisted_at, e.body FROM $schema.events e
WHERE e.stream_id = (SELECT id FROM $schema.streams WHERE stream = %s)
    AND (e.seq = ANY(%s) OR e.key = ANY(%s))
"""


class Writer:
    """Appends for all threads of a process."""

    def __init__(self, connections: Connections, busy_timeout_s: float, committed: Callable[[], None]) -> None:
        """`committed` is called after each transaction that has written something, before its callers are told."""
        self._connections, self._busy_timeout_s, self._committed = connections, busy_timeout_s, committed
        self.guesses = Guesses()
        self._groups = self._group(self._write_group, self._answer)
        self._gate = threading.Lock()
        self._held: dict[str, tuple[GroupCommit[Append, None], int]] = {}
        """For streams whose head was held by somebody else: the appends that wait for it, and how many they are."""

    def append(self, append: Append) -> list[AppendResult]:
        """Answer an append, once what it writes is durable.

        Raises:
            ModelMismatch, StreamDeleted, SequenceConflict, LogBusy, LogFull, LogClosed: nothing was written.
            AppendOutcomeUnknown: it may have been.
        """
        if len(append.drafts) <= shared_drafts_max and append.stream not in self._held:
            return self._groups.run(append)
        return self._answer(append)

    def submit(self, append: Append) -> Future[list[AppendResult]]:
        """Run one append without waiting for it."""
        if not append.drafts:
            append.settle([])
        return self._groups.submit(append)

    def close(self) -> None:
        """Finish what was submitted, and take nothing more."""
        self._groups.close()

    def append_many(self, appends: Sequence[Append]) -> None:
        """Answer many appends of different streams, in as few transactions as there can be. None of them is raised."""
        for start in range(0, len(appends), appends_max):
            self._write_together(list(appends[start : start + appends_max]))
        for append in appends:
            self._finish(append)

    def adopt(self, stream: str, records: Sequence[Record], model: str) -> int:
        """Write what is new of another log's records; how many were."""
        done: list[int] = []
        self._until_done(stream, lambda: bool(done), lambda: done.extend(self._adopt(stream, records, model)))
        return done[0]

    def _finish(self, append: Append) -> None:
        """Try an append alone until it is answered, be it with an error."""
        try:
            self._until_done(append.stream, lambda: not append.is_open, lambda: self._write([append], wait=True))
        except RunstateError as error:
            append.settle(error)

    def _until_done(self, stream: str, is_done: Callable[[], bool], attempt: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._busy_timeout_s
        while not is_done():
            if time.monotonic() > deadline:
                raise LogBusy(f"The stream {stream!r} could not be written in {self._busy_timeout_s:g} s; try again")
            try:
                attempt()
            except UnicodeEncodeError as error:
                raise LogFailed(f"It cannot be written: {error!r}") from error

    def _group(self, flush: Callable[[list[Append]], None], answer: Callable[[Append], T]) -> GroupCommit[Append, T]:
        return GroupCommit(
            flush,
            answer,
            weigh=lambda append: len(append.drafts),
            weight_max=group_drafts_max,
            gather_pause_s=gather_pause_s,
            name="runstate-postgres-writer",
        )

    def _answer(self, append: Append) -> list[AppendResult]:
        """What came of an append. One that its group had to leave open waits for its stream."""
        if append.is_open and len(append.drafts) <= shared_drafts_max:
            self._wait_with_others(append)
        elif append.is_open:
            self._try_guessed([append])
        self._finish(append)
        if append.error is not None:
            raise append.error
        return append.results or []

    def _wait_with_others(self, append: Append) -> None:
        """Write an append, with all others to the same stream, as soon as its head is free."""
        with self._gate:
            groups, number = self._held.get(append.stream) or (self._group(self._write_held, _no_answer), 0)
            self._held[append.stream] = groups, number + 1
        try:
            groups.run(append)
        finally:
            with self._gate:
                _, number = self._held.pop(append.stream)
                if number > 1:
                    self._held[append.stream] = groups, number - 1

    def _write_group(self, appends: list[Append]) -> None:
        # One that is answered already was in a group whose leader was interrupted.
        self._write_together([each for each in appends if each.is_open and len(each.drafts) <= shared_drafts_max])

    def _write_together(self, appends: list[Append]) -> None:
        left = self._try_guessed(appends)
        # One stream alone is not looked at here: whoever has appended to it since may hold its head.
        if len({append.stream for append in left}) > 1:
            with suppress(*_refusals):
                self._write(left, wait=False)

    def _write_held(self, appends: list[Append]) -> None:
        if left := self._try_guessed(appends):
            with suppress(*_refusals):
                try:
                    self._write(left, wait=True)
                except LogBusy as busy:
                    for append in left:
                        append.settle(LogBusy(str(busy)))

    def _try_guessed(self, appends: list[Append]) -> list[Append]:
        """Write appends in one round trip. Those that are still open."""
        with suppress(*_refusals):
            self._write_guessed(appends)
        return [append for append in appends if append.is_open]

    def _write_guessed(self, appends: list[Append]) -> None:
        heads, answers = self.guesses.plan(appends)
        if not heads:
            return
        sent: list[Append] = []
        with self._sending(sent) as connection:
            connection.check_silent()
            sent += answers
            written = commit_guessed(connection, heads, is_pooled=self._connections.is_pooled)
            self.guesses.learn(heads, written)
            if written:
                self._committed()
            for append, answer in answers.items():
                if append.stream in written:
                    append.settle(answer)

    def _write(self, appends: list[Append], *, wait: bool) -> None:
        """Answer the appends; those stay open that have to be tried again."""
        sent: list[Append] = []
        with self._sending(sent) as connection:
            heads, answers, persisted_at, has_standby = plan(connection, appends, wait=wait)
            self.guesses.learn_time(persisted_at)
            unwritten = {head.stream for head in heads if head.new}
            written: Written = {}
            # What is known may have been committed here alone. A retry is not answered until the standby has it.
            is_repeated = has_standby and any(isinstance(answer, list) for answer in answers.values())
            if unwritten or is_repeated:
                sent += answers
                committed = commit(connection, heads)
                if committed is None:
                    return
                written = committed
                unwritten -= written.keys()
                self._committed()
            self.guesses.learn(heads, written)
            # Streams that are not there, and that were not begun now: they may have been deleted.
            missing = {head.stream for head in heads if head.id is None and (head.stream in unwritten or not head.new)}
            undecided = unwritten | missing
            for append, answer in answers.items():
                if append.stream not in undecided:
                    append.settle(answer)
            # A connection that is lost from here on takes no answer away.
            sent.clear()
            if missing:
                tombstones = find_tombstones(connection, missing)
                _settle_missing({a: answers[a] for a in answers if a.stream in missing}, unwritten, tombstones)

    @contextmanager
    def _sending(self, sent: list[Append]) -> Iterator[Connection]:
        """A connection. If it is lost, the outcome of what was sent on it is unknown, and the block ends there."""
        try:
            with self._connections.one() as connection:
                yield connection
        except ConnectionLost as lost:
            _leave_unknown(sent, f"The commit may or may not have been done ({lost})")
            if not sent:
                # Nothing was sent that could have written: the server was restarted since the last use.
                self._connections.drop_broken()
        except BaseException as interrupt:
            if not isinstance(interrupt, Exception):
                _leave_unknown(sent, "The commit was interrupted")
            raise

    def _adopt(self, stream: str, records: Sequence[Record], model: str) -> list[int]:
        """How many were new; nothing if it has to be tried again."""
        sent = False
        try:
            with self._connections.one() as connection:
                head, has_standby = _plan_adoption(connection, stream, records, model)
                if has_standby and not head.new:
                    sent = True
                    commit(connection, [])
                if head.new:
                    if head.tombstone is not None:
                        connection.execute(drop_tombstone, (stream,))
                    sent = True
                    if not commit(connection, [head], head.tombstone):
                        return []
                    self._committed()
                return [len(head.new)]
        except ConnectionLost as lost:
            if sent:
                raise AppendOutcomeUnknown(
                    f"The commit may or may not have been done ({lost}); adopt the same records again"
                ) from lost
            self._connections.drop_broken()
            return []


def _settle_missing(answers: dict[Append, Answer], unwritten: set[str], tombstones: dict[str, Tombstone]) -> None:
    """Answer appends to streams that are not there: a deleted one refuses them."""
    for append, answer in answers.items():
        try:
            check_not_deleted(tombstones.get(append.stream), 0, append.drafts)
        except StreamDeleted as error:
            append.settle(error)
        else:
            if append.stream not in unwritten:
                append.settle(answer)


def _no_answer(_append: Append) -> None:
    """For a group whose appends are looked at by their callers."""


def _leave_unknown(appends: list[Append], why: str) -> None:
    for append in appends:
        append.settle(AppendOutcomeUnknown(f"{why}; send the same keys again"))


def _plan_adoption(connection: Connection, stream: str, records: Sequence[Record], model: str) -> tuple[Head, bool]:
    """The stream's head, locked, with those of the records that are to be written to it.

    The second value is whether commits wait for a standby.
    """
    with connection.pipeline():
        connection.execute(begin)
        settings = connection.execute(set_local)
        locked = connection.execute(lock_heads, (Texts([stream]),))
        values = (stream, Numbers([r.seq for r in records]), Texts([r.key for r in records]))
        found = connection.execute(_held, values, binary=True)
        tombstones = connection.execute(select_tombstones, (Texts([stream]),))
    row, deleted = locked.fetchone(), tombstones.fetchone()
    head = Head(stream) if row is None else read_head(row)
    head.tombstone = None if deleted is None else Tombstone(*deleted)
    head.model = model_after(stream, head.model, model, head.last_seq)
    held = [Record(stream, *row) for row in found] if head.id is not None else []
    new = new_records(stream, records, head.last_seq, held)
    keys = {record.key for record in held}
    for record in new:
        if record.key in keys:
            raise key_taken(record, head.last_seq)
    head.new = {record.key: record for record in new}
    if new:
        head.last_seq, head.tenant = new[-1].seq, head.tenant if head.id is not None else new[0].tenant
    return head, any(has_standby for _, _, has_standby in settings)
