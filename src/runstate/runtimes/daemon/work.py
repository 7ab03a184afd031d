"""Work queues over a daemon's events: push, take, complete, fail, retry, and workers that may die at any moment.

An item is done at least once, and its completion stands in the log exactly once: only who holds an item can complete or
fail it, and two never hold one. An item that has failed goes back to the end of its line, until it has failed so often
that it is dead; what a worker held when it died has failed. All of that is written with the events of the tables alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from threading import Event
from typing import Any, Self
from uuid import uuid4

import msgspec

from runstate.errors import InvalidTransition
from runstate.logs.buffering import Ticket
from runstate.models.daemon import DaemonEvent, MaterializedState, QueueItem, scoped
from runstate.models.daemon.events import (
    QueueCompleted,
    QueueFailed,
    QueueItemDead,
    QueueItemRetry,
    QueuePushed,
    QueueTaken,
    WorkerItemDispatched,
    WorkerStarted,
    WorkerStopped,
)
from runstate.models.model import Draft, stable_uuid
from runstate.runtimes.daemon.decisions import Bell, Decisions
from runstate.runtimes.daemon.leases import Lease

nap_s_max = 3600.0
"""Whoever waits looks again after so long at the latest: no wait may be longer than the platform can count."""


class QueueStats(msgspec.Struct, frozen=True):
    """How a queue stands."""

    queue: str
    pending: int
    taken: int
    failed: int
    dead: int
    workers: int


class WorkQueues(Decisions):
    """What workers and those who give them work can ask of a daemon. Every answer is durable."""

    failures_max: int
    """An item that has failed so often is dead."""

    def push(self, queue: str, data: Any = None, *, item_id: str = "", namespace: str = "", event_id: str = "") -> str:
        """Put an item at the end of a queue. Returns its id.

        Raises:
            InvalidTransition: the queue holds an item of that id.
            and what `emit` raises. With an `event_id`, it may be sent again, and gets the same answer.
        """
        item_id = item_id or (stable_uuid(namespace, queue, event_id) if event_id else str(uuid4()))
        at_ms = time.time_ns() // 1_000_000
        self.emit(QueuePushed(queue, item_id, data, at_ms, namespace=namespace, event_id=event_id))
        return item_id

    def worker(
        self,
        name: str,
        queue: str,
        *,
        concurrency: int = 1,
        namespace: str = "",
        lease_s: float | None = None,
        project_root: str = "",
        runbook_hash: str = "",
    ) -> Worker:
        """Start a worker on a queue. It is alive as long as its handle is not stopped or left, or, with `lease_s`, as
        long as it is heard of so often. What an earlier worker of that name held has failed.

        Raises:
            LogBusy: somebody holds a worker of that name.
            ValueError: `lease_s` is no time.
        """
        if lease_s is not None and not lease_s > 0:
            raise ValueError("lease_s is more than 0")
        key = scoped(namespace, name)
        started = WorkerStarted(name, project_root, runbook_hash, queue, concurrency, namespace=namespace)

        def decide() -> tuple[Ticket, Lease]:
            self._leases.check_free(key)
            before = self._farewell(key, f"the worker {key} was started anew") if key in self._state.workers else []
            ticket = self._write([*before, started])
            return ticket, self._leases.grant(key, held=lease_s is None, lasts_s=lease_s)

        ticket, lease = self._decided(decide)
        try:
            self._settle(ticket)
        except BaseException:
            self._disown(key, lease)
            raise
        self._wake()
        return Worker(self, name, namespace, queue, lease)

    def take(
        self,
        worker: str,
        *,
        queue: str = "",
        namespace: str = "",
        wait_s: float = 0.0,
        pipeline_id: str = "",
        lease: Lease | None = None,
    ) -> QueueItem | None:
        """Take the next item for a worker, waiting for one if need be; None if there is none.

        A worker that holds as many items as its concurrency allows gets no more before one of them is over.

        Raises:
            InvalidTransition: there is no such worker, it is not the caller's, or it works on another `queue`.
        """
        until = time.monotonic() + wait_s
        while True:
            rung = Event()
            taken = self.try_take(worker, queue, namespace, pipeline_id, lease, rung.set)
            left_s = until - time.monotonic()
            if taken is not None:
                return taken
            if left_s <= 0 or not rung.wait(min(left_s, nap_s_max)):
                self.forget(rung.set)
            if left_s <= 0:
                return None

    def try_take(
        self, worker: str, queue: str, namespace: str, pipeline_id: str, lease: Lease | None, bell: Bell
    ) -> QueueItem | None:
        """Take an item if there is one; if not, ring the bell, once, when it is worth another try.

        Whoever does not wait for the bell any more lets it be forgotten.
        """
        key = scoped(namespace, worker)

        def decide() -> tuple[Ticket, QueueItem] | None:
            self._bury()
            self._leases.renew(key, lease)
            record = self._state.workers[key]
            if queue not in ("", record.queue_name):
                raise InvalidTransition(f"The worker {key!r} works on {record.queue_name!r}", worker=key)
            queue_key = scoped(namespace, record.queue_name)
            item_id = self._lines.first(queue_key)
            if item_id is None or len(self._lines.held(key)) >= record.concurrency:
                self._bells.setdefault(queue_key, {})[bell] = None
                return None
            events: list[DaemonEvent] = [QueueTaken(record.queue_name, item_id, worker, namespace=namespace)]
            if pipeline_id:
                events.append(WorkerItemDispatched(worker, item_id, pipeline_id, namespace=namespace))
            ticket = self._write(events)
            return ticket, self._state.queue_items[queue_key][item_id]

        decided = self._decided(decide)
        if decided is None:
            return None
        self._settle(decided[0])
        return decided[1]

    def complete(
        self, queue: str, item_id: str, *, worker: str = "", namespace: str = "", lease: Lease | None = None
    ) -> None:
        """An item is done. Said for a worker, it must hold the item; said for none, anybody may hold it.

        Raises:
            InvalidTransition: nobody holds the item, or somebody else does.
        """
        done = QueueCompleted(queue, item_id, namespace=namespace)
        self._settle(self._decided(lambda: self._write([self._held(done, worker, lease)])))

    def fail(
        self,
        queue: str,
        item_id: str,
        error: str,
        *,
        worker: str = "",
        namespace: str = "",
        lease: Lease | None = None,
    ) -> QueueItem:
        """An item has failed, and goes back to its line; dead, if it has failed too often. Returns how it stands now.

        Raises:
            InvalidTransition: nobody holds the item, or somebody else does.
        """
        failed = QueueFailed(queue, item_id, error, namespace=namespace)

        def decide() -> tuple[Ticket, QueueItem]:
            self._held(failed, worker, lease)
            ticket = self._write(self._failure(failed))
            return ticket, self._state.queue_items[scoped(namespace, queue)][item_id]

        ticket, item = self._decided(decide)
        self._settle(ticket)
        return item

    def retry(self, queue: str, item_id: str, *, namespace: str = "") -> None:
        """Let an item that has failed, or is dead, begin anew.

        Raises:
            InvalidTransition: it is neither.
        """
        again = QueueItemRetry(queue, item_id, namespace=namespace)

        def decide() -> Ticket:
            self._check(again)
            if self._state.queue_items[scoped(namespace, queue)][item_id].status == "taken":
                raise InvalidTransition(f"The item {item_id!r} is taken; whoever holds it may fail it", item=item_id)
            return self._write([again])

        self._settle(self._decided(decide))

    def heartbeat(self, worker: str, *, namespace: str = "", lease: Lease | None = None) -> None:
        """A worker is alive.

        Raises:
            InvalidTransition: it is not: its lease has run out, or it never was.
        """
        key = scoped(namespace, worker)

        def decide() -> None:
            self._bury()
            self._leases.renew(key, lease)

        self._decided(decide)

    def stop_worker(
        self, worker: str, *, namespace: str = "", error: str | None = None, lease: Lease | None = None
    ) -> None:
        """A worker is over. What it holds is given back as if it had never been taken; with an `error`, it has failed.

        A worker that is gone already stays gone.
        """
        key = scoped(namespace, worker)

        def decide() -> Ticket:
            if key not in self._state.workers or (lease is not None and not self._leases.holds(lease)):
                return self._last
            return self._write(self._farewell(key, error))

        self._settle(self._decided(decide))

    # --- looking ---------------------------------------------------------------------------------------------

    def items(self, queue: str, *, namespace: str = "", status: str = "", limit: int = 1000) -> list[QueueItem]:
        """The items of a queue in the order of their pushes. A queue that nobody has pushed to is an empty one."""
        return self.look(lambda state: items_in(state, queue, namespace=namespace, status=status, limit=limit))

    def stats(self) -> list[QueueStats]:
        """All queues that hold items or have workers, by name."""
        return self.look(stats_of)

    # --- how -------------------------------------------------------------------------------------------------

    def _disown(self, key: str, lease: Lease) -> None:
        """Nobody got the handle of a worker: if one is on record, it lives as long as it is heard of."""
        with self._lock:
            if self._leases.holds(lease):
                self._leases.grant(key)
        self._wake()

    def _wake(self) -> None:
        """A lease was granted, or a holder is gone; whoever watches them should look again."""

    def _check(self, event: DaemonEvent) -> None:
        super()._check(event)
        if isinstance(event, QueueTaken):
            key = scoped(event.namespace, event.worker_name)
            if len(self._lines.held(key)) >= self._state.workers[key].concurrency:
                raise InvalidTransition(f"The worker {key!r} holds as many items as it may", worker=key)

    def _append(self, events: Sequence[DaemonEvent], drafts: Sequence[Draft]) -> Ticket:
        ticket = super()._append(events, drafts)
        if any(isinstance(event, WorkerStopped) for event in events) and self._orphaned():
            self._wake()
        return ticket

    def _orphaned(self) -> set[str]:
        """Who holds something and is not on record."""
        return self._lines.holders() - self._state.workers.keys()

    def _held(self, event: QueueCompleted | QueueFailed, worker: str, lease: Lease | None) -> DaemonEvent:
        self._bury()
        if worker:
            key = scoped(event.namespace, worker)
            self._leases.renew(key, lease)
            if (scoped(event.namespace, event.queue_name), event.item_id) not in self._lines.held(key):
                raise InvalidTransition(
                    f"The worker {key!r} does not hold the item {event.item_id!r}", worker=key, item=event.item_id
                )
        else:
            self._check(event)
        return event

    def _failure(self, event: QueueFailed) -> list[DaemonEvent]:
        item = self._state.queue_items[scoped(event.namespace, event.queue_name)][event.item_id]
        if item.failure_count + 1 < self.failures_max:
            return [event]
        return [event, QueueItemDead(event.queue_name, event.item_id, namespace=event.namespace)]

    def _farewell(self, key: str, error: str | None) -> list[DaemonEvent]:
        """What is to be written when a worker is over: what becomes of its items, and that it is."""
        events: list[DaemonEvent] = []
        for queue_key, item_id in self._lines.held(key):
            namespace, _, queue = queue_key.rpartition("/")
            if error is None:
                events.append(QueueItemRetry(queue, item_id, namespace=namespace))
            else:
                events += self._failure(QueueFailed(queue, item_id, error, namespace=namespace))
        worker = self._state.workers.get(key)
        return events if worker is None else [*events, WorkerStopped(worker.name, namespace=worker.namespace)]

    def _bury(self) -> None:
        """Let those be gone whose lease has run out, and whoever holds something and is not on record."""
        for key in {*self._leases.expired(), *self._orphaned()}:
            self._write(self._farewell(key, f"the worker {key} is gone"))


def _workers_on(state: MaterializedState, queue_key: str) -> int:
    return sum(scoped(worker.namespace, worker.queue_name) == queue_key for worker in state.workers.values())


def items_in(state: MaterializedState, queue: str, *, namespace: str, status: str, limit: int) -> list[QueueItem]:
    """What `WorkQueues.items` tells of a state."""
    items = state.queue_items.get(scoped(namespace, queue), {}).values()
    return list(islice((item for item in items if status in ("", item.status)), limit))


def stats_of(state: MaterializedState) -> list[QueueStats]:
    """What `WorkQueues.stats` tells of a state."""
    keys = state.queue_items.keys() | {scoped(w.namespace, w.queue_name) for w in state.workers.values()}
    found = []
    for key in sorted(keys):
        counts = dict.fromkeys(("pending", "taken", "failed", "dead"), 0)
        for item in state.queue_items.get(key, {}).values():
            counts[item.status] += 1
        found.append(QueueStats(key, **counts, workers=_workers_on(state, key)))
    return found


class Worker:
    """A worker in this process, from its start until it is stopped. Threads may share it, up to its concurrency."""

    def __init__(self, queues: WorkQueues, name: str, namespace: str, queue: str, lease: Lease) -> None:
        self.name, self.namespace, self.queue = name, namespace, queue
        self._queues, self.lease = queues, lease

    def take(self, *, wait_s: float = 0.0, pipeline_id: str = "") -> QueueItem | None:
        """See `WorkQueues.take`."""
        return self._queues.take(
            self.name, namespace=self.namespace, wait_s=wait_s, pipeline_id=pipeline_id, lease=self.lease
        )

    def complete(self, item_id: str) -> None:
        """See `WorkQueues.complete`."""
        self._queues.complete(self.queue, item_id, worker=self.name, namespace=self.namespace, lease=self.lease)

    def fail(self, item_id: str, error: str) -> QueueItem:
        """See `WorkQueues.fail`."""
        return self._queues.fail(
            self.queue, item_id, error, worker=self.name, namespace=self.namespace, lease=self.lease
        )

    def heartbeat(self) -> None:
        """See `WorkQueues.heartbeat`."""
        self._queues.heartbeat(self.name, namespace=self.namespace, lease=self.lease)

    def stop(self, error: str | None = None) -> None:
        """See `WorkQueues.stop_worker`."""
        self._queues.stop_worker(self.name, namespace=self.namespace, error=error, lease=self.lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.stop(None if error is None else repr(error))
