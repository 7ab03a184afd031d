"""The daemon itself: opens its log, checkpoints in the background, and closes in good order."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Self

from runstate.errors import LogBusy, RunstateError
from runstate.logs.log import EventLog, Record
from runstate.logs.registry import installed_schemes, open_log
from runstate.models.daemon.events import default_daemon
from runstate.runtimes.daemon.decisions import OnLost
from runstate.runtimes.daemon.leases import Clock
from runstate.runtimes.daemon.work import WorkQueues, nap_s_max

logger = logging.getLogger("runstate.runtimes.daemon")

checkpoint_every_s_default = 60.0
failures_max_default = 3
lease_s_default = 30.0


def url_of(place: str | Path) -> str:
    """The URL of a daemon's log: the place itself if it is one, else the directory's WAL."""
    # A URL of an unknown scheme is refused by whoever opens it. As a directory it would have its password in its name.
    is_url = "://" in str(place) or str(place).partition(":")[0] in installed_schemes()
    return str(place) if is_url else f"wal:{place}"


class Daemon(WorkQueues):
    """State in memory, every change of it durable first. Safe to share between threads."""

    def __init__(
        self,
        log: EventLog,
        *,
        name: str = default_daemon,
        checkpoint_every_s: float | None = checkpoint_every_s_default,
        failures_max: int = failures_max_default,
        lease_s: float = lease_s_default,
        clock: Clock = time.monotonic,
        on_lost: OnLost | None = None,
    ) -> None:
        """Take over a log. `checkpoint_every_s` None leaves checkpoints to the caller. `on_lost` is called, once, when
        the log takes nothing more because nobody knows what is stored: then close the daemon and open it again.

        Raises:
            LogBusy: another daemon has it.
        """
        if failures_max < 1:
            raise ValueError("failures_max is at least 1")
        if not lease_s > 0:
            raise ValueError("lease_s is more than 0")
        self.failures_max = failures_max
        self._every_s = checkpoint_every_s
        self._closing, self._woken = Event(), Event()
        self._checkpointing = Lock()
        super().__init__(log, name, lease_s=lease_s, clock=clock, on_lost=on_lost)
        self._checkpointed = 0
        self._housekeeper = Thread(target=self._keep_house, name=f"daemon {name}", daemon=True)
        self._housekeeper.start()

    @classmethod
    def open(cls, place: str | Path, *, create: bool = True, **options: Any) -> Self:
        """A daemon in a directory, or over the log at a URL. The options are those of the constructor.

        Raises:
            LogBusy: another daemon is at work there; it can be asked through its socket, if it has one.
            LogNotFound: there is nothing, and `create` is false.
            SnapshotTooNew, LogDamaged, NotALog, LogFailed: it cannot be read; it was left as it is.
        """
        log = open_log(url_of(place), create=create)
        try:
            return cls(log, **options)
        except LogBusy as busy:
            log.close()
            raise LogBusy(
                f"Another daemon is at work in {place}: ask it through its socket, or try again when it has ended"
            ) from busy
        except BaseException:
            log.close()
            raise

    def checkpoint(self) -> int:
        """Keep the state on file, and drop the events that are no longer needed. Writers go on meanwhile.

        Returns the seq of the snapshot; 0 if nothing has ever happened.

        Raises:
            LogFull, LogFailed: nothing that is needed was dropped.
        """
        with self._checkpointing:
            state, seq, last = self._decided(lambda: (self._state.copy(), self._seq, self._last))
            self._settle(last)  # A snapshot is never ahead of its log.
            if seq > self._checkpointed:
                with self._watching():
                    self._journal.checkpoint(state, seq)
                self._checkpointed = seq
            return seq

    def compact(self) -> int:
        """Drop the events that the snapshot on file makes needless, without a new one. Returns that snapshot's seq."""
        with self._checkpointing, self._watching():
            return self._journal.compact()

    def events(self, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        """Events as the log holds them.

        Raises:
            Truncated: a checkpoint has dropped events after `after_seq`.
        """
        return self._journal.read(after_seq, limit)

    def dismiss(self) -> None:
        """Send all workers on record home, those with a lease too: what they hold is given back, and nobody is blamed.

        For the end of a daemon that serves others. `close` alone leaves leases standing: a daemon that was opened for
        a moment sends nobody home.
        """
        self._dismiss(self.look(lambda state: list(state.workers)))

    def close(self) -> None:
        """Stop the workers of this process, giving back what they hold, flush, and let go of the log.

        A worker with a lease stays on record, and has the next daemon's lease to be heard of; see `dismiss`.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._woken.set()
        self._housekeeper.join()
        try:
            self._dismiss(self._leases.held())
            self.flush()
        finally:
            with self._lock:
                self._is_closed = True
                for bells in self._bells.values():
                    for bell in bells:
                        bell()
            self._journal.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _dismiss(self, keys: list[str]) -> None:
        """Stop these workers. Where that cannot be stored, the next daemon finds them gone."""
        try:
            for key in keys:
                namespace, _, name = key.rpartition("/")
                self.stop_worker(name, namespace=namespace)
        except RunstateError as error:
            logger.warning(
                "%s: workers could not be stopped, and are gone when it is opened again: %s", self.name, error
            )

    # --- in the background -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._woken.set()

    def _keep_house(self) -> None:
        due = None if self._every_s is None else time.monotonic() + self._every_s
        while not self._closing.is_set():
            with self._lock:
                waits = [self._leases.next_end_s(), None if due is None else max(0.0, due - time.monotonic())]
            self._woken.wait(min(wait for wait in (nap_s_max, *waits) if wait is not None))
            self._woken.clear()
            if self._closing.is_set():
                return
            try:
                self._decided(self._bury)
                if due is not None and time.monotonic() >= due:
                    due = time.monotonic() + (self._every_s or 0)
                    self.checkpoint()
            except (RunstateError, OSError) as error:
                logger.warning(
                    "%s: the state could not be kept on file, and stands in the log and in memory: %s", self.name, error
                )
