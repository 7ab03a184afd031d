"""Contenders as sides of a case: one writer, many threads, many processes; or one reader of a store that is filled."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import repeat
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

from benchmarks.case import Side, Thunk
from benchmarks.postgres.contenders import Batch, Contender, Reader, batches
from benchmarks.postgres.server import Place, Server

fill_events = 1000
"""Events per append while a store is filled. With a batch that does not fit into the socket's buffer, the peer can wait
for ever in the driver."""


class Shape(NamedTuple):
    """How a call appends: so many writers at once, each so many appends, each of so many events."""

    writers: int
    appends: int
    size: int = 1
    run_events: int = 1000
    hot: bool = False
    """All writers append to one run, instead of each to runs of its own."""
    processes: bool = False
    threads: int = 1
    """Of each process."""

    @property
    def events(self) -> int:
        return self.writers * self.threads * self.appends * self.size

    def source(self, writer: int) -> Iterator[Batch]:
        """What one writer appends. On a hot run all have parts of the same run, which never ends."""
        renamed = batches(self.size, self.run_events, writer, self.writers * self.threads)
        if not self.hot:
            return renamed
        return (Batch("run-hot", batch.after_seq, batch.drafts) for batch in renamed)


def appends(server: Server, name: str, contender: Contender, shape: Shape) -> Side:
    @contextmanager
    def opened(_: Path) -> Iterator[Iterator[Thunk]]:
        with server.place() as place, ExitStack() as stack:
            by_processes = shape.processes and shape.writers > 1
            bursts = (_by_processes if by_processes else _by_threads)(stack, contender, place, shape)
            next(bursts)()  # Connections are made and statements prepared before anybody is timed.
            yield bursts

    return Side(name, opened, shape.events)


def _by_threads(stack: ExitStack, contender: Contender, place: Place, shape: Shape) -> Iterator[Thunk]:
    prepare = stack.enter_context(contender(place))
    pool = stack.enter_context(ThreadPoolExecutor(shape.writers))
    start = Barrier(shape.writers)
    sources = [shape.source(writer) for writer in range(shape.writers)]

    def share(calls: list[Thunk]) -> None:
        start.wait()  # One share per thread: without it a quick thread would take a second one.
        for call in calls:
            call()

    def bursts() -> Iterator[Thunk]:
        while True:
            shares = [[prepare(next(source)) for _ in range(shape.appends)] for source in sources]
            if shape.writers == 1:
                yield lambda: share(shares[0])  # noqa: B023 - called before the next one is made
            else:
                yield lambda: list(pool.map(share, shares))  # noqa: B023

    return bursts()


def _by_processes(stack: ExitStack, contender: Contender, place: Place, shape: Shape) -> Iterator[Thunk]:
    spawn = get_context("spawn")
    pipes: list[Connection] = []
    for writer in range(shape.writers):
        ours, theirs = spawn.Pipe()
        child = spawn.Process(target=_append_on_demand, args=(contender, place, shape, writer, theirs), daemon=True)
        child.start()
        theirs.close()  # Otherwise nobody would notice a child that has failed.
        pipes.append(ours)
        stack.callback(child.join)
        stack.callback(ours.close)
    for pipe in pipes:  # One after the other: not everybody's way to make tables is safe at once.
        pipe.send(None)
        pipe.recv()

    def told() -> None:
        for pipe in pipes:
            pipe.send(None)
        for pipe in pipes:
            pipe.recv()

    def bursts() -> Iterator[Thunk]:
        while True:
            told()  # Their next share is ready.
            yield told

    return bursts()


def _append_on_demand(contender: Contender, place: Place, shape: Shape, writer: int, pipe: Connection) -> None:
    sources = [shape.source(writer * shape.threads + thread) for thread in range(shape.threads)]
    with suppress(EOFError):  # The other side has all it wanted.
        pipe.recv()
        with contender(place) as prepare, ThreadPoolExecutor(shape.threads) as pool:
            while True:
                pipe.send(None)
                pipe.recv()
                shares = [[prepare(next(source)) for _ in range(shape.appends)] for source in sources]
                pipe.send(None)
                pipe.recv()
                if shape.threads == 1:
                    _call_all(shares[0])
                else:
                    list(pool.map(_call_all, shares))


def _call_all(calls: list[Thunk]) -> None:
    for call in calls:
        call()


def reads(server: Server, name: str, reader: Reader, how: str, runs: int, run_events: int) -> Side:
    """Everything that is there, read again and again."""

    @contextmanager
    def opened(_: Path) -> Iterator[Iterator[Thunk]]:
        source = batches(fill_events, run_events)
        filled = [next(source) for _ in range(runs * run_events // fill_events)]
        with server.place() as place, reader(place, filled, how) as count:
            for _warm in range(2):
                if (found := count()) != runs * run_events:
                    raise RuntimeError(
                        f"{name} read {found} of {runs * run_events} events; its figures would mean nothing"
                    )
            yield repeat(count)

    return Side(name, opened, runs * run_events)
