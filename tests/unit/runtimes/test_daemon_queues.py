"""Work queues: one worker gets an item, and whatever becomes of it or of the worker, it is done or comes back."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.runtimes.daemon_places import Place, schemes, until

from runstate.errors import InvalidTransition, LogBusy, LogClosed
from runstate.models.daemon import DAEMON
from runstate.models.daemon import events as e
from runstate.runtimes.daemon import Daemon, QueueStats


@pytest.fixture(params=schemes)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def daemon(place: Place) -> Daemon:
    return place.open()


def types(daemon: Daemon) -> list[str]:
    return [record.type for record in daemon.events(limit=100_000)]


# --- the way of an item --------------------------------------------------------------------------------------------


def test_items_are_taken_in_the_order_of_their_pushes(daemon: Daemon) -> None:
    pushed = [daemon.push("q", n) for n in range(3)]
    worker = daemon.worker("w", "q", concurrency=3)
    taken = [worker.take() for _ in range(4)]
    assert [item and (item.id, item.data, item.status) for item in taken] == [
        *((item_id, n, "taken") for n, item_id in enumerate(pushed)),
        None,
    ]


def test_a_completed_item_is_gone(daemon: Daemon) -> None:
    daemon.push("q", item_id="1")
    worker = daemon.worker("w", "q")
    assert worker.take() is not None
    worker.complete("1")
    assert (worker.take(), daemon.items("q")) == (None, [])
    assert types(daemon) == ["queue:pushed", "worker:started", "queue:taken", "queue:completed"]


def test_a_failed_item_comes_back_behind_the_others_with_its_count(daemon: Daemon) -> None:
    for item_id in "12":
        daemon.push("q", item_id=item_id)
    worker = daemon.worker("w", "q")
    assert worker.take() is not None
    failed = worker.fail("1", "no")
    assert (failed.status, failed.failure_count, failed.error) == ("failed", 1, "no")
    order = []
    while (item := worker.take()) is not None:
        order.append((item.id, item.failure_count))
        worker.complete(item.id)
    assert order == [("2", 0), ("1", 1)]


def test_an_item_that_fails_too_often_is_dead_until_it_is_retried(place: Place) -> None:
    daemon = place.open(failures_max=2)
    daemon.push("q", item_id="1")
    worker = daemon.worker("w", "q")
    statuses = []
    while worker.take() is not None:
        statuses.append(worker.fail("1", "no").status)
    assert statuses == ["failed", "dead"]
    daemon.retry("q", "1")
    again = worker.take()
    assert again is not None
    assert (again.status, again.failure_count) == ("taken", 0)


def test_a_failure_and_its_death_are_stored_together(place: Place) -> None:
    daemon = place.open(failures_max=1)
    daemon.push("q", item_id="1")
    worker = daemon.worker("w", "q")
    worker.take()
    worker.fail("1", "no")
    assert types(daemon)[-2:] == ["queue:failed", "queue:item_dead"]


def test_an_item_may_be_dispatched_as_a_pipeline(daemon: Daemon) -> None:
    daemon.push("q", item_id="1")
    daemon.worker("w", "q").take(pipeline_id="p1")
    assert daemon.state.workers["w"].dispatched == {"1": "p1"}


def test_queues_of_two_namespaces_are_strangers(daemon: Daemon) -> None:
    daemon.push("q", "a", namespace="ns")
    assert daemon.worker("w", "q").take() is None
    item = daemon.worker("w", "q", namespace="ns").take()
    assert item is not None
    assert item.data == "a"


def test_a_worker_takes_from_its_own_queue_alone(daemon: Daemon) -> None:
    daemon.push("other")
    assert daemon.worker("w", "q").take() is None


def test_a_push_under_a_known_id_is_refused_and_a_retry_is_not(daemon: Daemon) -> None:
    daemon.push("q", item_id="1", event_id="e1")
    with pytest.raises(InvalidTransition):
        daemon.push("q", item_id="1")
    assert daemon.push("q", item_id="1", event_id="e1") == "1"
    assert daemon.seq == 1


# --- who may do what -----------------------------------------------------------------------------------------------


def test_an_unknown_worker_can_take_nothing(daemon: Daemon) -> None:
    daemon.push("q")
    with pytest.raises(InvalidTransition, match=r"no worker 'ghost'.*never started"):
        daemon.take("ghost")
    assert types(daemon) == ["queue:pushed"]


def test_a_worker_holds_no_more_items_than_its_concurrency(daemon: Daemon) -> None:
    for _ in range(3):
        daemon.push("q")
    worker = daemon.worker("w", "q", concurrency=2)
    held = [worker.take(), worker.take(), worker.take()]
    assert [item is None for item in held] == [False, False, True]
    assert held[0] is not None
    worker.complete(held[0].id)
    assert worker.take() is not None


def test_only_who_holds_an_item_can_complete_or_fail_it(daemon: Daemon) -> None:
    daemon.push("q", item_id="1")
    one, other = daemon.worker("one", "q"), daemon.worker("other", "q")
    one.take()
    for ask in (lambda: other.complete("1"), lambda: other.fail("1", "no"), lambda: one.complete("2")):
        with pytest.raises(InvalidTransition, match="does not hold"):
            ask()
    one.complete("1")
    with pytest.raises(InvalidTransition):
        one.complete("1")


def test_an_operator_may_complete_an_item_that_anybody_holds(daemon: Daemon) -> None:
    daemon.push("q", item_id="1")
    with pytest.raises(InvalidTransition, match="pending, not taken"):
        daemon.complete("q", "1")
    daemon.worker("w", "q").take()
    daemon.complete("q", "1")
    assert daemon.items("q") == []


def test_a_worker_that_somebody_holds_is_nobody_elses(daemon: Daemon) -> None:
    daemon.worker("w", "q")
    with pytest.raises(LogBusy):
        daemon.worker("w", "q")
    with pytest.raises(InvalidTransition, match="belongs to"):
        daemon.take("w")


def test_a_take_may_name_the_queue_that_it_means(daemon: Daemon) -> None:
    worker = daemon.worker("w", "q")
    with pytest.raises(InvalidTransition, match="works on 'q'"):
        daemon.take("w", queue="other", lease=worker.lease)


@pytest.mark.parametrize("status", ["pending", "taken"])
def test_only_what_has_failed_is_retried(daemon: Daemon, status: str) -> None:
    daemon.push("q", item_id="1")
    if status == "taken":
        daemon.worker("w", "q").take()
    with pytest.raises(InvalidTransition, match=status):
        daemon.retry("q", "1")


def test_a_queue_that_nobody_has_pushed_to_is_an_empty_one(daemon: Daemon) -> None:
    assert (daemon.items("q"), daemon.stats()) == ([], [])


def test_stats_count_every_status(place: Place) -> None:
    daemon = place.open(failures_max=1)
    for item_id in "1234":
        daemon.push("q", item_id=item_id)
    worker = daemon.worker("w", "q", concurrency=2)
    worker.take()
    worker.fail("1", "dead at once")
    worker.take()
    daemon.push("ns-q", namespace="ns")
    assert daemon.stats() == [QueueStats("ns/ns-q", 1, 0, 0, 0, 0), QueueStats("q", 2, 1, 0, 1, 1)]
    assert [item.id for item in daemon.items("q", status="pending", limit=1)] == ["3"]


# --- workers that end ----------------------------------------------------------------------------------------------


def test_a_worker_that_stops_gives_back_what_it_holds_without_blame(daemon: Daemon) -> None:
    daemon.push("q", item_id="1")
    with daemon.worker("w", "q") as worker:
        worker.take()
    (item,) = daemon.items("q")
    assert (item.status, item.failure_count, daemon.state.workers) == ("pending", 0, {})
    assert types(daemon)[-2:] == ["queue:item_retry", "worker:stopped"]


def test_a_worker_that_raises_has_failed_its_items(daemon: Daemon) -> None:
    daemon.push("q", item_id="1")

    def work() -> None:
        with daemon.worker("w", "q") as worker:
            worker.take()
            raise ZeroDivisionError("oh")

    with pytest.raises(ZeroDivisionError):
        work()
    (item,) = daemon.items("q")
    assert (item.status, item.error) == ("failed", "ZeroDivisionError('oh')")


def test_a_worker_that_is_not_heard_of_in_time_is_gone_and_its_items_have_failed(place: Place) -> None:
    daemon = place.open()
    daemon.push("q", item_id="1")
    silent = daemon.worker("silent", "q", lease_s=10)
    assert silent.take() is not None
    other = daemon.worker("other", "q")
    place.clock.at += 9
    silent.heartbeat()
    place.clock.at += 9.5
    assert other.take() is None
    place.clock.at += 0.5
    item = other.take()
    assert item is not None
    assert (item.failure_count, item.error) == (1, "the worker silent is gone")
    for ask in (silent.heartbeat, lambda: silent.complete("1"), silent.take):
        with pytest.raises(InvalidTransition):
            ask()
    other.complete("1")


def test_a_lease_that_runs_out_is_noticed_though_nobody_asks(tmp_path: Path) -> None:
    with Daemon.open(tmp_path / "d", checkpoint_every_s=None) as daemon:
        daemon.push("q", item_id="1")
        daemon.worker("silent", "q", lease_s=0.05).take()
        other = daemon.worker("other", "q")
        item = other.take(wait_s=30)
        assert item is not None
        assert item.failure_count == 1


def test_a_worker_that_is_started_anew_has_lost_what_it_held(daemon: Daemon) -> None:
    daemon.push("q", item_id="1")
    first = daemon.worker("w", "q", lease_s=10)
    first.take()
    again = daemon.worker("w", "q", lease_s=10)
    with pytest.raises(InvalidTransition, match="another one was started"):
        first.complete("1")
    item = again.take()
    assert item is not None
    assert item.error == "the worker w was started anew"


def test_stopping_twice_is_stopping_once(daemon: Daemon) -> None:
    worker = daemon.worker("w", "q")
    worker.stop()
    worker.stop()
    assert types(daemon) == ["worker:started", "worker:stopped"]


def test_a_handle_of_the_past_does_not_stop_the_present_worker(daemon: Daemon) -> None:
    past = daemon.worker("w", "q", lease_s=10)
    daemon.worker("w", "q", lease_s=10)
    past.stop()
    assert list(daemon.state.workers) == ["w"]


def test_what_a_worker_held_that_is_not_on_record_comes_back(daemon: Daemon) -> None:
    daemon.push("q", item_id="1")
    daemon.worker("w", "q", lease_s=10).take()
    daemon.emit(e.WorkerStopped("w"))
    item = daemon.worker("other", "q").take()
    assert item is not None
    assert item.failure_count == 1


def test_a_daemon_that_is_closed_gives_back_what_its_workers_hold(place: Place) -> None:
    daemon = place.open()
    daemon.push("q", item_id="1")
    daemon.worker("w", "q").take()
    daemon.close()
    again = place.open()
    assert (again.state.workers, again.items("q")[0].status) == ({}, "pending")


def test_a_daemon_that_dismisses_gives_back_what_workers_with_leases_hold_without_blame(place: Place) -> None:
    daemon = place.open()
    for item_id in "12":
        daemon.push("q", item_id=item_id, namespace="ns")
    daemon.worker("started", "q", namespace="ns", lease_s=10).take()
    daemon.close()
    again = place.open()
    again.worker("own", "q", namespace="ns").take()
    again.dismiss()
    assert again.state.workers == {}
    assert [(i.status, i.failure_count) for i in again.items("q", namespace="ns")] == [("pending", 0)] * 2


def test_after_a_crash_a_worker_has_one_lease_to_be_heard_of(place: Place) -> None:
    daemon = place.open()
    daemon.push("q", item_id="1")
    daemon.push("q", item_id="2")
    daemon.worker("w", "q", lease_s=10).take()
    daemon.worker("lost", "q", lease_s=10).take()
    daemon.close()  # Leases are not the daemon's to end: they stand as a crash would leave them.
    again = place.open(lease_s=5)
    place.clock.at += 4
    again.heartbeat("w")
    place.clock.at += 4
    again.complete("q", "1", worker="w")
    assert [(item.id, item.status) for item in again.items("q")] == [("2", "failed")]


# --- waiting -------------------------------------------------------------------------------------------------------


def test_a_take_waits_for_a_push(daemon: Daemon) -> None:
    worker = daemon.worker("w", "q")
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(worker.take, wait_s=30)
        until(lambda: daemon._bells.get("q"))
        daemon.push("q", "late")
        item = taken.result()
    assert item is not None
    assert item.data == "late"


def test_a_take_waits_for_a_place_of_its_own(daemon: Daemon) -> None:
    worker = daemon.worker("w", "q")
    daemon.push("q", item_id="1")
    daemon.push("q", item_id="2")
    worker.take()
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(worker.take, wait_s=30)
        until(lambda: daemon._bells.get("q"))
        worker.complete("1")
        item = taken.result()
    assert item is not None
    assert item.id == "2"


def test_a_take_that_waits_in_vain_gets_nothing(daemon: Daemon) -> None:
    assert daemon.worker("w", "q").take(wait_s=0.01) is None


def test_whoever_has_asked_in_vain_leaves_nothing_behind(daemon: Daemon) -> None:
    worker = daemon.worker("w", "q")
    for wait_s in (0.0, 0.001):
        for _ in range(3):
            assert worker.take(wait_s=wait_s) is None
    assert daemon._bells == {}


def test_whoever_waits_when_the_daemon_closes_is_told(daemon: Daemon) -> None:
    worker = daemon.worker("w", "q", lease_s=1000)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(worker.take, wait_s=30)
        until(lambda: daemon._bells.get("q"))
        daemon.close()
        with pytest.raises(LogClosed):
            taken.result()


# --- all at once ---------------------------------------------------------------------------------------------------


def test_no_two_takers_get_the_same_item(daemon: Daemon) -> None:
    items = [daemon.push("q", n) for n in range(60)]
    taken: list[str] = []

    def work(name: str) -> None:
        worker = daemon.worker(name, "q", concurrency=100)
        while (item := worker.take()) is not None:
            taken.append(item.id)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(items)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_each_item_is_completed_once_or_still_there(place: Place, seed: int) -> None:
    luck, daemon = random.Random(seed), place.open(failures_max=3)
    pushed: set[str] = set()
    workers = {name: daemon.worker(name, "q", concurrency=2, lease_s=10) for name in "abc"}
    for _ in range(150):
        name = luck.choice("abc")
        held = [item_id for _, item_id in daemon._lines.held(name)]
        match luck.choice(
            ["push", "push", "take", "take", "complete", "complete", "fail", "stop", "silence", "reopen"]
        ):
            case "push":
                pushed.add(daemon.push("q"))
            case "take":
                workers[name].take()
            case "complete" if held:
                workers[name].complete(luck.choice(held))
            case "fail" if held:
                workers[name].fail(luck.choice(held), "no")
            case "stop":
                workers[name].stop(luck.choice([None, "crashed"]))
                workers[name] = daemon.worker(name, "q", concurrency=2, lease_s=10)
            case "silence":
                place.clock.at += 11
                workers = {name: daemon.worker(name, "q", concurrency=2, lease_s=10) for name in "abc"}
            case "reopen":
                daemon.close()
                daemon = place.open(failures_max=3)
                workers = {name: daemon.worker(name, "q", concurrency=2, lease_s=10) for name in "abc"}
    records = daemon.events(limit=100_000)
    completed = Counter(DAEMON.decode(r.body).item_id for r in records if r.type == "queue:completed")  # type: ignore[attr-defined]
    left = {item.id for item in daemon.state.queue_items.get("q", {}).values()}
    assert set(completed) | left == pushed
    assert not set(completed) & left
    assert set(completed.values()) <= {1}
    refused: list[object] = []
    state = DAEMON.fold(DAEMON.initial("daemon"), (r.body for r in records), refused.append)
    assert (refused, DAEMON.dump(state)) == ([], DAEMON.dump(daemon.state))
