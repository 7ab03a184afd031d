"""Connections that go away: one of them, or all of them with the server."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import psycopg
import pytest
from tests.postgres.sessions import Session, lose_before_commit
from tests.postgres_server import PostgresServer

from runstate.conformance.claims.feeds import check_complete
from runstate.conformance.notes import followed, keys, note, notes, seqs, stored
from runstate.conformance.threads import race_all
from runstate.errors import AppendOutcomeUnknown, LogBusy
from runstate.logs.postgres import PostgresLog, open_url
from runstate.logs.postgres.transactions import ConnectionLost

soak_s = float(os.environ.get("RUNSTATE_SOAK_S", "30"))


@pytest.mark.parametrize("trips", [1, 2])
def test_a_connection_lost_during_commit_leaves_the_outcome_open(
    log: PostgresLog, session: Session, monkeypatch: pytest.MonkeyPatch, trips: int
) -> None:
    log.append("s", notes("a"))
    with monkeypatch.context() as patched:
        lose_before_commit(patched, session, trips)
        with pytest.raises(AppendOutcomeUnknown):
            log.append("s", notes("b"))
    assert log.append("s", notes("b"))[0].persisted


def test_a_connection_that_was_lost_since_its_last_use_goes_unnoticed(log: PostgresLog, session: Session) -> None:
    for number in range(3):
        assert log.append("s", notes(f"{number}"))[0].seq == number + 1
        with log._connections.one() as connection:
            lost = connection.info.backend_pid
        session.execute("SELECT pg_terminate_backend(%s, 5000)", (lost,))


@pytest.mark.parametrize(
    "error",
    [
        # What the driver says when the server was shut down in the middle of a pipeline.
        psycopg.OperationalError("cannot exit pipeline mode while busy"),
        # What a pooler says when its session of the server has gone away.
        psycopg.errors.ProtocolViolation("server conn crashed?"),
    ],
)
def test_an_error_that_is_no_answer_of_the_server_is_a_lost_connection(log: PostgresLog, error: psycopg.Error) -> None:
    with pytest.raises(ConnectionLost), log._connections.one():
        raise error
    assert log.append("s", notes("a"))[0].persisted


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    started = PostgresServer()
    try:
        yield started
    finally:
        started.remove()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_restart_of_the_server_is_survived(server: PostgresServer, how: signal.Signals) -> None:
    with open_url(server.url) as log:
        log.append("s", notes("a"))
        for turn in range(2):
            end = log.feed().next
            server.stop(how)
            server.start()
            assert log.append("s", notes(f"after-{turn}"))[0].seq == turn + 2
            assert keys(log.feed(after=end).records) == [f"after-{turn}"]
        server.stop(how)
        server.start()
        assert len(log.read("s")) == 3
        assert list(log.verify()) == []


Acknowledged = dict[tuple[str, str], int]
Told = tuple[Acknowledged, Counter[str]]


def _append_until_told(log: PostgresLog, number: int, is_over: Callable[[], bool]) -> Told:
    """What a producer does: it sends each batch until it is told what became of it. All that it was told."""
    chance = random.Random(number)
    told: Acknowledged = {}
    troubles: Counter[str] = Counter()
    while not is_over():
        stream = f"run-{chance.randrange(100)}"
        drafts = [note(f"{number}/{len(told)}/{part}") for part in range(chance.choice((1, 1, 1, 2, 5)))]
        while True:
            try:
                results = log.append(stream, drafts)
                break
            except (AppendOutcomeUnknown, LogBusy) as error:
                troubles[error.code] += 1
        told |= {(stream, draft.key): result.seq for draft, result in zip(drafts, results, strict=True)}
    return told, troubles


@pytest.mark.slow
def test_32_connections_to_100_runs_lose_and_double_nothing_over_restarts(server: PostgresServer) -> None:
    over = threading.Event()

    def restart() -> Told:
        for how in (signal.SIGINT, signal.SIGQUIT):
            time.sleep(soak_s / 3)
            server.stop(how)
            server.start()
        time.sleep(soak_s / 3)
        over.set()
        return {}, Counter()

    with ExitStack() as stack:
        logs = [stack.enter_context(open_url(f"{server.url}?pool_max=1")) for _ in range(32)]
        writers = [partial(_append_until_told, log, number, over.is_set) for number, log in enumerate(logs)]
        tasks: list[Callable[[], Told]] = [restart, *writers]
        answers = race_all(tasks)
        told = {place: seq for acknowledged, _ in answers for place, seq in acknowledged.items()}
        troubles: Counter[str] = sum((counted for _, counted in answers), Counter())
        log = logs[0]
        held: Acknowledged = {}
        for number in range(100):
            records = stored(log, f"run-{number}")
            assert seqs(records) == list(range(1, len(records) + 1))
            held |= {(record.stream, record.key): record.seq for record in records}
            assert len(set(keys(records))) == len(records), "a key was stored twice"
        assert held == told
        check_complete(log, followed(log).records)
        assert list(log.verify()) == []
        assert troubles["log.outcome_unknown"], "no restart came in the middle of a commit"
