"""Who stands in line, and who holds what: found in the state once, and kept up to date with every event."""

from __future__ import annotations

from collections.abc import Collection, KeysView
from typing import TypeVar

from runstate.models.daemon import MaterializedState, QueueItem, scoped
from runstate.models.daemon.events import (
    DaemonEvent,
    QueueCompleted,
    QueueFailed,
    QueueItemDead,
    QueueItemRetry,
    QueuePushed,
    QueueTaken,
)

T = TypeVar("T")
_queue_events = QueuePushed | QueueTaken | QueueCompleted | QueueFailed | QueueItemRetry | QueueItemDead


class Lines:
    """For each queue the items that can be taken, first come first served; for each worker the items that it holds.

    An item that comes back, failed or given back, goes to the end of its line: it must not keep others from being done.
    """

    def __init__(self, state: MaterializedState) -> None:
        self._ready: dict[str, dict[str, None]] = {}
        self._held: dict[str, dict[tuple[str, str], None]] = {}
        for key, queue in state.queue_items.items():
            namespace = key.rpartition("/")[0]
            for item in queue.values():
                self._enter(key, namespace, item)

    def first(self, queue_key: str) -> str | None:
        """The item that is next, if there is one."""
        return next(iter(self._ready.get(queue_key, ())), None)

    def held(self, worker_key: str) -> Collection[tuple[str, str]]:
        """The items that a worker holds: the key of the queue and the item's id, which two queues may share."""
        return self._held.get(worker_key, {}).keys()

    def holders(self) -> KeysView[str]:
        """The workers that hold something."""
        return self._held.keys()

    def before(self, state: MaterializedState, event: DaemonEvent) -> None:
        """The event is about to be applied."""
        if isinstance(event, _queue_events):
            self._move(state, event, leave=True)

    def after(self, state: MaterializedState, event: DaemonEvent) -> str | None:
        """The event was applied. The key of the queue in which somebody may find something to take now."""
        if not isinstance(event, _queue_events):
            return None
        self._move(state, event, leave=False)
        return scoped(event.namespace, event.queue_name)

    def _move(self, state: MaterializedState, event: _queue_events, *, leave: bool) -> None:
        key = scoped(event.namespace, event.queue_name)
        item = state.queue_items.get(key, {}).get(event.item_id)
        if item is not None:
            (self._leave if leave else self._enter)(key, event.namespace, item)

    def _enter(self, key: str, namespace: str, item: QueueItem) -> None:
        if item.status in ("pending", "failed"):
            self._ready.setdefault(key, {})[item.id] = None
        elif item.worker_name is not None:
            self._held.setdefault(scoped(namespace, item.worker_name), {})[key, item.id] = None

    def _leave(self, key: str, namespace: str, item: QueueItem) -> None:
        if item.worker_name is not None:
            _drop(self._held, scoped(namespace, item.worker_name), (key, item.id))
        else:
            _drop(self._ready, key, item.id)


def _drop(places: dict[str, dict[T, None]], key: str, item: T) -> None:
    place = places.get(key)
    if place is not None:
        place.pop(item, None)
        if not place:
            del places[key]
