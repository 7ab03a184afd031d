"""One stream that this process writes to: its lock, its group commits, and whoever leads them.

Appends are framed and buffered by their callers. Of those who wait for durability one leads: it writes all that is
buffered in one write, flushes once, wakes the others, and appoints the next. Where nobody waits, a thread flushes after
an interval, or once enough entries have gathered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from threading import Condition, Lock, Thread
from time import monotonic

import msgspec
from msgspec import UNSET

from runstate.errors import AppendOutcomeUnknown, LogClosed, RunstateError, StreamDeleted
from runstate.logs.bulk import Answer
from runstate.logs.log import AppendResult, Finding, Record
from runstate.logs.submitting import Append
from runstate.logs.tombstone_files import find_tombstone
from runstate.logs.wal.buffer import Buffer
from runstate.logs.wal.files import StreamFiles
from runstate.logs.wal.flushing import create_locked, write_flushed
from runstate.logs.wal.held import Held
from runstate.logs.wal.ledger import reserve_step, write_ledger
from runstate.logs.wal.options import WalOptions
from runstate.logs.wal.reading import View
from runstate.logs.wal.recovery import load
from runstate.logs.wal.tickets import Batch, Job, Outcome, Ticket, Waiter, answers_of
from runstate.models.model import Draft
from runstate.storage import disk as files_door
from runstate.storage.disk import Disk
from runstate.storage.disk_errors import translate
from runstate.storage.file_proof import FileChanged, check_in_place, file_lost

_backlog = 32
"""So many flushes' worth of entries may be buffered; beyond it, whoever adds to them waits for the disk."""


class Gone(Exception):
    """This writer was let go of meanwhile; ask the log for it again."""


