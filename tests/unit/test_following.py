"""A follower: on from where its logbook says, through outages, and from one version of a model to the next."""

from __future__ import annotations

import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import runstate
from runstate import measuring
from runstate.contracts import EngineStore
from runstate.errors import LogBusy, LogClosed, LogFailed, ModelFailed, Unsupported
from runstate.following import Follower
from runstate.logbook import Entry, Logbook
from runstate.logs.log import FeedPage, Position
from runstate.logs.saving import SavingLog
from runstate.metrics import serve_metrics
from runstate.models.engine import ENGINE, EngineModel, RunEventWrite
from runstate.sinks import Projected, StoreSink

Write = Callable[..., RunEventWrite]
wait_s = 20


class Newer(EngineModel):
    version = EngineModel.version + 1


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/fleet.db"


@pytest.fixture
def store(url: str) -> Iterator[EngineStore]:
    with runstate.open(url, snapshot_every=0) as opened:
        yield opened


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Logbook]:
    with closing(Logbook(tmp_path / "state")) as made:
        yield made


def notes(write: Write, *numbers: int, run: str = "r-1") -> list[RunEventWrite]:
    return [write("Note", attempt=number, run=run) for number in numbers]


def is_projected(store: runstate.Store[Any, Any, Any], *runs: str) -> bool:
    return all(store.snapshots.stored(run) == store.fresh_snapshot(run) for run in runs)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.005)


