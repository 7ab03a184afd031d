"""A daemon's events in a store, on the logs that need nothing but this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.fleets import histories

import runstate
from runstate.errors import InvalidTransition
from runstate.logs.pairing import default_model
from runstate.models.daemon import DAEMON, DaemonEvent, MaterializedState
from runstate.models.daemon.events import Custom, QueuePushed, StepFailed
from runstate.models.model import Alert
from runstate.store import Store

DaemonStore = Store[DaemonEvent, DaemonEvent, MaterializedState]


@pytest.fixture(params=["memory", "ndjson", "sqlite", "wal"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., DaemonStore]]:
    url = "memory:" if request.param == "memory" else f"{request.param}:{tmp_path / 'log'}"
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(runstate.open(url, DAEMON, **options))


def test_the_write_ahead_log_goes_with_this_model() -> None:
    assert default_model("wal:x") == "daemon"


def test_what_is_appended_is_read_back_as_it_was(open_store: Callable[..., DaemonStore]) -> None:
    store, event = open_store(), QueuePushed("q", "1", {"ü": [1.5, None]}, 7, daemon="d", event_id="e")
    done = store.append_event(event)
    assert (done.event_id, store.fetch_events("d")) == ("e", [event])
    assert store.log.read("d")[0].body == DAEMON.draft(event)[1].render(1, "")


def test_the_snapshot_is_byte_for_byte_what_a_replay_gives(open_store: Callable[..., DaemonStore]) -> None:
    store = open_store(on_alert=lambda alert: None)
    for stream, lines in histories("daemon", runs=3).items():
        store.append_events([DAEMON.parse(line) for line in lines])
        kept = store.snapshots.stored(stream)
        assert kept is not None
        assert kept.body == store.fresh_snapshot(stream).body


def test_the_same_event_without_an_id_is_stored_once(open_store: Callable[..., DaemonStore]) -> None:
    store = open_store()
    first, again = (store.append_event(Custom("n", {"a": 1})) for _ in range(2))
    assert (again.seq, again.idempotent, again.persisted) == (first.seq, True, False)


def test_other_content_under_a_known_id_raises_an_alert(open_store: Callable[..., DaemonStore]) -> None:
    raised: list[Alert] = []
    store = open_store(on_alert=raised.append)
    store.append_event(Custom("n", event_id="e"))
    assert store.append_event(Custom("m", event_id="e")).mismatch
    assert [alert.code for alert in raised] == ["IDEMPOTENCY_CONTENT_MISMATCH"]


def test_what_is_impossible_is_kept_and_told_or_refused_as_the_store_is_opened(
    open_store: Callable[..., DaemonStore],
) -> None:
    raised: list[Any] = []
    event = StepFailed("p9", "build", "no")
    with pytest.raises(InvalidTransition, match="There is no pipeline 'p9'"):
        open_store(check_transitions=True, on_alert=raised.append).append_event(event)
    assert raised == []