class Writer:
    """A stream whose lock this process holds.

    `gate` guards everything in memory and is held for moments only. Whoever leads may change the file.
    """

    def __init__(
        self, disk: Disk, files: StreamFiles, lock: files_door.Lock, options: WalOptions, report: list[Finding]
    ) -> None:
        self.disk, self.files, self.options, self.users = disk, files, options, 0
        self.upkeep = Lock()
        """Held by whoever writes snapshots or compacts: one at a time."""
        self.gate = Lock()
        self.held: Held | None = None
        self.generation = 0
        """Changes whenever another file takes the place of the WAL."""
        self.closed = False
        self._lock: files_door.Lock | None = lock
        self._report = report
        self._bell, self._ledger_lock = Condition(self.gate), Lock()
        self._buffer = Buffer(files.stream, self, self._stored, partial(find_tombstone, disk, files.root, files.stream))
        self._is_led, self._is_poisoned, self._claims = False, False, 0
        self._crowd = options.flush_entries * _backlog
        self._flusher: Thread | None = None

    # --- appending -----------------------------------------------------------------------------------------

    def load(self) -> Held:
        """What is known of the stream, which is read and recovered if nothing is.

        Raises:
            Gone: it was closed meanwhile.
            LogClosed: a flush has failed.
            OSError: it cannot be read.
        """
        with self.gate:
            return self.loaded()

    def loaded(self, *, salvage: bool = False) -> Held:
        """`load`, for a caller who holds the gate. `salvage`: see `recovery.load`."""
        if self._is_poisoned:
            raise LogClosed(f"A flush of {self.files.stream!r} failed, and nobody knows what is stored; reopen the log")
        if self.closed:
            raise Gone
        if self.held is None:
            self.held = load(self.disk, self.files, self._report, salvage=salvage)
            self._buffer.rewind(self.held)
        return self.held

    def submit(self, drafts: Sequence[Draft], expected_seq: int | None) -> Ticket:
        """Buffer an append. If far more is buffered than a flush takes, wait for the disk.

        Raises:
            Gone, LogClosed, ModelMismatch, StreamDeleted, SequenceConflict, LogFailed, OSError: nothing was buffered.
        """
        with self.gate:
            held = self.held
            if held is None or self.closed or self._is_poisoned:
                held = self.loaded()
            ticket = self._add(held, drafts, expected_seq)
            gathered = len(self._buffer.filling.lines)
            before = gathered - len(drafts)
            if self._flusher is None or before <= 0 or before < self.options.flush_entries <= gathered:
                self._ring()
        if gathered >= self._crowd:
            ticket.wait()
        return ticket

    def append(self, drafts: Sequence[Draft], expected_seq: int | None) -> list[AppendResult]:
        """Append, and return once that is durable.

        Whoever leads the flush makes the entries of all who wait for it: one thread that does it all is much faster
        than many that take turns at it.

        Raises:
            Gone, LogClosed, ModelMismatch, StreamDeleted, SequenceConflict, LogFull, LogFailed, OSError: nothing was
                written.
            AppendOutcomeUnknown: it may have been.
        """
        job = Job(drafts, expected_seq)
        return job.answer(self._flush_jobs([job]))

    def append_all(self, appends: Sequence[Append]) -> list[Answer]:
        """Append many times, with one flush. Each is answered as `append` would answer it."""
        jobs = [Job(append.drafts, append.expected_seq) for append in appends]
        return answers_of(jobs, self._flush_jobs(jobs))

    def _flush_jobs(self, jobs: list[Job]) -> Ticket:
        with self.gate:
            self.loaded()
            outcome = self._buffer.filling.outcome
            self._buffer.filling.jobs += jobs
            waiter = self._enlisted(outcome)
        try:
            self._await(outcome, waiter, None)
        except BaseException:
            with self.gate:  # A caller that is interrupted takes back what has no seq yet.
                self._buffer.filling.jobs = [job for job in self._buffer.filling.jobs if job not in jobs]
            raise
        return Ticket(self, outcome, [])

    def known(self, key: str) -> int | None:
        with self.gate:
            return self._buffer.known(self.loaded(), key)

    def submit_records(self, records: Sequence[Record], model: str) -> Ticket:
        """Buffer records of another log as they are. The caller holds the gate and has checked that they fit."""
        return self._buffer.add_records(self.loaded(), records, model)

    def _ring(self) -> None:
        """Wake the thread that flushes what nobody waits for: there are first entries, or enough of them."""
        if self._flusher is None:
            self._flusher = Thread(target=self._flush_always, name=f"wal {self.files.stream}", daemon=True)
            self._flusher.start()
        else:
            self._bell.notify_all()

    def _stored(self, held: Held, seq: int) -> Record:
        with closing(self.disk.open(self.files.wal, read_only=True)) as file:
            return next(View(self.disk, self.files, file, held.end).records(seq - 1, 1))

    def _add(self, held: Held, drafts: Sequence[Draft], expected_seq: int | None) -> Ticket:
        try:
            return self._buffer.add(held, drafts, expected_seq)
        except StreamDeleted:
            # The log closes a writer that is not loaded, and frees its lock: another process may restore the stream.
            if self._buffer.is_empty and not self.upkeep.locked():
                self.forget()
            raise

    # --- flushing ------------------------------------------------------------------------------------------

    def settle(self, outcome: Outcome, timeout_s: float | None) -> None:
        """Return once the outcome of a flush is known: by leading it, or by waiting for whoever does.

        Raises:
            TimeoutError: it is not known yet.
        """
        with self.gate:
            waiter = self._enlisted(outcome)
        self._await(outcome, waiter, None if timeout_s is None else monotonic() + timeout_s)

    def _enlisted(self, outcome: Outcome) -> Waiter:
        """Get in line for news of a flush. Who need not wait for any leads now. The caller holds the gate."""
        waiter = Waiter()
        if outcome.is_known:
            waiter.news.release()
        elif self._is_led or self._claims:
            outcome.waiters.append(waiter)
        else:
            self._is_led = waiter.leads = True
            waiter.news.release()
        return waiter

    def _await(self, outcome: Outcome, waiter: Waiter, deadline: float | None) -> None:
        while True:
            has_news = False
            try:
                has_news = waiter.news.acquire(timeout=-1 if deadline is None else max(0.0, deadline - monotonic()))
            finally:
                # Whoever leaves, interrupted or not, leaves nobody waiting for it.
                if not has_news:
                    with self.gate:
                        if waiter.leads:
                            self._pass_on()
                        elif waiter in outcome.waiters:
                            outcome.waiters.remove(waiter)
                if outcome.is_known:
                    outcome.pass_on()
            if has_news and waiter.leads:
                self._lead()
            if outcome.is_known:
                return
            if not has_news:
                raise TimeoutError(f"The append to {self.files.stream!r} is not flushed yet")
            with self.gate:
                waiter = self._enlisted(outcome)

    def flush(self) -> None:
        """Flush everything that was buffered before."""
        with self.gate:
            batch = self._buffer.filling if self._buffer.filling.lines else self._buffer.flushing
            if not batch.lines:
                return
        Ticket(self, batch.outcome, []).wait()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Lead while the block runs: nobody else flushes, but appends are buffered still."""
        with self.gate:
            self._claims += 1
            try:
                while self._is_led:
                    self._bell.wait()
            finally:
                self._claims -= 1
            self._is_led = True
        try:
            yield
        finally:
            with self.gate:
                self._pass_on()

    @contextmanager
    def quiet(self, *, is_read_again: bool = False, salvage: bool = False) -> Iterator[Held]:
        """Nothing is buffered and nobody appends while the block runs. The caller leads.

        If the stream `is_read_again`, whatever was known of it is forgotten first. `salvage`: see `recovery.load`.

        Raises:
            Gone, LogClosed, OSError: as `load`.
        """
        while True:
            self.write_out()
            with self.gate:
                if self._buffer.is_empty:
                    if is_read_again:
                        self.forget()
                    yield self.loaded(salvage=salvage)
                    return

    def write_out(self) -> None:
        """Write and flush what is buffered now. The caller leads; failures go to the tickets."""
        failure: RunstateError | None = AppendOutcomeUnknown("The flush was interrupted; send the same keys again")
        try:
            with self.gate:
                self._place_jobs()
                batch = self._buffer.begin_flush()
            failure = self._write(batch) if batch.lines else None
        finally:
            # Also when the caller who leads was interrupted: the others must not wait for ever.
            self.end_flush(failure)

    def _place_jobs(self) -> None:
        """Buffer the appends of those who wait. The caller leads, and holds the gate."""
        for job in self._buffer.filling.jobs:
            try:
                job.ticket = self._add(self.loaded(), job.drafts, job.expected_seq)
            except Exception as error:  # noqa: BLE001 - it is raised by the thread whose append this is
                job.error = error

    def end_flush(self, failure: RunstateError | None) -> None:
        """Tell everybody what became of the flush; if nobody knows, refuse everything from now on. The caller leads."""
        with self.gate:
            self._is_poisoned |= isinstance(failure, AppendOutcomeUnknown)
            self._buffer.end_flush(self.held, failure)

    def _lead(self) -> None:
        try:
            self.write_out()
        finally:
            with self.gate:
                self._pass_on()

    def _pass_on(self) -> None:
        """Appoint whoever has waited longest to lead, if nobody has a claim. The caller holds the gate, and led."""
        waiters = self._buffer.filling.outcome.waiters
        if self._claims or not waiters:
            self._is_led = False
            self._bell.notify_all()
        else:
            waiter = waiters.popleft()
            waiter.leads = True
            waiter.news.release()

    def _is_due(self) -> bool:
        return len(self._buffer.filling.lines) >= self.options.flush_entries

    def _flush_always(self) -> None:
        interval_s = self.options.flush_interval_ms / 1000
        while True:
            with self.gate:
                while not self.closed:
                    filling = self._buffer.filling
                    left_s = filling.born + interval_s - monotonic()
                    if not filling.lines or self._is_led or self._claims:
                        self._bell.wait()
                    elif self._is_due() or left_s <= 0:
                        break
                    else:
                        self._bell.wait(left_s)
                if self.closed:
                    return
                self._is_led = True
            self._lead()

    def _write(self, batch: Batch) -> RunstateError | None:
        """Write and flush a batch. What went wrong, if anything did."""
        held, last = self.held, batch.last
        if held is None or last is None:
            return LogClosed()
        try:
            if held.file is None:
                held.file = create_locked(self.disk, self.files.wal)
            else:
                check_in_place(self.disk, self.files.wal, held.file, held.end)
            self._reserve(held, last.seq, batch)
        except FileChanged as error:
            return file_lost(error)
        except OSError as error:
            return translate(error)
        return write_flushed(self.disk, self.files.wal, held.file, held.end, b"".join(batch.lines))

    def _reserve(self, held: Held, seq: int, batch: Batch) -> None:
        """Make sure that no seq up to this one is ever given out again, and that the stream records its model."""
        model = batch.model
        if seq > held.ledger.reserved:
            ends = {"last_seq": held.tail_seq, "floor_seq": held.lost_seq, "model": model or UNSET}
            is_new = not (held.ledger.reserved or held.tail_seq)
            if (is_new or held.ledger.is_all_adopted) and batch.adopted == len(batch.lines):
                self.amend_ledger(reserved=seq, adopted=seq, **ends)
            else:
                self.amend_ledger(reserved=seq + reserve_step, **ends)
        elif (held.ledger.model or "") != model:
            self.amend_ledger(model=model or UNSET)

    def amend_ledger(self, **changes: object) -> None:
        """
        Raises:
            OSError: the ledger may stand as it was.
        """
        with self._ledger_lock:
            if (held := self.held) is not None:
                ledger = msgspec.structs.replace(held.ledger, **changes)
                write_ledger(self.disk, self.files, ledger)
                held.ledger = ledger

    # --- letting go ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush what was accepted, and let go of the file, the thread and the lock."""
        with self.gate:
            self.closed = True
            self._bell.notify_all()
        with suppress(RunstateError):  # Told to those who hold the tickets.
            self.flush()
        if self._flusher is not None:
            self._flusher.join()
        with self.claimed():
            held = self.held
            if held is not None and held.tail_seq > held.ledger.last_seq and not self._is_poisoned:
                with suppress(OSError):
                    self.amend_ledger(last_seq=held.tail_seq)
            self.forget()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def forget(self) -> None:
        """Close the file and keep the lock; the next append reads it again. The caller leads, or nothing is stored."""
        held, self.held = self.held, None
        if held is not None and held.file is not None:
            with suppress(OSError):
                held.file.close()
