"""The other end of a daemon's socket: what a `Daemon` can be asked, asked from another process."""

from __future__ import annotations

import socket
from pathlib import Path
from threading import Lock
from typing import Any, Self, TypeVar

import msgspec

from runstate.errors import LogNotFound
from runstate.models.daemon import DAEMON, DaemonEvent, MaterializedState, QueueItem
from runstate.models.daemon.lines import encode
from runstate.runtimes.daemon import wire
from runstate.runtimes.daemon.work import QueueStats

T = TypeVar("T")


class Client:
    """One connection to a daemon. Threads may share it, but a take that waits keeps the others waiting."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            LogNotFound: no daemon listens there.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lock = Lock()
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise LogNotFound(f"No daemon listens at {path}: {error}", path=str(path)) from error
        self._answers = self._socket.makefile("rb")

    def emit(self, event: DaemonEvent, *, durable: bool = True) -> int:
        """See `Daemon.emit`."""
        return self._ask(wire.Emit(event=msgspec.Raw(encode(event)), durable=durable), _number)

    @property
    def state(self) -> MaterializedState:
        """See `Daemon.state`."""
        return DAEMON.load(bytes(self._ask(wire.State(), _raw)))

    def push(self, queue: str, data: Any = None, *, item_id: str = "", namespace: str = "", event_id: str = "") -> str:
        """See `Daemon.push`."""
        raw = msgspec.Raw(msgspec.json.encode(data))
        asked = wire.Push(queue=queue, data=raw, item_id=item_id, namespace=namespace, event_id=event_id)
        return self._ask(asked, _text)

    def worker(
        self, name: str, queue: str, *, concurrency: int = 1, namespace: str = "", lease_s: float | None = None
    ) -> RemoteWorker:
        """Start a worker. Without `lease_s`, it is alive as long as this connection is."""
        asked = wire.StartWorker(name=name, queue=queue, concurrency=concurrency, namespace=namespace, lease_s=lease_s)
        self._ask(asked, _nothing)
        return RemoteWorker(self, name, namespace, queue)

    def take(
        self, worker: str, *, queue: str = "", namespace: str = "", wait_s: float = 0.0, pipeline_id: str = ""
    ) -> QueueItem | None:
        """See `Daemon.take`."""
        asked = wire.Take(worker=worker, queue=queue, namespace=namespace, wait_s=wait_s, pipeline_id=pipeline_id)
        return self._ask(asked, _item_or_none)

    def complete(self, queue: str, item_id: str, *, worker: str = "", namespace: str = "") -> None:
        """See `Daemon.complete`."""
        self._ask(wire.Complete(queue=queue, item_id=item_id, worker=worker, namespace=namespace), _nothing)

    def fail(self, queue: str, item_id: str, error: str, *, worker: str = "", namespace: str = "") -> QueueItem:
        """See `Daemon.fail`."""
        asked = wire.Fail(queue=queue, item_id=item_id, error=error, worker=worker, namespace=namespace)
        return self._ask(asked, _item)

    def retry(self, queue: str, item_id: str, *, namespace: str = "") -> None:
        """See `Daemon.retry`."""
        self._ask(wire.Retry(queue=queue, item_id=item_id, namespace=namespace), _nothing)

    def heartbeat(self, worker: str, *, namespace: str = "") -> None:
        """See `Daemon.heartbeat`."""
        self._ask(wire.Heartbeat(worker=worker, namespace=namespace), _nothing)

    def stop_worker(self, worker: str, *, namespace: str = "", error: str | None = None) -> None:
        """See `Daemon.stop_worker`."""
        self._ask(wire.StopWorker(worker=worker, namespace=namespace, error=error), _nothing)

    def items(self, queue: str, *, namespace: str = "", status: str = "", limit: int = 1000) -> list[QueueItem]:
        """See `Daemon.items`."""
        return self._ask(wire.Items(queue=queue, namespace=namespace, status=status, limit=limit), _items)

    def stats(self) -> list[QueueStats]:
        """See `Daemon.stats`."""
        return self._ask(wire.Stats(), _stats)

    @property
    def seq(self) -> int:
        """See `Daemon.seq`."""
        return self._ask(wire.Seq(), _number)

    def events(self, *, after_seq: int = 0, limit: int = 1000) -> list[wire.Event]:
        """Events in order; see `Daemon.events`."""
        return self._ask(wire.Events(after_seq=after_seq, limit=limit), _events)

    def checkpoint(self) -> int:
        """See `Daemon.checkpoint`."""
        return self._ask(wire.Checkpoint(), _number)

    def compact(self) -> int:
        """See `Daemon.compact`."""
        return self._ask(wire.Compact(), _number)

    def close(self) -> None:
        """Hang up. Workers that are held by this connection are over."""
        self._answers.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, asked: wire.Request, answers: msgspec.json.Decoder[T]) -> T:
        line = msgspec.json.encode(asked) + b"\n"
        if len(line) > wire.request_bytes_max:
            raise wire.RequestRefused(f"The request is longer than {wire.request_bytes_max} bytes")
        with self._lock:
            try:
                self._socket.sendall(line)
                answer = self._answers.readline()
            except (OSError, ValueError) as error:
                raise wire.DaemonAway() from error
            except BaseException:
                self.close()  # The answer is still to come, and would be taken for that of the next request.
                raise
        if not answer.endswith(b"\n"):
            raise wire.DaemonAway()
        told = _decoder.decode(answer)
        if told.error is not None:
            raise wire.error_from(told.error)
        return answers.decode(told.ok)


class RemoteWorker:
    """A worker that a connection has started."""

    def __init__(self, client: Client, name: str, namespace: str, queue: str) -> None:
        self.name, self.namespace, self.queue, self._client = name, namespace, queue, client

    def take(self, *, wait_s: float = 0.0, pipeline_id: str = "") -> QueueItem | None:
        """See `Daemon.take`."""
        return self._client.take(self.name, namespace=self.namespace, wait_s=wait_s, pipeline_id=pipeline_id)

    def complete(self, item_id: str) -> None:
        """See `Daemon.complete`."""
        self._client.complete(self.queue, item_id, worker=self.name, namespace=self.namespace)

    def fail(self, item_id: str, error: str) -> QueueItem:
        """See `Daemon.fail`."""
        return self._client.fail(self.queue, item_id, error, worker=self.name, namespace=self.namespace)

    def stop(self, error: str | None = None) -> None:
        """See `Daemon.stop_worker`."""
        self._client.stop_worker(self.name, namespace=self.namespace, error=error)


_decoder = msgspec.json.Decoder(wire.Answer)
_nothing = msgspec.json.Decoder(None)
_number = msgspec.json.Decoder(int)
_text = msgspec.json.Decoder(str)
_raw = msgspec.json.Decoder(msgspec.Raw)
_item = msgspec.json.Decoder(QueueItem)
_item_or_none: msgspec.json.Decoder[QueueItem | None] = msgspec.json.Decoder(QueueItem | None)
_items = msgspec.json.Decoder(list[QueueItem])
_stats = msgspec.json.Decoder(list[QueueStats])
_events = msgspec.json.Decoder(list[wire.Event])
