"""Claims about stores and commands that must hold on every log: models, checks, snapshots, retention, lag.

These tests use the public API and the commands alone, so they can also be run against an older version of the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.commands import Cli
from tests.fleets import histories
from tests.log_urls import durable_schemes, url_at

import runstate
from runstate.errors import LogBusy, Unsupported
from runstate.logs.log import Capability
from runstate.logs.snapshotting import SnapshottingLog
from runstate.models.engine import RunEventWrite
from runstate.projector import Projector

Write = Callable[..., RunEventWrite]

own_model = """
import msgspec
from runstate import TaggedModel

class Opened(msgspec.Struct, tag="opened", frozen=True): ...
class Broken(msgspec.Struct, tag="broken", frozen=True): ...

class Hall(msgspec.Struct):
    count: int = 0

class Door(TaggedModel[Opened | Broken, Hall]):
    name, version = "door", 1
    events, state = Opened | Broken, Hall

    def evolve(self, state, fact):
        if isinstance(fact.event, Broken):
            raise ValueError("broken")
        return Hall(state.count + 1)

    def status(self, state):
        return "open"
"""
door = ("--model", "door.py:Door")
engine = ("--model", "engine")


def door_lines(*kinds: str) -> bytes:
    facts = ({"stream": "d-1", "key": f"k{n}", "event": {"type": kind}} for n, kind in enumerate(kinds))
    return b"".join(json.dumps(fact).encode() + b"\n" for fact in facts)


@pytest.fixture(params=durable_schemes())
def scheme(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def url(scheme: str, cli: Cli, tmp_path: Path) -> str:
    """A place for a new log, once for each kind of log that outlives its process. The commands find door.py."""
    Path("door.py").write_text(own_model)
    return url_at(scheme, tmp_path / "log")


# --- recorded models -------------------------------------------------------------------------------------------------


def test_commands_read_a_log_with_the_model_that_it_records(url: str, scheme: str, cli: Cli) -> None:
    model = "engine" if scheme in ("ndjson", "segments", "wal") else "rundir"  # Not the default of this log.
    with runstate.open(url, model, on_alert=lambda alert: None) as store:
        for lines in histories(model, 0, 2).values():
            store.append_events([store.model.parse(line) for line in lines])
        names = [info.stream for info in store.log.streams()]
        statuses = {name: store.model.status(store.project_snapshot(name)) for name in names}
    checked = cli("replay", url, "--check")
    found = {row["stream"]: row["status"] for row in cli("streams", url, "--json").rows}
    assert (found, checked.code, checked.err) == (statuses, 0, "2 streams: 2 right, 0 wrong\n")


def test_checks_fail_on_a_log_of_a_model_that_is_not_installed(url: str, cli: Cli) -> None:
    assert cli("append", url, *door, stdin=door_lines("opened", "opened")).code == 0
    checked, verified, listed = cli("replay", url, "--check"), cli("verify", url), cli("streams", url, "--json")
    assert (checked.code, verified.code, listed.rows[0]["status"]) == (1, 1, "? model.unknown"), (checked, verified)
    assert all("'door'" in done.out for done in (checked, verified))
    assert "intact" not in verified.err
    checked, listed = cli("replay", url, "--check", *door), cli("streams", url, "--json", *door)
    assert (checked.code, listed.rows[0]["status"]) == (0, "open")


def test_fetch_and_tail_print_one_shape(url: str, cli: Cli) -> None:
    assert cli("append", url, *door, stdin=door_lines("opened", "opened")).code == 0
    with runstate.open(url, "door.py:Door", create=False) as store:
        commands = [["fetch", url, "d-1"], ["tail", url]][: 1 + (Capability.FEED in store.log.capabilities)]
    printed = {cli(*command, *door, *options).out for command in commands for options in ([], ["--json"])}
    assert len(printed) == 1, printed


def test_append_reads_what_fetch_prints(url: str, scheme: str, cli: Cli, tmp_path: Path) -> None:
    assert cli("append", url, *door, stdin=door_lines("opened", "opened")).code == 0
    fetched = cli("fetch", url, "d-1", *door)
    other = url_at(scheme, tmp_path / "other")
    piped = cli("append", other, *door, stdin=fetched.out.encode())
    assert piped.code == 0, piped.err
    assert [contents(row) for row in cli("fetch", other, "d-1", *door).rows] == [contents(r) for r in fetched.rows]


def contents(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["stream"], row["seq"], row["key"], row["event"]["event"]


# --- checks that can fail --------------------------------------------------------------------------------------------


def cut_short(data: bytes) -> bytes:
    return data[:20]


def edited(data: bytes) -> bytes:
    assert b"COMPLETED" in data
    return data.replace(b"COMPLETED", b"CANCELLED")


@pytest.mark.parametrize("change", [cut_short, edited])
def test_a_snapshot_that_was_changed_is_named_and_not_believed(
    url: str, cli: Cli, write: Write, change: Callable[[bytes], bytes]
) -> None:
    with runstate.open(url, "engine") as store:
        store.append_events([write(), write("RunCompleted")])
        stored = store.log.load_snapshot("r-1", "engine")
        assert stored is not None
        if not snapshot_files():
            store.log.save_snapshot("r-1", msgspec.structs.replace(stored, body=change(stored.body)))
    for path in snapshot_files():
        path.write_bytes(change(path.read_bytes()))
    checked, verified = cli("replay", url, "--check", *engine), cli("verify", url)
    shown = cli("snapshot", url, "r-1", "--json", *engine).out
    assert (checked.code, verified.code, '"status":"COMPLETED"' in shown) == (1, 1, True), (checked, verified, shown)
    assert checked.out.startswith("r-1: ")
    assert verified.out.startswith("r-1:")


def snapshot_files() -> list[Path]:
    """Where the log keeps a snapshot in a file of its own. They record its digest; the others take what they get."""
    return [path for path in Path("log").rglob("*snapshot*") if path.is_file()]


def test_replay_check_names_a_stream_without_a_snapshot(url: str, cli: Cli, write: Write) -> None:
    with runstate.open(url, "engine", snapshot_every=0) as store:
        store.append_events([write(), write("RunCompleted")])
    checked = cli("replay", url, "--check", *engine)
    assert (checked.code, checked.out.startswith("r-1: ")) == (1, True), checked


def test_replay_check_names_a_stream_that_cannot_be_folded(url: str, cli: Cli) -> None:
    cli("append", url, *door, stdin=door_lines("opened", "broken"))
    checked = cli("replay", url, "--check", *door)
    assert (checked.code, checked.out.startswith("d-1: ")) == (1, True), checked


def test_replay_check_of_a_log_without_streams_compared_nothing(url: str, cli: Cli) -> None:
    runstate.open(url, "engine").close()
    checked = cli("replay", url, "--check", *engine)
    assert (checked.code, "nothing to compare" in checked.err) == (1, True), checked


# --- snapshots that heal ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sent_again", [False, True], ids=["read", "every event is sent again"])
def test_a_snapshot_that_a_killed_writer_did_not_save_is_saved_later(
    log_url: str, write: Write, is_sent_again: bool
) -> None:
    events = [write(), write("RunCompleted")]
    with runstate.open(log_url, "engine") as store:
        store.append_event(events[0])
        runstate.Store(store.log, store.model, snapshot_every=0).append_event(events[1])
        reopened = runstate.Store(store.log, store.model)
        if is_sent_again:
            assert [reopened.append_event(event).persisted for event in events] == [False, False]
            reopened.snapshots.close()  # In a log that saves it with the events, it is there already.
        else:
            reopened.get_snapshot("r-1")
        stored = store.log.load_snapshot("r-1", "engine")
        found = reopened.get_snapshot("r-1")
        assert found is not None
        assert stored is not None
        assert (found.status, stored.seq) == ("COMPLETED", 2)


def test_a_store_with_default_settings_leaves_the_snapshot_of_the_last_event(url: str, write: Write) -> None:
    with runstate.open(url, "engine") as store:
        for event in (write(), write("StepStarted", "a"), write("RunCompleted")):
            store.append_event(event)
    with runstate.open(url, "engine", snapshot_every=0) as store:
        stored = store.stored_snapshot("r-1")
        assert stored is not None
        assert (stored.state.status, stored.seq, stored.behind) == ("COMPLETED", 3, 0)


def test_a_snapshot_that_a_kill_left_behind_is_no_damage(
    url: str, cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.lazy_saves.lazy_delay_s", 3600.0)
    store = runstate.open(url, "engine")
    for event in (write(), write("StepStarted", "a"), write("RunCompleted")):
        store.append_event(event)
    store.log.close()  # Before the store is closed: it saves nothing more, as if it had been killed.
    store.close()
    checked, verified = cli("replay", url, "--check", *engine), cli("verify", url)
    shown = cli("snapshot", url, "r-1", "--json", *engine).out
    assert (checked.code, verified.code, '"status":"COMPLETED"' in shown) == (0, 0, True), (checked, verified, shown)


def test_a_snapshot_that_met_a_locked_log_is_saved_later(
    log_url: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise LogBusy

    with runstate.open(log_url, "engine", snapshot_every=1) as store:
        store.append_event(write())
        with monkeypatch.context() as patched:
            patched.setattr(store.log, "save_snapshot", refuse)
            assert store.append_event(write("RunCompleted")).persisted
            stored = store.log.load_snapshot("r-1", "engine")
            assert stored is not None
            # Saved in the commit of its event, it meets no lock of its own.
            assert stored.seq == (2 if isinstance(store.log, SnapshottingLog) else 1)
        found = runstate.Store(store.log, store.model).get_snapshot("r-1")
        stored = store.log.load_snapshot("r-1", "engine")
        assert found is not None
        assert stored is not None
        assert (found.status, stored.seq) == ("COMPLETED", 2)


# --- retention that remembers ----------------------------------------------------------------------------------------


def test_a_late_retry_does_not_begin_an_archived_run_again(url: str, cli: Cli, write: Write) -> None:
    events = [write(), write("RunCompleted")]
    with runstate.open(url, "engine") as store:
        first = [result.seq for result in store.append_events(events)]
    archive = ["archive", url, "--to", "archive", "--older-than", "0s", *engine]
    assert cli(*archive).code == 0
    with runstate.open(url, "engine") as store:
        again = store.append_events(events)
        assert [(result.seq, result.persisted) for result in again] == [(seq, False) for seq in first]
        assert store.log.streams() == []
    for command in (["restore", "archive", url], archive):
        done = cli(*command)
        assert done.code == 0, done


# --- lag -------------------------------------------------------------------------------------------------------------


def test_the_age_of_events_is_noticed_before_they_are_projected(log_url: str, write: Write) -> None:
    raised: list[str] = []
    with runstate.open(log_url, "engine", on_alert=lambda alert: raised.append(alert.code)) as store:
        store.append_event(write())
        projector = Projector(store, clock=lambda: datetime.now(UTC) + timedelta(seconds=7))
        if Capability.FEED in store.log.capabilities:
            projector.poll()
            assert (raised, projector.lag_s) == (["PROJECTOR_LAG_HIGH"], 0.0)
        else:
            with pytest.raises(Unsupported):
                projector.poll()
