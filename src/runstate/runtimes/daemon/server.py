"""A daemon that several processes share, through a socket in the file system that its owner alone can open.

A worker that a connection has started is alive as long as the connection is: when its process dies, the kernel closes
the socket, and what the worker held has failed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import msgspec

from runstate.errors import LogBusy, LogFailed, RunstateError
from runstate.models.canonical import parse
from runstate.models.daemon import DAEMON, scoped
from runstate.runtimes.daemon import wire
from runstate.runtimes.daemon.aio import AsyncDaemon
from runstate.runtimes.daemon.daemon import Daemon
from runstate.runtimes.daemon.leases import Lease
from runstate.runtimes.daemon.work import Worker

logger = logging.getLogger("runstate.runtimes.daemon")

waiting_max = 4096
"""So many clients may wait to be let in, if the kernel allows it; whoever comes then must wait, or is refused."""
_look_every_s = 0.1
"""How often a client that will ask nothing more is looked at, while its last answer is made."""


class Server:
    """Serves a daemon from a thread of its own, from its making until it is closed. The daemon stays the caller's."""

    def __init__(self, daemon: Daemon, path: Path) -> None:
        """Listen at a path. A socket that a killed daemon has left there is replaced.

        Raises:
            LogBusy: somebody listens there.
            LogFailed: something else is there, the path is too long for a socket, or the directory is not writable.
        """
        self.path = path
        self._daemon = AsyncDaemon(daemon)
        self._listener = _listen(path)
        self._made = _identity(path)
        self._loop = asyncio.new_event_loop()
        self._stop, self._ready = asyncio.Event(), Event()
        self._thread = Thread(target=self._run, name=f"server {daemon.name}", daemon=True)
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """Hang up on everybody: what the workers of connections hold is given back. The socket is removed, unless
        another one has taken its place."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        with suppress(FileNotFoundError):
            if _identity(self.path) == self._made:
                self.path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        connections: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            if task is not None:
                connections.add(task)
                task.add_done_callback(connections.discard)
            await Connection(self._daemon, reader, writer, self._stop).serve()

        server = await asyncio.start_unix_server(
            connected, sock=self._listener, limit=wire.request_bytes_max, backlog=waiting_max
        )
        self._ready.set()
        await self._stop.wait()
        server.close()
        await asyncio.sleep(0)  # Whoever was let in at the last moment gets as far as to be counted.
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)  # Sockets are closed in the turn after.
        self._daemon.release()


class Connection:
    """One client. Its requests are answered one after the other."""

    def __init__(
        self, daemon: AsyncDaemon, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stop: asyncio.Event
    ) -> None:
        self._asked, self._daemon = daemon, daemon.daemon
        self._reader, self._writer, self._stop = reader, writer, stop
        self._workers: dict[str, Worker] = {}
        self._leases: dict[str, Lease] = {}

    async def serve(self) -> None:
        try:
            line = await self._reader.readline()
            while line:
                # Listening on while the answer is made: whoever hangs up meanwhile has no use for an item.
                answering = asyncio.ensure_future(self._answer(line))
                listening = asyncio.ensure_future(self._reader.readline())
                try:
                    await asyncio.wait({answering, listening}, return_when=asyncio.FIRST_COMPLETED)
                    is_last = listening.done() and not listening.result()
                    if is_last and not answering.done() and not await self._is_awaited(answering):
                        return
                    self._writer.write(await answering + b"\n")
                    await self._writer.drain()
                    line = await listening
                finally:
                    answering.cancel()
                    listening.cancel()
                    await asyncio.gather(answering, listening, return_exceptions=True)
        except ValueError:
            refused = wire.RequestRefused(f"The request is longer than {wire.request_bytes_max} bytes")
            self._writer.write(_error(refused) + b"\n")
        except (ConnectionError, asyncio.CancelledError):
            return  # The client has gone, or the server is going.
        finally:
            # Not to be cancelled halfway, when the server closes while a client hangs up: workers would be left.
            leaving = asyncio.ensure_future(self._leave())
            while not leaving.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(leaving)

    async def _is_awaited(self, answering: asyncio.Future[bytes]) -> bool:
        """Whether a client that sends nothing more is still there when its answer is made.

        It may have shut down its own side alone, as a shell's pipe does. The loop cannot tell when it goes then.
        """
        while not answering.done():
            if self._has_hung_up():
                return False
            await asyncio.wait({answering}, timeout=_look_every_s)
        return True

    def _has_hung_up(self) -> bool:
        if self._writer.is_closing():
            return True
        poll = select.poll()
        poll.register(self._writer.get_extra_info("socket"), 0)  # Asked for nothing, the kernel tells of the end alone.
        return bool(poll.poll(0))

    async def _leave(self) -> None:
        """Its workers are over. What they hold is given back if the server is ending; else it has failed."""
        for worker in self._workers.values():
            error = None if self._stop.is_set() else f"the connection of the worker {worker.name} has ended"
            with suppress(RunstateError):
                await self._asked.call(worker.stop, error)
        if self._stop.is_set():
            self._writer.transport.abort()  # Nobody is waited for who does not read the answers.
        else:
            self._writer.close()

    async def _answer(self, line: bytes) -> bytes:
        try:
            found = wire.read_request(line)
            answer = await _answers[type(found)](self, found)
            return b'{"ok":%b}' % (answer if isinstance(answer, msgspec.Raw) else msgspec.json.encode(answer))
        except RunstateError as error:
            return _error(error)
        except (ValueError, TypeError) as error:
            return _error(wire.RequestRefused(f"The request cannot be met: {error}"))
        except Exception as error:
            logger.exception("a request failed")
            return _error(RunstateError(f"The daemon failed: {error!r}"))

    # --- what can be asked -------------------------------------------------------------------------------------

    async def emit(self, asked: wire.Emit) -> int:
        return await self._asked.emit(DAEMON.parse(bytes(asked.event)), durable=asked.durable)

    async def push(self, asked: wire.Push) -> str:
        return await self._asked.push(asked.queue, parse(bytes(asked.data)), **_rest(asked, "queue", "data"))

    async def start_worker(self, asked: wire.StartWorker) -> None:
        start = self._asked.call(self._daemon.worker, asked.name, asked.queue, **_rest(asked, "name", "queue"))
        starting = asyncio.ensure_future(start)
        try:
            await asyncio.shield(starting)
        finally:
            # Also for a client that has hung up meanwhile: somebody must know that the worker is its.
            worker = await starting
            key = scoped(asked.namespace, asked.name)
            self._leases[key] = worker.lease
            if asked.lease_s is None:
                self._workers[key] = worker

    async def take(self, asked: wire.Take) -> Any:
        return await self._asked.take(asked.worker, **_rest(asked, "worker"), lease=self._lease(asked))

    async def complete(self, asked: wire.Complete) -> None:
        await self._asked.complete(**_rest(asked), lease=self._lease(asked))

    async def fail(self, asked: wire.Fail) -> Any:
        return await self._asked.fail(**_rest(asked), lease=self._lease(asked))

    async def retry(self, asked: wire.Retry) -> None:
        await self._asked.call(self._daemon.retry, asked.queue, asked.item_id, namespace=asked.namespace)

    async def heartbeat(self, asked: wire.Heartbeat) -> None:
        await self._asked.call(
            self._daemon.heartbeat, asked.worker, namespace=asked.namespace, lease=self._lease(asked)
        )

    async def stop_worker(self, asked: wire.StopWorker) -> None:
        lease = self._lease(asked)
        await self._asked.call(self._daemon.stop_worker, **_rest(asked), lease=lease)
        self._workers.pop(scoped(asked.namespace, asked.worker), None)
        self._leases.pop(scoped(asked.namespace, asked.worker), None)

    async def items(self, asked: wire.Items) -> Any:
        return await self._asked.call(self._daemon.items, asked.queue, **_rest(asked, "queue"))

    async def stats(self, asked: wire.Stats) -> Any:
        return await self._asked.call(self._daemon.stats)

    async def state(self, asked: wire.State) -> msgspec.Raw:
        return msgspec.Raw(await self._asked.call(lambda: DAEMON.dump(self._daemon.state)))

    async def seq(self, asked: wire.Seq) -> int:
        return self._daemon.seq

    async def events(self, asked: wire.Events) -> list[wire.Event]:
        records = await self._asked.call(self._daemon.events, after_seq=asked.after_seq, limit=asked.limit)
        return [wire.told(record) for record in records]

    async def checkpoint(self, asked: wire.Checkpoint) -> int:
        return await self._asked.call(self._daemon.checkpoint)

    async def compact(self, asked: wire.Compact) -> int:
        return await self._asked.call(self._daemon.compact)

    def _lease(self, asked: wire.Take | wire.Complete | wire.Fail | wire.Heartbeat | wire.StopWorker) -> Lease | None:
        return self._leases.get(scoped(asked.namespace, asked.worker))


_answers: dict[type, Callable[[Connection, Any], Any]] = {
    wire.Emit: Connection.emit,
    wire.Push: Connection.push,
    wire.StartWorker: Connection.start_worker,
    wire.Take: Connection.take,
    wire.Complete: Connection.complete,
    wire.Fail: Connection.fail,
    wire.Retry: Connection.retry,
    wire.Heartbeat: Connection.heartbeat,
    wire.StopWorker: Connection.stop_worker,
    wire.Items: Connection.items,
    wire.Stats: Connection.stats,
    wire.State: Connection.state,
    wire.Seq: Connection.seq,
    wire.Events: Connection.events,
    wire.Checkpoint: Connection.checkpoint,
    wire.Compact: Connection.compact,
}


def _rest(asked: wire.Request, *without: str) -> dict[str, Any]:
    """The members of a request by name, but for those that are handed over otherwise."""
    return {name: getattr(asked, name) for name in asked.__struct_fields__ if name not in without}


def _error(error: RunstateError) -> bytes:
    return b'{"error":%b}' % msgspec.json.encode(error.as_data(), enc_hook=repr)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            _check_left_behind(path)
            path.unlink()
        # Made unreachable for others from the first moment, and not a moment later.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(waiting_max)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise LogFailed(f"No socket can be made at {path}: {error}; name a short path that is free") from error
    except LogBusy:
        listener.close()
        raise
    return listener


def _check_left_behind(path: Path) -> None:
    """
    Raises:
        LogBusy: somebody listens at this socket. The log's lock does not tell: another daemon may have been given it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # Whoever listens and has no room for us is there too.
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass
    raise LogBusy(f"Another daemon listens at {path}: name another socket, or try again when it has ended")


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
