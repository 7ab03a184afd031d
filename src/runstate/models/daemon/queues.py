"""What events do to workers and queues."""

from __future__ import annotations

from msgspec.structs import replace

from runstate.models.daemon import events as e
from runstate.models.daemon.lines import id_of
from runstate.models.daemon.state import MaterializedState, QueueItem, WorkerRecord, scoped


def worker_started(state: MaterializedState, event: e.WorkerStarted) -> None:
    state.workers[scoped(event.namespace, event.worker_name)] = WorkerRecord(
        event.worker_name,
        event.namespace,
        event.project_root,
        event.runbook_hash,
        event.queue_name,
        event.concurrency,
        {},
    )


def worker_stopped(state: MaterializedState, event: e.WorkerStopped) -> None:
    state.workers.pop(scoped(event.namespace, event.worker_name), None)


def item_dispatched(state: MaterializedState, event: e.WorkerItemDispatched) -> None:
    key = scoped(event.namespace, event.worker_name)
    worker = state.workers.get(key)
    if worker is None:
        return
    item = state.queue_items.get(scoped(event.namespace, worker.queue_name), {}).get(event.item_id)
    if item is not None and item.status == "taken" and item.worker_name == event.worker_name:
        state.workers[key] = replace(worker, dispatched=worker.dispatched | {event.item_id: event.pipeline_id})


def queue_pushed(state: MaterializedState, event: e.QueuePushed) -> None:
    key = scoped(event.namespace, event.queue_name)
    queue = state.queue_items.get(key)
    if queue is None:
        queue = state.queue_items[key] = {}
    known = queue.pop(event.item_id, None)
    if known is not None:
        _take_back(state, event.namespace, event.queue_name, known)
    queue[event.item_id] = QueueItem(event.item_id, event.data, event.pushed_at_epoch_ms, "pending", None, None, 0, ())


def queue_taken(state: MaterializedState, event: e.QueueTaken) -> None:
    queue, item = _item(state, event)
    if item is not None and item.status != "dead":
        queue[item.id] = QueueItem(
            item.id,
            item.data,
            item.pushed_at_epoch_ms,
            "taken",
            event.worker_name,
            item.error,
            item.failure_count,
            item.failed_by,
        )


def queue_completed(state: MaterializedState, event: e.QueueCompleted) -> None:
    queue, item = _item(state, event)
    if item is not None:
        del queue[item.id]
        if not queue:
            del state.queue_items[scoped(event.namespace, event.queue_name)]


def queue_failed(state: MaterializedState, event: e.QueueFailed) -> None:
    queue, item = _item(state, event)
    if item is not None and item.status != "dead":
        failure = id_of(event)
        failed_by = item.failed_by if failure in item.failed_by else (*item.failed_by, failure)
        queue[item.id] = QueueItem(
            item.id,
            item.data,
            item.pushed_at_epoch_ms,
            "failed",
            None,
            event.error,
            len(failed_by),
            failed_by,
        )


def item_retry(state: MaterializedState, event: e.QueueItemRetry) -> None:
    queue, item = _item(state, event)
    if item is not None:
        queue[item.id] = QueueItem(item.id, item.data, item.pushed_at_epoch_ms, "pending", None, None, 0, ())


def item_dead(state: MaterializedState, event: e.QueueItemDead) -> None:
    queue, item = _item(state, event)
    if item is not None:
        queue[item.id] = replace(item, status="dead", worker_name=None)


_ItemEvent = e.QueueTaken | e.QueueCompleted | e.QueueFailed | e.QueueItemRetry | e.QueueItemDead
_nothing: dict[str, QueueItem] = {}


def _item(state: MaterializedState, event: _ItemEvent) -> tuple[dict[str, QueueItem], QueueItem | None]:
    """The item that an event is about, off the worker that had it: what happens to it next, happens elsewhere."""
    queue = state.queue_items.get(scoped(event.namespace, event.queue_name))
    if queue is None:
        return _nothing, None
    item = queue.get(event.item_id)
    if item is not None and item.worker_name is not None:
        _take_back(state, event.namespace, event.queue_name, item)
    return queue, item


def _take_back(state: MaterializedState, namespace: str, queue_name: str, item: QueueItem) -> None:
    key = scoped(namespace, item.worker_name or "")
    worker = state.workers.get(key)
    if worker is not None and worker.queue_name == queue_name and item.id in worker.dispatched:
        left = {item_id: pipeline for item_id, pipeline in worker.dispatched.items() if item_id != item.id}
        state.workers[key] = replace(worker, dispatched=left)
