"""What each way to number events does when something goes wrong: counted, on the same server, with the same events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from itertools import islice
from statistics import median

import msgspec
import psycopg

from benchmarks.case import show_seconds
from benchmarks.postgres.contenders import Batch, batches
from benchmarks.postgres.counters import Strategy, head_rows, redis_counters, sequences
from benchmarks.postgres.server import Place, RedisServer, Server
from runstate.errors import LogFailed
from runstate.models.model import Draft

Opener = Callable[[Place], AbstractContextManager[Strategy]]
overtake_max_s = 0.25
"""How long the second writer gets to pass the first. One that waits its turn does not."""


class Comparison(msgspec.Struct, frozen=True, rename="camel"):
    """One question, and the answer of each strategy."""

    question: str
    answers: dict[str, str]


class Interrupted(Draft, frozen=True, kw_only=True):
    """A draft to which something happens after it has got its number and before it is written."""

    before: Callable[[], object]

    def render(self, seq: int, persisted_at: str, previous: bytes | None = None) -> bytes:
        self.before()
        return Draft.render(self, seq, persisted_at, previous)


def interrupted(draft: Draft, before: Callable[[], object]) -> Draft:
    return Interrupted(**msgspec.structs.asdict(draft), before=before)


def _fail() -> None:
    raise ValueError("the writer ends here")


def drafted(count: int) -> Batch:
    """The first events of one run."""
    ready = list(islice(batches(1, 1000), count))
    return Batch(ready[0].stream, 0, [draft for batch in ready for draft in batch.drafts])


# --- the questions -----------------------------------------------------------------------------------------------


def gaps(strategy: Strategy, events: int) -> int:
    """Numbers that no event has, after one append in ten failed midway and one in ten was sent again."""
    stream, _, drafts = drafted(events)
    for place, draft in enumerate(drafts):
        if place % 10 == 3:
            with suppress(ValueError, LogFailed):
                strategy.append(stream, [interrupted(draft, _fail)])
        for _ in range(2 if place % 10 == 7 else 1):
            strategy.append(stream, [draft])
    return _missing(strategy, stream)


def _missing(strategy: Strategy, stream: str) -> int:
    seqs = strategy.seqs_after(stream, 0)
    return seqs[-1] - len(seqs)


def missed_by_a_reader(strategy: Strategy, rounds: int) -> int:
    """Events that a reader who goes on after the last seq it saw never gets, as one writer is slower than the next."""
    missed = 0
    stream, _, drafts = drafted(2 * rounds)
    seen = 0
    for slow, quick in zip(drafts[::2], drafts[1::2], strict=True):
        numbered, may_go_on = threading.Event(), threading.Event()

        def wait(numbered: threading.Event = numbered, may_go_on: threading.Event = may_go_on) -> None:
            numbered.set()
            may_go_on.wait(30)

        first = threading.Thread(target=strategy.append, args=(stream, [interrupted(slow, wait)]))
        second = threading.Thread(target=strategy.append, args=(stream, [quick]))
        before = seen
        first.start()
        numbered.wait(30)
        second.start()
        second.join(overtake_max_s)
        got = strategy.seqs_after(stream, seen)
        seen = max([seen, *got])
        may_go_on.set()
        first.join()
        second.join()
        got += strategy.seqs_after(stream, seen)
        seen = max([seen, *got])
        missed += len(strategy.seqs_after(stream, before)) - len(got)
    return missed


_relations = "SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
_bytes = """
SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'S') AND relname <> 'events'
"""


def costs_of_runs(opened: dict[str, tuple[Place, Strategy]], runs: int) -> Iterator[Comparison]:
    """What it takes to begin a run, timed in alternation, and what it leaves in the database for ever."""
    for _, strategy in opened.values():
        first = next(batches(2, 2))
        strategy.append(first.stream, first.drafts[:1])
    before = {name: _counted(place) for name, (place, _) in opened.items()}
    times: dict[str, list[float]] = {name: [] for name in opened}
    for number, batch in enumerate(islice(batches(2, 2, first=1), runs)):
        for name in opened if number % 2 == 0 else reversed(opened):
            start = time.perf_counter()
            opened[name][1].append(batch.stream, batch.drafts[:1])
            times[name].append(time.perf_counter() - start)
    after = {name: _counted(place) for name, (place, _) in opened.items()}
    yield Comparison(
        f"first append of a run, median of {runs:,}", {name: show_seconds(median(t)) for name, t in times.items()}
    )
    for index, what in enumerate(("relations that a run adds", "bytes that a run adds beside its events")):
        yield Comparison(what, {name: f"{(after[name][index] - before[name][index]) / runs:,.0f}" for name in opened})


def _counted(place: Place) -> tuple[int, int]:
    with place.connect() as session:
        relations, size = session.execute(_relations).fetchone(), session.execute(_bytes).fetchone()
    return (int(relations[0]) if relations else 0), (int(size[0]) if size else 0)


def gaps_after_a_crash(server: Server, place: Place, opener: Opener) -> int:
    """Numbers that no event has, after the database server crashed between two appends."""
    stream, _, drafts = drafted(20)
    with opener(place) as strategy:
        for draft in drafts[:10]:
            strategy.append(stream, [draft])
    server.crash()
    with opener(place) as strategy:
        for draft in drafts[10:]:
            strategy.append(stream, [draft])
        return _missing(strategy, stream)


def refused_after_a_counter_was_lost(place: Place, events: int) -> int:
    """Appends that were refused because Redis, after a crash, gave out numbers again that had been given out before."""
    counter = RedisServer(snapshots_only=True)
    refused = 0
    try:
        with redis_counters(place, counter) as strategy:
            stream, _, drafts = drafted(2 * events)
            for number, draft in enumerate(drafts[:events]):
                if number == events // 2:
                    counter.save()
                strategy.append(stream, [draft])
        counter.crash()
        with redis_counters(place, counter) as strategy:
            for draft in drafts[events:]:
                try:
                    strategy.append(stream, [draft])
                except psycopg.errors.UniqueViolation:
                    refused += 1
    finally:
        counter.close()
    return refused


# --- the answers -------------------------------------------------------------------------------------------------


def comparisons(server: Server, counter: RedisServer, quick: bool) -> Iterator[Comparison]:
    """Every question to every strategy, each time in a schema of its own."""
    openers: dict[str, Opener] = {
        "head row": head_rows,
        "sequence per run": sequences,
        "Redis counter": partial(redis_counters, server=counter),
    }

    def asked(question: str, ask: Callable[[Place, Opener], object]) -> Comparison:
        answers = {}
        for name, opener in openers.items():
            with server.place() as place:
                answers[name] = str(ask(place, opener))
        return Comparison(question, answers)

    def opened(place: Place, opener: Opener, ask: Callable[[Strategy], object]) -> object:
        with opener(place) as strategy:
            return ask(strategy)

    events, rounds, runs = (50, 4, 100) if quick else (200, 20, 1000)
    yield asked(
        f"gaps after {events} events, 1 append in 10 failed, 1 in 10 sent again",
        lambda place, opener: opened(place, opener, lambda strategy: gaps(strategy, events)),
    )
    yield asked(
        f"events missed by a reader, {rounds} times a quick writer behind a slow one",
        lambda place, opener: opened(place, opener, lambda strategy: missed_by_a_reader(strategy, rounds)),
    )
    with ExitStack() as stack:
        places = {name: stack.enter_context(server.place()) for name in openers}
        both = {name: (place, stack.enter_context(openers[name](place))) for name, place in places.items()}
        yield from costs_of_runs(both, runs)
    if server.crashes:
        yield asked(
            "gaps after 20 events and a crash of Postgres",
            lambda place, opener: gaps_after_a_crash(server, place, opener),
        )
    with server.place() as place:
        refused = refused_after_a_counter_was_lost(place, events)
    question = f"appends refused of {events}, after a crash of Redis that keeps snapshots only"
    yield Comparison(question, {"head row": "-", "sequence per run": "-", "Redis counter": str(refused)})