class Running:
    """A follower in a thread of its own."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self.failure: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.follower.run(self._stop)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.failure = error

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(wait_s)
        assert not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(wait_s)
        assert not self._thread.is_alive()


# --- restarts --------------------------------------------------------------------------------------------


def test_a_restart_goes_on_where_the_last_one_has_ended(
    store: EngineStore, url: str, book: Logbook, write: Write
) -> None:
    store.append_events(notes(write, 1, 2, 3))
    assert Follower(url, store, book).catch_up() == 3
    store.append_events(notes(write, 4))
    again = Follower(url, store, book)
    assert again.catch_up() == 1
    assert is_projected(store, "r-1")
    found = book.entry(url)
    assert found is not None
    assert (found.events, found.position) == (4, again.projector.position)


def test_a_logbook_that_was_lost_costs_a_second_look_and_nothing_else(
    store: EngineStore, url: str, tmp_path: Path, write: Write
) -> None:
    store.append_events(notes(write, 1, 2, 3))
    for name in ("one", "two"):
        with closing(Logbook(tmp_path / name)) as book:
            assert Follower(url, store, book).catch_up() == 3
        assert is_projected(store, "r-1")


def test_a_position_that_the_log_does_not_know_is_told_and_all_is_read_again(
    store: EngineStore, url: str, book: Logbook, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    store.append_events(notes(write, 1, 2, 3))
    book.note(Entry(url, "engine", ENGINE.version, position=Position("999")))
    assert Follower(url, store, book).catch_up() == 3
    assert "from its beginning" in caplog.text
    assert is_projected(store, "r-1")


def test_the_logbook_of_another_model_is_refused(store: EngineStore, url: str, book: Logbook) -> None:
    book.note(Entry(url, "rundir", 1))
    with pytest.raises(ModelFailed, match="--state"):
        Follower(url, store, book)


def test_a_log_without_a_feed_is_refused(tmp_path: Path, book: Logbook) -> None:
    with (
        runstate.open(f"ndjson:{tmp_path}/runs", "engine") as store,
        pytest.raises(Unsupported, match="offers no feed"),
    ):
        Follower(f"ndjson:{tmp_path}/runs", store, book)


# --- following -------------------------------------------------------------------------------------------


def test_it_follows_until_it_is_told_to_stop(store: EngineStore, url: str, book: Logbook, write: Write) -> None:
    with Running(Follower(url, store, book)) as running:
        for number in range(1, 4):
            store.append_events(notes(write, number) + notes(write, number, run="r-2"))
            until(lambda: is_projected(store, "r-1", "r-2"))
    assert running.failure is None


def test_the_lag_is_put_down_while_nothing_moves(
    store: EngineStore, url: str, book: Logbook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.following.heartbeat_s", 0.01)
    with Running(Follower(url, store, book)):
        until(lambda: book.entry(url) is not None)
        before = book.entries()[0].measured_at
        until(lambda: book.entries()[0].measured_at > before)


def test_a_log_that_goes_away_is_waited_for(
    store: EngineStore,
    url: str,
    book: Logbook,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("runstate.following.heartbeat_s", 0.01)
    feed, is_away = store.log.feed, threading.Event()

    def sometimes(*, after: Position | None = None, limit: int = 1000) -> FeedPage:
        if is_away.is_set():
            raise LogBusy()
        return feed(after=after, limit=limit)

    monkeypatch.setattr(store.log, "feed", sometimes)
    with Running(Follower(url, store, book)):
        store.append_events(notes(write, 1))
        until(lambda: is_projected(store, "r-1"))
        is_away.set()
        until(lambda: "trying again" in caplog.text)
        store.append_events(notes(write, 2))
        is_away.clear()
        until(lambda: is_projected(store, "r-1"))
    assert caplog.text.count("trying again") == 1
    assert caplog.text.count("back after") == 1


def test_a_sink_that_refuses_loses_nothing(
    store: EngineStore, url: str, book: Logbook, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.following.heartbeat_s", 0.01)
    assert isinstance(store.log, SavingLog)
    save, refusals = store.log.save_snapshots, iter(range(3))

    def sometimes(snapshots: Any) -> None:
        if next(refusals, None) is not None:
            raise LogBusy()
        save(snapshots)

    monkeypatch.setattr(store.log, "save_snapshots", sometimes)
    store.append_events(notes(write, 1, 2) + notes(write, 1, run="r-2"))
    with Running(Follower(url, store, book)):
        until(lambda: is_projected(store, "r-1", "r-2"))
    assert list(refusals) == []


def test_it_ends_when_no_retry_can_help(
    store: EngineStore, url: str, book: Logbook, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(url, store, book)

    def closed(**_: object) -> FeedPage:
        raise LogClosed()

    monkeypatch.setattr(store.log, "feed", closed)
    with Running(follower) as running:
        running.join()
    assert isinstance(running.failure, LogClosed)


# --- alerts ----------------------------------------------------------------------------------------------


def test_alerts_are_data_and_log_lines_once_over_restarts(
    store: EngineStore, url: str, tmp_path: Path, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    store.append_events([write("RunStarted"), write("StepCompleted", "never-started")])
    for _ in range(2):
        with closing(Logbook(tmp_path / "state")) as book, runstate.open(url, snapshot_every=0) as opened:
            book.note(Entry(url, "engine", ENGINE.version))
            Follower(url, opened, book).catch_up()
            codes = sorted(alert.code for alert in book.alerts())
    assert codes == ["INVALID_TRANSITION", "PROJECTOR_CAUSAL_VIOLATION"]
    assert caplog.text.count("PROJECTOR_CAUSAL_VIOLATION") == 1


def test_an_alert_about_the_lag_that_was_open_before_a_restart_is_cleared_after_it(
    store: EngineStore, url: str, book: Logbook
) -> None:
    first = Follower(url, store, book)
    first.projector._measured(6)
    assert [alert.subject for alert in book.alerts(open_only=True)] == [url]
    with runstate.open(url, snapshot_every=0) as opened:
        Follower(url, opened, book).catch_up()
    assert book.alerts(open_only=True) == []


# --- a new version of a model ----------------------------------------------------------------------------


def test_a_new_version_is_projected_aside_and_switched_to_when_it_has_caught_up(
    store: EngineStore, url: str, book: Logbook, write: Write
) -> None:
    store.append_events(notes(write, 1, 2, 3) + notes(write, 1, run="r-2"))
    Follower(url, store, book).catch_up()
    with runstate.open(url, Newer(), snapshot_every=0) as newer:
        follower = Follower(url, newer, book, page_events=2)
        assert follower._poll() == 2
        # Readers of the version before see what they saw.
        assert is_projected(store, "r-1", "r-2")
        assert [(entry.version, entry.is_aside) for entry in book.entries()] == [
            (ENGINE.version, False),
            (Newer.version, True),
        ]
        # Killed here, the next one goes on aside.
        follower = Follower(url, newer, book, page_events=2)
        assert follower.catch_up() == 2
        assert is_projected(newer, "r-1", "r-2")
        assert [(entry.version, entry.is_aside, entry.events) for entry in book.entries()] == [
            (Newer.version, False, 4)
        ]
        newer.append_events(notes(write, 4))
        assert Follower(url, newer, book).catch_up() == 1
        assert is_projected(newer, "r-1", "r-2")


# --- metrics ---------------------------------------------------------------------------------------------


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_metrics_say_what_the_logbook_says(store: EngineStore, url: str, book: Logbook, write: Write) -> None:
    store.append_events([write("RunStarted"), write("StepCompleted", "never-started")])
    Follower(url, store, book).catch_up()
    port, stop = serve_metrics(book, 0)
    try:
        found = scrape(port)
    finally:
        stop()
    labels = f'{{aside="false",log="{url}",model="engine"}}'
    assert found[f"runstate_projector_events_total{labels}"] == 2
    assert found[f"runstate_projector_lag_seconds{labels}"] == 0
    assert found[f"runstate_projector_stale_streams{labels}"] == 0
    assert found['runstate_projector_alerts_total{code="INVALID_TRANSITION"}'] == 1
    assert found['runstate_projector_alerts_open{code="INVALID_TRANSITION"}'] == 1
    assert not any("r-1" in name for name in found)


def test_a_port_that_is_taken_is_told(book: Logbook) -> None:
    port, stop = serve_metrics(book, 0)
    try:
        with pytest.raises(LogFailed, match=str(port)):
            serve_metrics(book, port)
    finally:
        stop()


# --- a sink that hangs -----------------------------------------------------------------------------------------------


class HangingSink(StoreSink):
    """Hangs in `keep` until it is let go."""

    def __init__(self, store: EngineStore) -> None:
        super().__init__(store.log, store.model.name)
        self.entered, self.let_go = threading.Event(), threading.Event()

    def keep(self, rows: Sequence[Projected]) -> None:
        self.entered.set()
        assert self.let_go.wait(wait_s)
        super().keep(rows)


def test_the_lag_of_a_sink_that_hangs_is_measured_raised_and_put_down(
    url: str, store: EngineStore, book: Logbook, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "measure_s", 0.01)
    store.append_events(notes(write, 1))
    sink = HangingSink(store)
    follower = Follower(url, store, book, lambda *_: sink)
    follower.projector._clock = lambda: datetime.now(UTC) + timedelta(seconds=7)
    with Running(follower):
        assert sink.entered.wait(wait_s)
        until(lambda: [alert.code for alert in book.alerts(open_only=True)] == ["PROJECTOR_LAG_HIGH"])
        until(lambda: all(entry.lag_s > 6 for entry in book.entries()) and bool(book.entries()))
        sink.let_go.set()
        until(lambda: not book.alerts(open_only=True))
