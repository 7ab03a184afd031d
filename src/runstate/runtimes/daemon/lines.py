"""Who stands in line, and who holds what: found in the state once, and kept up to date with every event."""

from __future__ import annotations

from collections.abc import KeysView

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

_queue_events = QueuePushed | QueueTaken | QueueCompleted | QueueFailed | QueueItemRetry | QueueItemDead


class Lines:
    """For each queue the items that can be taken, first come first served; for each worker the items that it holds.

    An item that comes back, failed or given back, goes to the end of its line: it must not keep others from being done.
    """

    def __init__(self, state: MaterializedState) -> None:
        self._ready: dict[str, dict[str, None]] = {}
        self._held: dict[str, dict[str, str]] = {}
        for key, queue in state.queue_items.items():
            namespace = key.rpartition("/")[0]
            for item in queue.values():
                self._enter(key, namespace, item)

    def first(self, queue_key: str) -> str | None:
        """The item that is next, if there is one."""
        return next(iter(self._ready.get(queue_key, ())), None)

    def held(self, worker_key: str) -> dict[str, str]:
        """The items that a worker holds, each with the key of its queue."""
        return self._held.get(worker_key, {})

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
            self._held.setdefault(scoped(namespace, item.worker_name), {})[item.id] = key

    def _leave(self, key: str, namespace: str, item: QueueItem) -> None:
        if item.worker_name is not None:
            places, mine = self._held, scoped(namespace, item.worker_name)
            _drop(places, mine, item.id)
        else:
            _drop(self._ready, key, item.id)


def _drop(places: dict[str, dict[str, str]] | dict[str, dict[str, None]], key: str, item_id: str) -> None:
    place = places.get(key)
    if place is not None:
        place.pop(item_id, None)
        if not place:
            del places[key]
