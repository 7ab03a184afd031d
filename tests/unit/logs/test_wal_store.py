"""A store over a compacted WAL: its states come from the snapshot on, and what is gone is said to be gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runstate.errors import Truncated
from runstate.logs.wal import WalLog
from runstate.logs.wal.options import WalOptions
from runstate.models.rundir import RUNDIR, RunEvent
from runstate.store import Store

RunStore = Store[RunEvent, Any, Any]


def section(number: int) -> RunEvent:
    return RunEvent(
        event_id=f"e{number}",
        run_id="r",
        type="SECTION_STATE_CHANGED",
        payload={"section": f"s{number}", "new_state": "DONE"},
        trace_id="a" * 32,
        span_id="b" * 16,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with Store(WalLog(tmp_path / "drop"), RUNDIR, snapshot_every=0) as store:
        for number in range(1, 7):
            store.append_event(section(number))
        yield store


def checkpoint(store: RunStore, seq: int) -> None:
    log = store.log
    assert isinstance(log, WalLog)
    for _ in range(2):  # A checkpoint removes the entries before the previous one.
        log.checkpoint("r", store.snapshots.of(store.snapshot_at("r", seq=seq), seq))


def test_the_state_is_the_same_before_and_after_a_checkpoint(store: RunStore) -> None:
    before = RUNDIR.dump(store.project_snapshot("r"))
    checkpoint(store, 4)
    assert RUNDIR.dump(store.project_snapshot("r")) == before
    assert RUNDIR.dump(store.current_state("r")) == before
    assert store.rebuild_snapshot("r").body == before


def test_a_state_from_the_checkpoint_on_can_be_told_and_an_earlier_one_cannot(store: RunStore) -> None:
    states = {seq: RUNDIR.dump(store.snapshot_at("r", seq=seq)) for seq in range(1, 7)}
    checkpoint(store, 4)
    for seq in (4, 5, 6):
        assert RUNDIR.dump(store.snapshot_at("r", seq=seq)) == states[seq]
    for seq in (1, 3):
        with pytest.raises(Truncated):
            store.snapshot_at("r", seq=seq)


def test_a_time_is_looked_up_in_what_the_log_still_holds(store: RunStore) -> None:
    before = RUNDIR.dump(store.project_snapshot("r"))
    checkpoint(store, 4)
    assert RUNDIR.dump(store.snapshot_at("r", at="2100-01-01T00:00:00Z")) == before
    with pytest.raises(Truncated):
        store.snapshot_at("r", at="2000-01-01T00:00:00Z")


def test_without_its_snapshots_a_compacted_stream_has_no_state(store: RunStore, tmp_path: Path) -> None:
    checkpoint(store, 4)
    for path in (tmp_path / "drop" / "r").glob("snapshot.*"):
        path.unlink()
    with pytest.raises(Truncated):
        store.project_snapshot("r")


def test_with_an_archive_every_state_can_be_told(tmp_path: Path) -> None:
    log = WalLog(tmp_path / "archive", options=WalOptions(history="archive"))
    with Store(log, RUNDIR, snapshot_every=0) as store:
        for number in range(1, 7):
            store.append_event(section(number))
        states = [RUNDIR.dump(store.snapshot_at("r", seq=seq)) for seq in range(1, 7)]
        checkpoint(store, 3)
        checkpoint(store, 5)
        (tmp_path / "archive" / "r" / "snapshot.rundir.json").unlink()
        assert [RUNDIR.dump(store.snapshot_at("r", seq=seq)) for seq in range(1, 7)] == states
