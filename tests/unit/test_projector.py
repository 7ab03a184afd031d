"""The projector: watermarks, gaps, STALE and resync, lag, and that reprocessing changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import runstate
from runstate.contracts import EngineStore, RunStateStoreV1
from runstate.errors import LogBusy, LogClosed
from runstate.logs.log import FeedPage, Position, Record, StoredSnapshot
from runstate.logs.memory import MemoryLog
from runstate.models.engine import ENGINE, EngineModel, RunEventWrite
from runstate.models.model import Alert
from runstate.projector import Projector
from runstate.sinks import Projected, TellingSink

Open = Callable[..., EngineStore]
Write = Callable[..., RunEventWrite]
noon = datetime(2026, 11, 15, 12, tzinfo=UTC)


class GappedLog(MemoryLog):
    """A log whose events come with the sequence numbers that a test gives them, late and with gaps.

    Our own logs leave no gaps. Contract v1 allows them, and a projector must live with them.
    """

    def place(self, seq: int, event: RunEventWrite) -> Record:
        _, draft = ENGINE.draft(event)
        persisted_at = "2026-11-15T12:00:00.000Z"
        body = draft.render(seq, persisted_at)
        record = Record(
            event.run_id, seq, draft.event_id, draft.type, draft.key, draft.tenant, draft.emitted_at, persisted_at, body
        )
        records = self._streams.setdefault(event.run_id, [])
        records.append(record)
        records.sort(key=lambda r: r.seq)
        self._keys.setdefault(event.run_id, {})[draft.key] = record
        self._models[event.run_id] = draft.model
        self._last_position += 1
        self._feed.append((self._last_position, record))
        return record

    def read(self, stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        return [record for record in self._streams.get(stream, []) if record.seq > after_seq][:limit]

    def lines(self, stream: str, *, after_seq: int = 0, until_seq: int | None = None) -> Iterator[bytes]:
        found = self.read(stream, after_seq=after_seq, limit=1_000_000)
        return (record.body for record in found if until_seq is None or record.seq <= until_seq)


class Gapped:
    """A projector over a gapped log, on a clock that the test sets."""

    def __init__(self, write: Write, **options: Any) -> None:
        self.log = GappedLog()
        self.raised: list[Alert] = []
        self.store = runstate.Store(self.log, ENGINE, snapshot_every=0, on_alert=self.raised.append)
        self.now = noon
        self.projector = self.restarted(**options)
        # The fourth event matters: without it, the fifth is impossible.
        self.events = {
            1: write("RunStarted"),
            2: write("StepStarted", "a"),
            3: write("StepCompleted", "a"),
            4: write("StepStarted", "b"),
            5: write("StepCompleted", "b"),
            6: write("SignalAccepted"),
            7: write("RunPaused"),
            8: write("RunResumed"),
        }

    def restarted(self, **options: Any) -> Projector:
        return Projector(self.store, clock=lambda: self.now, **options)

    def arrive(self, *seqs: int) -> list[Record]:
        return [self.log.place(seq, self.events[seq]) for seq in seqs]

    def fold_of(self, *seqs: int) -> bytes:
        lines = [ENGINE.draft(self.events[seq])[1].render(seq, "2026-11-15T12:00:00.000Z") for seq in sorted(seqs)]
        return ENGINE.dump(ENGINE.fold(ENGINE.initial("r-1"), lines))

    def codes(self) -> list[str]:
        return [alert.code for alert in self.raised]

    @property
    def snapshot(self) -> bytes:
        stored = self.store.snapshots.stored("r-1")
        return b"" if stored is None else stored.body


@pytest.fixture
def gapped(write: Write) -> Gapped:
    return Gapped(write)


def stored_body(store: EngineStore, run: str = "r-1") -> bytes:
    stored = store.snapshots.stored(run)
    return b"" if stored is None else stored.body


# --- the example of contract v1, section 4.2 -------------------------------------------------------------


def test_the_first_fetch_of_the_example_moves_the_watermark(gapped: Gapped) -> None:
    gapped.arrive(1, 2, 3)
    gapped.projector.poll()
    projection = gapped.projector.projection("r-1")
    assert (projection.watermark, projection.status, projection.resyncs) == (3, "LIVE", 0)
    assert (gapped.raised, gapped.snapshot) == ([], gapped.fold_of(1, 2, 3))


def test_the_second_fetch_of_the_example_marks_the_run_stale(gapped: Gapped) -> None:
    gapped.arrive(1, 2, 3)
    gapped.projector.poll()
    gapped.projector.observe("r-1", gapped.arrive(5, 6))
    projection = gapped.projector.projection("r-1")
    assert (projection.watermark, projection.status) == (3, "STALE")


def test_the_snapshot_of_the_contracts_says_that_the_run_is_stale(gapped: Gapped) -> None:
    gapped.arrive(1, 2, 3)
    gapped.projector.poll()
    gapped.projector.observe("r-1", gapped.arrive(5, 6))
    found = RunStateStoreV1(gapped.store).get_snapshot("r-1")
    assert found is not None
    assert found.projection == "STALE"
    gapped.projector.poll()
    found = RunStateStoreV1(gapped.store).get_snapshot("r-1")
    assert found is not None
    assert found.projection == "LIVE"


def test_the_gap_of_the_example_is_told(gapped: Gapped) -> None:
    gapped.arrive(1, 2, 3)
    gapped.projector.poll()
    gapped.arrive(5, 6)
    gapped.projector.poll()
    alert = gapped.raised[0]
    assert (alert.code, alert.level, alert.subject) == ("PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED", "P3", "r-1")
    assert alert.details == {"stream": "r-1", "expectedSeq": 4, "observedSeq": 5}


def test_the_resync_of_the_example_resumes_beyond_the_gap(gapped: Gapped) -> None:
    gapped.arrive(1, 2, 3)
    gapped.projector.poll()
    gapped.arrive(5, 6)
    gapped.projector.poll()
    projection = gapped.projector.projection("r-1")
    assert (projection.watermark, projection.status, projection.resyncs) == (6, "LIVE", 1)
    assert gapped.snapshot == gapped.fold_of(1, 2, 3, 5, 6)


def test_the_third_fetch_of_the_example_fills_the_gap_in_its_place(gapped: Gapped) -> None:
    for fetch in ([1, 2, 3], [5, 6], [4, 7, 8]):
        gapped.arrive(*fetch)
        gapped.projector.poll()
    projection = gapped.projector.projection("r-1")
    assert (projection.watermark, projection.applied, projection.status) == (8, 8, "LIVE")
    assert gapped.snapshot == gapped.fold_of(1, 2, 3, 4, 5, 6, 7, 8)


def test_after_the_example_nothing_is_read_again(gapped: Gapped) -> None:
    for fetch in ([1, 2, 3], [5, 6], [4, 7, 8]):
        gapped.arrive(*fetch)
        gapped.projector.poll()
    for _ in range(3):
        gapped.projector.poll()
    assert gapped.projector.projection("r-1").resyncs == 2


# --- gaps ------------------------------------------------------------------------------------------------


def test_a_gap_that_is_never_filled_is_left_behind_after_one_resync(gapped: Gapped) -> None:
    gapped.arrive(1, 2, 4)
    for _ in range(5):
        gapped.projector.poll()
    projection = gapped.projector.projection("r-1")
    assert (projection.watermark, projection.status, projection.resyncs) == (4, "LIVE", 1)


def test_a_run_goes_on_beyond_a_gap_without_further_resyncs(gapped: Gapped) -> None:
    gapped.arrive(1, 2, 4)
    gapped.projector.poll()
    gapped.arrive(5, 6, 7)
    gapped.projector.poll()
    assert (gapped.projector.projection("r-1").resyncs, gapped.snapshot) == (1, gapped.fold_of(1, 2, 4, 5, 6, 7))


def test_a_gap_at_the_very_beginning_is_a_gap(gapped: Gapped) -> None:
    gapped.arrive(3, 4)
    gapped.projector.poll()
    assert (gapped.codes()[0], gapped.snapshot) == ("PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED", gapped.fold_of(3, 4))


def test_a_late_event_is_put_in_its_place_though_nothing_new_came(gapped: Gapped) -> None:
    gapped.arrive(1, 2, 3, 5)
    gapped.projector.poll()
    gapped.arrive(4)
    gapped.projector.poll()
    assert gapped.snapshot == gapped.fold_of(1, 2, 3, 4, 5)


def test_a_late_event_is_put_in_its_place_after_a_restart_too(gapped: Gapped) -> None:
    gapped.arrive(1, 2, 3, 5)
    gapped.projector.poll()
    gapped.arrive(4)
    gapped.restarted(after=gapped.projector.position).poll()
    assert gapped.snapshot == gapped.fold_of(1, 2, 3, 4, 5)


def test_a_gap_may_be_filled_in_any_order(gapped: Gapped) -> None:
    for seq in (8, 1, 6, 3, 2, 7, 5, 4):
        gapped.arrive(seq)
        gapped.projector.poll()
    projection = gapped.projector.projection("r-1")
    assert (projection.watermark, projection.applied, projection.status) == (8, 8, "LIVE")
    assert gapped.snapshot == gapped.fold_of(*range(1, 9))


def test_a_run_stays_stale_until_the_log_gives_what_was_observed(gapped: Gapped) -> None:
    gapped.arrive(1, 2)
    gapped.projector.poll()
    gapped.projector.observe("r-1", [GappedLog().place(4, gapped.events[4])])
    gapped.projector.sweep()
    assert gapped.projector.projection("r-1").status == "STALE"
    gapped.arrive(4)
    gapped.projector.sweep()
    assert (gapped.projector.projection("r-1").status, gapped.snapshot) == ("LIVE", gapped.fold_of(1, 2, 4))


def test_a_sweep_of_a_run_that_cannot_catch_up_ends(gapped: Gapped) -> None:
    gapped.arrive(1, 2)
    gapped.projector.poll()
    gapped.projector.observe("r-1", [GappedLog().place(4, gapped.events[4])])
    for _ in range(3):
        gapped.projector.sweep()
    assert gapped.projector.projection("r-1").watermark == 2


def test_a_gap_is_told_once_however_often_it_is_seen(gapped: Gapped) -> None:
    gapped.arrive(1, 2, 4)
    gapped.projector.poll()
    gapped.restarted().poll()
    assert gapped.codes().count("PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED") == 1


def test_a_resync_reads_page_by_page(write: Write) -> None:
    gapped = Gapped(write, page_events=2)
    gapped.arrive(1, 2, 4, 5, 6, 7, 8)
    while gapped.projector.poll():
        pass
    assert gapped.snapshot == gapped.fold_of(1, 2, 4, 5, 6, 7, 8)


def test_a_late_event_is_put_in_its_place_page_by_page(write: Write) -> None:
    gapped = Gapped(write, page_events=2)
    gapped.arrive(1, 2, 4, 5, 6)
    while gapped.projector.poll():
        pass
    gapped.arrive(3)
    gapped.projector.poll()
    assert gapped.snapshot == gapped.fold_of(1, 2, 3, 4, 5, 6)


def test_a_gap_in_one_run_leaves_the_others_alone(gapped: Gapped, write: Write) -> None:
    gapped.arrive(1, 3)
    gapped.log.place(1, write(run="r-2"))
    gapped.projector.poll()
    assert (gapped.projector.projection("r-2").resyncs, gapped.projector.projection("r-1").resyncs) == (0, 1)


# --- deleted runs ----------------------------------------------------------------------------------------


def test_a_stale_run_that_was_deleted_is_let_go(gapped: Gapped) -> None:
    gapped.projector.observe("r-1", gapped.arrive(1, 3))
    gapped.log.delete_stream("r-1")
    gapped.projector.sweep()
    projection = gapped.projector.projection("r-1")
    assert (projection.watermark, projection.status) == (0, "LIVE")


def test_a_run_that_was_deleted_while_it_is_projected_fails_nothing(gapped: Gapped) -> None:
    records = gapped.arrive(1, 2)
    gapped.log.delete_stream("r-1")
    gapped.projector.observe("r-1", records)
    gapped.projector.poll()
    assert gapped.snapshot == b""


# --- known events ----------------------------------------------------------------------------------------


def test_an_event_that_comes_twice_changes_nothing(gapped: Gapped) -> None:
    records = gapped.arrive(1, 2, 3)
    gapped.projector.poll()
    before = gapped.snapshot
    gapped.projector.observe("r-1", records)
    gapped.projector.observe("r-1", records[1:2])
    gapped.projector.sweep()
    projection = gapped.projector.projection("r-1")
    assert (gapped.snapshot, projection.watermark, projection.applied, projection.resyncs) == (before, 3, 3, 0)


def test_one_fetch_may_hold_an_event_twice(gapped: Gapped) -> None:
    first, second, third = gapped.arrive(1, 2, 3)
    gapped.projector.observe("r-1", [first, second, second, first, third])
    assert (gapped.projector.projection("r-1").watermark, gapped.snapshot) == (3, gapped.fold_of(1, 2, 3))


@pytest.mark.parametrize("seqs", [range(1, 9), (1, 2, 4, 5, 8), (5, 6, 1, 2)], ids=str)
@pytest.mark.parametrize("events_again", range(9))
def test_reprocessing_from_any_older_position_changes_nothing(gapped: Gapped, seqs: Any, events_again: int) -> None:
    gapped.arrive(*seqs)
    gapped.projector.poll()
    before, alerts = gapped.snapshot, list(gapped.raised)
    older = Position(str(max(0, len(seqs) - events_again)))
    gapped.restarted(after=older).poll()
    gapped.projector.position = older
    gapped.projector.poll()
    assert (gapped.snapshot, gapped.raised) == (before, alerts)


def test_an_older_projector_does_not_take_the_snapshot_back(gapped: Gapped) -> None:
    gapped.arrive(1, 2, 3)
    slow = gapped.restarted()
    slow.projection("r-1")
    gapped.projector.poll()
    gapped.arrive(4, 5)
    gapped.projector.poll()
    slow.observe("r-1", gapped.log.read("r-1", limit=2))
    assert gapped.snapshot == gapped.fold_of(1, 2, 3, 4, 5)


# --- meaning ---------------------------------------------------------------------------------------------


def test_an_unknown_type_moves_the_watermark_alone(gapped: Gapped, write: Write) -> None:
    gapped.arrive(1)
    gapped.log.place(2, write("Telemetry", payload={"cpu": 1}))
    gapped.projector.poll()
    state = gapped.store.get_snapshot("r-1")
    assert state is not None
    assert (state.last_event_seq, state.status, state.inconsistent, gapped.raised) == (2, "RUNNING", False, [])


def test_an_impossible_event_moves_the_watermark_and_marks_the_run(gapped: Gapped, write: Write) -> None:
    gapped.log.place(1, write("RunResumed"))
    gapped.projector.poll()
    state = gapped.store.get_snapshot("r-1")
    assert state is not None
    assert (state.last_event_seq, state.status, state.inconsistent) == (1, "PENDING", True)


def test_an_impossible_event_is_told_once_however_often_it_is_projected(gapped: Gapped, write: Write) -> None:
    gapped.log.place(1, write("RunResumed"))
    gapped.projector.poll()
    for _ in range(2):
        gapped.restarted().poll()
    gapped.log.place(3, write("RunPaused"))
    gapped.projector.poll()
    told = [alert.details["runSeq"] for alert in gapped.raised if alert.code == "INVALID_TRANSITION"]
    assert told == [1, 3]


def test_a_step_that_ends_before_it_starts_is_told(gapped: Gapped, write: Write) -> None:
    gapped.log.place(1, write("StepCompleted", "a"))
    gapped.projector.poll()
    assert [(a.code, a.level) for a in gapped.raised] == [
        ("INVALID_TRANSITION", "P2"),
        ("PROJECTOR_CAUSAL_VIOLATION", "P3"),
    ]


def test_a_snapshot_of_another_version_of_the_model_is_projected_anew(gapped: Gapped) -> None:
    class Newer(EngineModel):
        version = EngineModel.version + 1

    gapped.arrive(1, 2, 3)
    gapped.projector.poll()
    newer = runstate.Store(gapped.log, Newer(), snapshot_every=0)
    Projector(newer, clock=lambda: noon).poll()
    assert newer.snapshots.stored("r-1") == newer.fresh_snapshot("r-1")


# --- on our own logs -------------------------------------------------------------------------------------


def test_every_stream_ends_with_the_snapshot_of_a_replay(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=0)
    runs = [f"r-{number % 5}" for number in range(40)]
    store.append_events([write("StepStarted", f"s-{place}", run=run) for place, run in enumerate(runs)])
    projector = Projector(store, page_events=7)
    while projector.poll():
        pass
    assert all(store.snapshots.stored(run) == store.fresh_snapshot(run) for run in set(runs))


def test_a_stream_that_was_deleted_and_begun_again_is_projected_anew(
    open_store: Open, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(snapshot_every=0)
    store.append_events([write("Note", attempt=number) for number in range(1, 6)])
    projector = Projector(store)
    projector.poll()
    store.delete_stream("r-1", forget=True)
    monkeypatch.setattr("runstate.logs.memory.log.now", lambda: "2030-01-01T00:00:00.000Z")
    monkeypatch.setattr("runstate.logs.sqlite.writer.now", lambda: "2030-01-01T00:00:00.000Z")
    store.append_event(write("RunStarted"))
    projector.poll()
    assert store.snapshots.stored("r-1") == store.fresh_snapshot("r-1")


def test_a_poll_says_how_many_events_came(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=0)
    store.append_events([write("Note", attempt=number) for number in range(1, 6)])
    projector = Projector(store, page_events=3)
    assert [projector.poll() for _ in range(3)] == [3, 2, 0]


def test_a_restart_goes_on_from_its_position_and_its_snapshots(open_store: Open, write: Write) -> None:
    raised: list[Alert] = []
    store = open_store(snapshot_every=0, on_alert=raised.append)
    store.append_events([write("StepStarted", f"s-{number}") for number in range(3)])
    first = Projector(store)
    first.poll()
    store.append_events([write("StepCompleted", f"s-{number}") for number in range(3)])
    second = Projector(store, after=first.position)
    assert second.projection("r-1").watermark == 3
    second.poll()
    assert (second.projection("r-1").watermark, second.projection("r-1").resyncs, raised) == (6, 0, [])
    assert store.snapshots.stored("r-1") == store.fresh_snapshot("r-1")


def test_a_restart_without_a_position_reads_all_and_changes_nothing(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=0)
    store.append_events([write("StepStarted", f"s-{number}") for number in range(3)])
    Projector(store).poll()
    before = stored_body(store)
    again = Projector(store)
    again.poll()
    assert (stored_body(store), again.projection("r-1").status) == (before, "LIVE")


def test_a_projector_beside_inline_snapshots_agrees_with_them(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=1)
    store.append_events([write("StepStarted", f"s-{number}") for number in range(3)])
    before = stored_body(store)
    projector = Projector(store)
    projector.poll()
    assert (stored_body(store), projector.projection("r-1").status) == (before, "LIVE")


# --- lag -------------------------------------------------------------------------------------------------


class Lagging:
    """One event that was stored at noon, a projector that has not seen it, and a clock."""

    def __init__(self, write: Write, set_clock: Callable[[str], None]) -> None:
        set_clock("2026-11-15T12:00:00.000Z")
        self.raised: list[Alert] = []
        self.store = runstate.open("memory:", snapshot_every=0, on_alert=self.raised.append)
        self.now = noon
        self.projector = Projector(self.store, clock=lambda: self.now)
        self.store.append_event(write())

    def after(self, seconds: float) -> float:
        self.now = noon + timedelta(seconds=seconds)
        return self.projector.heartbeat()

    def open_alerts(self) -> list[str]:
        return [alert.code for alert in self.store.alerts.active()]


@pytest.fixture
def lagging(write: Write, set_clock: Callable[[str], None]) -> Lagging:
    return Lagging(write, set_clock)


@pytest.mark.parametrize("seconds", [0.0, 1.0, 1.5, 5.0])
def test_a_lag_of_up_to_five_seconds_raises_nothing(lagging: Lagging, seconds: float) -> None:
    assert (lagging.after(seconds), lagging.projector.lag_s, lagging.raised) == (seconds, seconds, [])


def test_a_lag_of_more_than_five_seconds_is_told_once(lagging: Lagging) -> None:
    for seconds in (5.001, 6, 60):
        lagging.after(seconds)
    (alert,) = lagging.raised
    assert (alert.code, alert.level, alert.subject) == ("PROJECTOR_LAG_HIGH", "P2", "projector")


def test_the_alert_stays_open_until_the_lag_is_normal_again(lagging: Lagging) -> None:
    lagging.after(6)
    lagging.after(1.001)
    assert lagging.open_alerts() == ["PROJECTOR_LAG_HIGH"]


def test_the_alert_is_cleared_at_a_second(lagging: Lagging) -> None:
    lagging.after(6)
    lagging.after(1.0)
    assert lagging.open_alerts() == []


def test_the_alert_is_cleared_when_all_is_projected(lagging: Lagging) -> None:
    lagging.after(6)
    lagging.projector.poll()
    assert (lagging.open_alerts(), lagging.projector.lag_s) == ([], 0.0)


def test_a_second_lag_is_told_again(lagging: Lagging) -> None:
    for seconds in (6, 0, 6):
        lagging.after(seconds)
    assert len(lagging.raised) == 2


@pytest.mark.parametrize(("seconds", "resyncs"), [(0, 0), (10.0, 0), (10.001, 1), (86400, 1)])
def test_what_is_older_than_ten_seconds_is_resynced(lagging: Lagging, seconds: float, resyncs: int) -> None:
    lagging.now = noon + timedelta(seconds=seconds)
    lagging.projector.poll()
    projection = lagging.projector.projection("r-1")
    assert (projection.watermark, projection.status, projection.resyncs) == (1, "LIVE", resyncs)


def test_a_clock_that_was_set_back_gives_no_negative_lag(lagging: Lagging) -> None:
    assert lagging.after(-3600) == 0.0


def test_the_lag_is_that_of_the_oldest_event_that_waits(
    lagging: Lagging, write: Write, set_clock: Callable[[str], None]
) -> None:
    set_clock("2026-11-15T12:00:03.000Z")
    lagging.store.append_event(write("RunPaused"))
    assert lagging.after(4) == 4.0


def test_a_stuck_projector_shows_its_lag(lagging: Lagging, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(records: Any) -> None:
        raise LogBusy()

    monkeypatch.setattr(lagging.projector, "project", stuck)
    with pytest.raises(LogBusy):
        lagging.projector.poll()
    assert (lagging.after(7), lagging.open_alerts()) == (7.0, ["PROJECTOR_LAG_HIGH"])


def test_a_page_that_is_left_over_counts_as_lag(write: Write, lagging: Lagging) -> None:
    lagging.store.append_event(write("RunPaused"))
    lagging.now = noon + timedelta(seconds=7)
    small = Projector(lagging.store, page_events=1, clock=lambda: lagging.now)
    small.poll()
    assert (small.lag_s, lagging.open_alerts()) == (7.0, ["PROJECTOR_LAG_HIGH"])


# --- run -------------------------------------------------------------------------------------------------


def test_run_projects_until_it_is_told_to_stop(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=0)
    store.append_event(write())
    stop, feed = threading.Event(), store.log.feed

    class Stopping:
        """Ends the loop as soon as the feed has nothing more."""

        def __call__(self, **question: Any) -> FeedPage:
            page = feed(**question)
            if not page.records:
                stop.set()
            return page

    store.log.feed = Stopping()  # type: ignore[method-assign]
    Projector(store).run(stop, interval_s=0)
    assert store.snapshots.stored("r-1") == store.fresh_snapshot("r-1")


def test_run_waits_for_a_log_that_is_away_and_shows_the_lag(lagging: Lagging, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, feed, lags = threading.Event(), lagging.store.log.feed, []

    def away(**question: Any) -> FeedPage:
        lags.append(lagging.projector.lag_s)
        if len(lags) <= 3:
            lagging.now += timedelta(seconds=4)
            raise LogBusy()
        stop.set()
        return feed(**question)

    monkeypatch.setattr(lagging.store.log, "feed", away)
    lagging.projector.run(stop, interval_s=0)
    assert lags[:4] == [0.0, 4.0, 8.0, 12.0]
    assert [alert.code for alert in lagging.raised] == ["PROJECTOR_LAG_HIGH"]
    assert (lagging.projector.projection("r-1").watermark, lagging.open_alerts()) == (1, [])


def test_run_does_not_go_on_when_no_retry_can_help(open_store: Open) -> None:
    store = open_store()
    projector = Projector(store)
    store.close()
    with pytest.raises(LogClosed):
        projector.run(threading.Event(), interval_s=0)


# --- when something fails --------------------------------------------------------------------------------


def test_a_snapshot_that_could_not_be_kept_once_costs_nothing_but_a_retry(
    gapped: Gapped, monkeypatch: pytest.MonkeyPatch
) -> None:
    gapped.arrive(1, 2)
    gapped.projector.poll()
    gapped.arrive(3)

    def busy(stream: str, snapshot: StoredSnapshot) -> None:
        raise LogBusy()

    with monkeypatch.context() as patched:
        patched.setattr(gapped.log, "save_snapshot", busy)
        with pytest.raises(LogBusy):
            gapped.projector.poll()
    gapped.arrive(4, 5)
    gapped.projector.poll()
    assert (gapped.projector.projection("r-1").watermark, gapped.snapshot) == (5, gapped.fold_of(1, 2, 3, 4, 5))


def test_a_resync_that_failed_half_way_is_done_again(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    gapped = Gapped(write, page_events=2)
    gapped.arrive(1, 2, 4, 5, 6)
    read, calls = gapped.log.read, []

    def failing(stream: str, *, after_seq: int = 0, limit: int = 1000) -> list[Record]:
        calls.append(after_seq)
        if len(calls) == 2:
            raise LogBusy()
        return read(stream, after_seq=after_seq, limit=limit)

    monkeypatch.setattr(gapped.log, "read", failing)
    gapped.projector.poll()
    with pytest.raises(LogBusy):
        gapped.projector.poll()
    while gapped.projector.poll():
        pass
    assert (gapped.projector.projection("r-1").status, gapped.snapshot) == ("LIVE", gapped.fold_of(1, 2, 4, 5, 6))


# --- more streams than fit into memory -------------------------------------------------------------------


def test_runs_that_are_over_leave_the_memory(open_store: Open, write: Write) -> None:
    store = open_store(snapshot_every=0)
    projector = Projector(store)
    store.append_events([write("RunStarted", run=run) for run in ("r-1", "r-2", "r-3")])
    projector.poll()
    assert projector.held == 3
    store.append_events([write("RunCompleted", run=run) for run in ("r-1", "r-3")])
    projector.poll()
    assert projector.held == 1


def test_streams_that_were_let_go_are_taken_up_again(
    open_store: Open, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.projector._states_max", 2)
    store = open_store(snapshot_every=0)
    projector = Projector(store, page_events=3)
    for number in range(4):
        store.append_events([write("StepStarted", f"s-{number}", run=f"r-{run}") for run in range(5)])
        while projector.poll():
            pass
    assert all(store.snapshots.stored(f"r-{run}") == store.fresh_snapshot(f"r-{run}") for run in range(5))


def test_a_stale_run_is_resynced_before_it_is_let_go(
    gapped: Gapped, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.projector._states_max", 1)
    gapped.arrive(1, 3)
    gapped.log.place(1, write(run="r-2"))
    gapped.projector.poll()
    assert gapped.snapshot == gapped.fold_of(1, 3)


def test_many_stale_runs_in_little_memory_are_all_resynced(
    gapped: Gapped, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.projector._states_max", 1)
    runs = ["r-1", "r-2", "r-3"]
    for seq in (2, 4, 3):
        for run in runs:
            gapped.log.place(seq, write("Note", attempt=seq, run=run))
        gapped.projector.poll()
        gapped.log.place(seq + 10, write("Note", attempt=seq + 10, run="r-1"))
        gapped.projector.poll()
    assert all(gapped.store.snapshots.stored(run) == gapped.store.fresh_snapshot(run) for run in runs)


# --- what the sink is told -------------------------------------------------------------------------------


class RecordingSink(TellingSink):
    def __init__(self) -> None:
        self.rows: list[Projected] = []
        self.dropped: list[str] = []
        super().__init__(self.rows.append)

    def drop(self, stream: str) -> None:
        self.dropped.append(stream)
        super().drop(stream)


def test_a_run_is_shown_as_stale_while_it_is_resynced(gapped: Gapped) -> None:
    sink = RecordingSink()
    projector = gapped.restarted(sink=sink)
    gapped.arrive(1, 2)
    projector.poll()
    gapped.arrive(5)
    projector.poll()
    assert [(row.last_event_seq, row.stale, row.applied) for row in sink.rows] == [
        (2, False, 2),
        (2, True, 2),
        (5, False, 3),
    ]


def test_a_row_that_was_left_stale_is_resynced_after_a_restart_though_nothing_new_comes_of_it(gapped: Gapped) -> None:
    sink = RecordingSink()
    projector = gapped.restarted(sink=sink)
    gapped.arrive(1, 2)
    projector.poll()
    (late,) = gapped.arrive(5)
    projector.observe("r-1", [late])  # Killed here: it is marked, and nothing more.
    assert sink.rows[-1].stale
    projector = gapped.restarted(sink=sink)
    projector.projection("r-1")
    projector.sweep()
    assert (sink.rows[-1].last_event_seq, sink.rows[-1].stale, sink.rows[-1].body) == (
        5,
        False,
        gapped.fold_of(1, 2, 5),
    )


def test_what_a_power_cut_took_from_the_sink_is_made_good_though_nothing_new_comes(
    open_store: Open, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.projector._states_max", 2)
    store = open_store(snapshot_every=0)
    store.append_events([write("Note", attempt=n, run=f"r-{run}") for run in range(5) for n in (1, 2, 3)])
    sink = RecordingSink()
    projector = Projector(store, sink=sink)
    projector.poll()
    lost = {run: sink.load(run) for run in ("r-1", "r-3")}
    for run, row in lost.items():
        assert row is not None
        sink.drop(run)
    early = RecordingSink()
    Projector(store, sink=early).observe("r-3", store.log.read("r-3", limit=2))
    sink.keep(early.rows[-1:])
    restarted = Projector(store, sink=sink, after=projector.position)
    assert restarted.reconcile() == 2
    assert restarted.reconcile() == 0
    for run, row in lost.items():
        found = sink.load(run)
        assert found is not None
        assert row is not None
        assert (found.last_event_seq, found.applied, found.body, found.stale) == (3, 3, row.body, False)
    assert len(restarted._states) <= 2


def test_a_run_that_is_over_leaves_the_memory(gapped: Gapped, write: Write) -> None:
    gapped.log.place(1, write("RunStarted"))
    gapped.log.place(1, write("RunStarted", run="r-2"))
    gapped.log.place(2, write("RunCompleted"))
    gapped.projector.poll()
    assert list(gapped.projector._states) == list(gapped.projector._projections) == ["r-2"]
    # What still comes of it is projected all the same.
    gapped.log.place(3, write("Note"))
    gapped.projector.poll()
    assert gapped.store.snapshots.stored("r-1") == gapped.store.fresh_snapshot("r-1")


def test_a_stream_that_was_deleted_is_dropped_from_the_sink(gapped: Gapped) -> None:
    sink = RecordingSink()
    projector = gapped.restarted(sink=sink)
    gapped.arrive(1, 2)
    projector.poll()
    (late,) = gapped.arrive(5)
    gapped.store.delete_stream("r-1")
    projector.project([late])
    assert sink.dropped == ["r-1"]
    assert sink.load("r-1") is None
