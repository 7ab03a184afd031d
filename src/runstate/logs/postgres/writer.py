"""Writes appends: with those of other threads in one transaction, or alone where that cannot be.

A group never waits for a head that somebody else holds, and one that fails has written nothing. Either way its appends
are tried again one by one, each by its own thread on its own connection: no append fails for what its neighbour did.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from runstate.errors import AppendOutcomeUnknown, LogBusy, LogFailed, RunstateError, StreamDeleted
from runstate.logs.adoption import key_taken, new_records
from runstate.logs.group_commit import GroupCommit
from runstate.logs.log import AppendResult, Record
from runstate.logs.postgres.appends import Append, Head, commit, lock_heads, plan, read_head
from runstate.logs.postgres.arrays import Numbers, Texts
from runstate.logs.postgres.connections import Connections
from runstate.logs.postgres.deletion import drop_tombstone, find_tombstones, select_tombstones
from runstate.logs.postgres.transactions import Connection, ConnectionLost, begin, set_local
from runstate.logs.stream_models import model_after
from runstate.logs.tombstones import Tombstone, check_not_deleted

shared_drafts_max = 32
"""Drafts of an append that shares its transaction. The work of a larger one is better done beside the others'."""

group_drafts_max = 1000
"""Drafts that share a transaction; more would only make all of them wait longer."""

gather_max_s = 0.001

appends_max = 500
"""Appends of one caller that share a transaction. Others wait for the heads that it has locked."""

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
        self._groups = GroupCommit(
            self._write_group,
            self._answer,
            weigh=lambda append: len(append.drafts),
            weight_max=group_drafts_max,
            gather_max_s=gather_max_s,
            name="runstate-postgres-writer",
        )

    def append(self, append: Append) -> list[AppendResult]:
        """Answer an append, once what it writes is durable.

        Raises:
            ModelMismatch, StreamDeleted, SequenceConflict, LogBusy, LogFull, LogClosed: nothing was written.
            AppendOutcomeUnknown: it may have been.
        """
        return self._groups.run(append) if len(append.drafts) <= shared_drafts_max else self._answer(append)

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
            try:
                self._answer(append)
            except RunstateError as error:
                append.settle(error)

    def adopt(self, stream: str, records: Sequence[Record], model: str) -> int:
        """Write what is new of another log's records; how many were."""
        done: list[int] = []
        self._until_done(stream, lambda: bool(done), lambda: done.extend(self._adopt(stream, records, model)))
        return done[0]

    def _until_done(self, stream: str, is_done: Callable[[], bool], attempt: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._busy_timeout_s
        while not is_done():
            if time.monotonic() > deadline:
                raise LogBusy(f"The stream {stream!r} could not be written in {self._busy_timeout_s:g} s; try again")
            try:
                attempt()
            except UnicodeEncodeError as error:
                raise LogFailed(f"It cannot be written: {error!r}") from error

    def _answer(self, append: Append) -> list[AppendResult]:
        """What came of an append. One that its group had to leave open is tried by itself, and waits for its stream."""
        self._until_done(append.stream, lambda: not append.is_open, lambda: self._write([append], wait=True))
        if append.error is not None:
            raise append.error
        return append.results or []

    def _write_group(self, appends: list[Append]) -> None:
        # One that is answered already was in a group whose leader was interrupted.
        self._write_together([each for each in appends if each.is_open and len(each.drafts) <= shared_drafts_max])

    def _write_together(self, appends: list[Append]) -> None:
        # Whatever it is, it was rolled back, and whoever is to blame will meet it again when tried alone.
        with suppress(RunstateError, ValueError, TypeError):
            self._write(appends, wait=False)

    def _write(self, appends: list[Append], *, wait: bool) -> None:
        """Answer the appends; those stay open that have to be tried again."""
        sent: list[Append] = []
        try:
            with self._connections.one() as connection:
                heads, answers, has_standby = plan(connection, appends, wait=wait)
                unwritten = {head.stream for head in heads if head.new}
                # What is known may have been committed here alone. A retry is not answered until the standby has it.
                is_repeated = has_standby and any(isinstance(answer, list) for answer in answers.values())
                if unwritten or is_repeated:
                    sent = list(answers)
                    written = commit(connection, heads)
                    if written is None:
                        return
                    unwritten -= written
                    self._committed()
                # Streams that are not there, and that were not begun now: they may have been deleted.
                missing = {
                    head.stream for head in heads if head.id is None and (head.stream in unwritten or not head.new)
                }
                undecided = unwritten | missing
                for append, answer in answers.items():
                    if append.stream not in undecided:
                        append.settle(answer)
                # A connection that is lost from here on takes no answer away.
                sent = []
                tombstones = find_tombstones(connection, missing) if missing else {}
        except ConnectionLost as lost:
            _leave_unknown(sent, f"The commit may or may not have been done ({lost})")
            if not sent:
                # Nothing was sent that could have written: the server was restarted since the last use.
                self._connections.drop_broken()
            return
        except BaseException as interrupt:
            if not isinstance(interrupt, Exception):
                _leave_unknown(sent, "The commit was interrupted")
            raise
        for append, answer in answers.items():
            if append.stream not in missing:
                continue
            try:
                check_not_deleted(tombstones.get(append.stream), 0, append.drafts)
            except StreamDeleted as error:
                append.settle(error)
            else:
                if append.stream not in unwritten:
                    append.settle(answer)

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
