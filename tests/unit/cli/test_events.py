"""append: the wrong model, for its input or for what the stream holds; and what fetch has printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runstate
from runstate.models.engine import RunEventWrite
from runstate.models.engine.events import members_json

Cli = Callable[..., Any]
stream = "site-2026-11-15"


@pytest.fixture
def of_rundir(golden: Path) -> bytes:
    return (golden / "rundir_events.ndjson").read_bytes().split(b"\n")[0] + b"\n"


@pytest.fixture
def of_engine(write: Callable[..., RunEventWrite]) -> bytes:
    return members_json(write(run=stream)) + b"\n"


@pytest.fixture
def of_door(cli: Cli) -> bytes:
    """An event of a model that is not installed: the one in door.py."""
    Path("door.py").write_text(
        "import msgspec\n"
        "from runstate import TaggedModel\n"
        "class Opened(msgspec.Struct, tag='opened', frozen=True): ...\n"
        "class Hall(msgspec.Struct): ...\n"
        "class Door(TaggedModel[Opened, Hall]):\n"
        "    name, version, events, state = 'door', 1, Opened, Hall\n"
        "    def evolve(self, state, fact): return state\n"
    )
    return b'{"stream":"%b","key":"k","event":{"type":"opened"}}\n' % stream.encode()


def test_an_input_of_another_model_says_which_one_fits(cli: Cli, of_rundir: bytes) -> None:
    refused = cli("append", "sqlite:log.db", stdin=of_rundir)
    assert (refused.code, Path("log.db").exists()) == (2, False)
    assert "line 1: " in refused.err
    assert "no event of the model 'engine', but one of 'rundir': append it with --model rundir" in refused.err
    assert cli("append", "sqlite:log.db", "--model", "rundir", stdin=of_rundir).code == 0


def test_an_input_of_another_model_than_the_named_one_says_which_one_fits(cli: Cli, of_engine: bytes) -> None:
    assert "--model engine" in cli("append", "sqlite:log.db", "--model", "rundir", stdin=of_engine).err


def test_an_input_that_fits_no_installed_model_says_as_what_it_was_read(cli: Cli, of_door: bytes) -> None:
    said = cli("append", "sqlite:log.db", stdin=of_door).err
    assert "read as events of the model 'engine'" in said
    assert "--model" not in said


@pytest.mark.parametrize("url", ["sqlite:log.db", "ndjson:log"])
def test_a_stream_of_another_model_is_left_as_it_is(cli: Cli, of_rundir: bytes, of_engine: bytes, url: str) -> None:
    assert cli("append", url, "--model", "rundir", stdin=of_rundir).code == 0
    refused = cli("append", url, "--model", "engine", stdin=of_engine)
    assert (refused.code, refused.rows) == (2, [])
    assert "error[model.mismatch]" in refused.err
    assert "holds events of the model 'rundir', not of 'engine'" in refused.err
    assert len(cli("fetch", url, stream, "--model", "rundir").rows) == 1


def test_a_stream_of_a_model_that_is_not_installed_is_left_as_it_is(cli: Cli, of_door: bytes, of_engine: bytes) -> None:
    assert cli("append", "sqlite:log.db", "--model", "door.py:Door", stdin=of_door).code == 0
    refused = cli("append", "sqlite:log.db", stdin=of_engine)
    assert refused.code == 2
    assert "holds events of the model 'door', which is not installed. Pass --model FILE.py:CLASS" in refused.err
    refused = cli("append", "sqlite:log.db", "--model", "engine", stdin=of_engine)
    assert refused.code == 2
    assert "holds events of the model 'door', not of 'engine'" in refused.err


def test_models_may_share_a_log_in_streams_of_their_own(
    cli: Cli, of_rundir: bytes, write: Callable[..., RunEventWrite]
) -> None:
    for _ in range(2):
        assert cli("append", "sqlite:log.db", "--model", "rundir", stdin=of_rundir).code == 0
        assert cli("append", "sqlite:log.db", "--model", "engine", stdin=members_json(write(run="r-1"))).code == 0


@pytest.mark.parametrize("name", ["daemon", "engine", "rundir", "session"])
def test_what_fetch_prints_can_be_appended_to_another_log(cli: Cli, golden: Path, name: str) -> None:
    history = {
        "daemon": "daemon_events.ndjson",
        "engine": "engine_history.ndjson",
        "rundir": "rundir_events.ndjson",
        "session": "session_events.jsonl",
    }
    with runstate.open("sqlite:from.db", name) as store:
        lines = (golden / history[name]).read_bytes().strip().split(b"\n")
        store.append_events([store.model.parse_stored(line) for line in lines])
        info = max(store.log.streams(), key=lambda info: info.events)
    fetched = cli("fetch", "sqlite:from.db", info.stream, "--model", name)
    outcome = cli("append", "sqlite:to.db", "--model", name, stdin=fetched.out.encode())
    assert (outcome.code, len(outcome.rows)) == (0, info.events)
    again = cli("fetch", "sqlite:to.db", info.stream, "--model", name).rows
    assert [_content(row) for row in again] == [_content(row) for row in fetched.rows]


def test_what_fetch_prints_of_a_model_of_ones_own_can_be_appended(cli: Cli, of_door: bytes) -> None:
    model = ("--model", "door.py:Door")
    cli("append", "sqlite:from.db", *model, stdin=of_door)
    fetched = cli("fetch", "sqlite:from.db", stream, *model)
    assert cli("append", "sqlite:to.db", *model, stdin=fetched.out.encode()).code == 0
    assert [_content(row) for row in cli("fetch", "sqlite:to.db", stream, *model).rows] == [
        _content(row) for row in fetched.rows
    ]


def _content(row: dict[str, Any]) -> dict[str, Any]:
    """A record without what the log assigns."""
    assigned = {"persistedAt", "emittedAt", "ts", "prev_hash", "event_hash"}
    event = {name: value for name, value in row["event"].items() if name not in assigned}
    return {name: value for name, value in row.items() if name not in assigned} | {"event": event}


v1_line = (
    b'{"runId":"r-1","runSeq":%d,"eventId":"123e4567-e89b-12d3-a456-42661417400%d","eventType":"%b","eventData":{},'
    b'"idempotencyKey":"%b","emittedAt":"2026-11-15t09:30:00z","persistedAt":"2026-11-15T09:30:00Z"}\n'
)


@pytest.mark.parametrize("run_seq", [0, 1, 99])
def test_events_of_v1_are_appended_and_validated_with_any_run_seq(cli: Cli, run_seq: int) -> None:
    lines = v1_line % (run_seq, 0, b"RunStarted", b"a") + v1_line % (run_seq, 1, b"RunCompleted", b"b")
    assert cli("append", "sqlite:log.db", stdin=lines).code == 0
    assert cli("validate", "-", stdin=lines).code == 0
    with runstate.open("sqlite:log.db") as store:
        events = store.fetch_events("r-1")
        assert [event.run_seq for event in events] == [1, 2]
        assert {event.emitted_at for event in events} == {"2026-11-15t09:30:00z"}
        assert "2026-11-15T09:30:00Z" not in {event.persisted_at for event in events}
