"""The daemon for asyncio: whatever waits for the disk does so in threads, and the loop goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from runstate.models.daemon import DaemonEvent, MaterializedState, QueueItem
from runstate.runtimes.daemon.daemon import Daemon
from runstate.runtimes.daemon.leases import Lease

P = ParamSpec("P")
T = TypeVar("T")

threads_max = 32
"""Decisions that wait for the disk at once; they share its flushes."""


class AsyncDaemon:
    """A daemon, awaited. `async with AsyncDaemon(Daemon.open(place)) as daemon` closes it too."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix=f"daemon {daemon.name}")

    async def call(self, ask: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Anything that the daemon can be asked: `await daemon.call(daemon.daemon.checkpoint)`.

        Cancelled, it is not undone: what was decided stays decided.
        """
        asked = asyncio.get_running_loop().run_in_executor(self._threads, lambda: ask(*args, **kwargs))
        return await asyncio.shield(asked)

    async def emit(self, event: DaemonEvent, *, durable: bool = True) -> int:
        """See `Daemon.emit`."""
        return await self.call(self.daemon.emit, event, durable=durable)

    async def state(self) -> MaterializedState:
        """See `Daemon.state`."""
        return await self.call(lambda: self.daemon.state)

    async def push(self, queue: str, data: Any = None, **options: str) -> str:
        """See `Daemon.push`."""
        return await self.call(self.daemon.push, queue, data, **options)

    async def take(
        self,
        worker: str,
        *,
        queue: str = "",
        namespace: str = "",
        wait_s: float = 0.0,
        pipeline_id: str = "",
        lease: Lease | None = None,
    ) -> QueueItem | None:
        """See `Daemon.take`. While it waits for an item, it takes up no thread."""
        loop, until = asyncio.get_running_loop(), time.monotonic() + wait_s
        while True:
            rung = asyncio.Event()

            def bell(rung: asyncio.Event = rung) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(rung.set)

            try:
                taken = await self.call(self.daemon.try_take, worker, queue, namespace, pipeline_id, lease, bell)
                left_s = until - time.monotonic()
                if taken is not None or left_s <= 0:
                    return taken
                with suppress(TimeoutError):
                    await asyncio.wait_for(rung.wait(), left_s)
            finally:
                if not rung.is_set():
                    self.daemon.forget(bell)

    async def complete(self, queue: str, item_id: str, **options: Any) -> None:
        """See `Daemon.complete`."""
        await self.call(self.daemon.complete, queue, item_id, **options)

    async def fail(self, queue: str, item_id: str, error: str, **options: Any) -> QueueItem:
        """See `Daemon.fail`."""
        return await self.call(self.daemon.fail, queue, item_id, error, **options)

    async def close(self) -> None:
        """See `Daemon.close`."""
        await self.call(self.daemon.close)
        self.release()

    def release(self) -> None:
        """Let go of the threads, and leave the daemon to whoever opened it."""
        self._threads.shutdown()

    async def __aenter__(self) -> AsyncDaemon:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
