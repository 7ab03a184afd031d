"""streams, snapshot, diff, verify: what they say about nothing, about too much, and about the wrong model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Cli

import runstate

door = """
import msgspec
from runstate import Alert, TaggedModel

class Opened(msgspec.Struct, tag="opened", frozen=True): ...
class Closed(msgspec.Struct, tag="closed", frozen=True): ...

class Hall(msgspec.Struct):
    open: bool = False

class Door(TaggedModel[Opened | Closed, Hall]):
    name, version = "door", 1
    events, state = Opened | Closed, Hall

    def evolve(self, state, fact):
        return Hall(isinstance(fact.event, Opened))

    def refusals(self, state, fact):
        return []
"""
opened = b'{"stream":"front","key":"k1","event":{"type":"opened"}}\n'


def write_door(name: str, **changes: tuple[str, str]) -> tuple[str, str]:
    """A model in a file of its own, since one that was loaded stays loaded; and the option that names it."""
    text = door
    for line, instead in changes.values():
        assert line in text
        text = text.replace(line, instead)
    Path(f"{name}.py").write_text(text)
    return "--model", f"{name}.py:Door"


@pytest.fixture
def front(cli: Cli) -> Cli:
    """A log with one event, of a model that is not the log's default one."""
    assert cli("append", "sqlite:doors.db", *write_door("door"), stdin=opened).code == 0
    return cli


model = ("--model", "door.py:Door")


@pytest.mark.parametrize(
    "arguments",
    [
        ("snapshot", "sqlite:doors.db", "front", "--at-seq", "2"),
        ("diff", "sqlite:doors.db", "front", "--from", "0", "--to", "2"),
        ("diff", "sqlite:doors.db", "front", "--from", "98", "--to", "1"),
    ],
)
def test_a_place_beyond_the_end_is_refused_with_where_the_end_is(front: Cli, arguments: tuple[str, ...]) -> None:
    refused = front(*arguments, *model)
    assert (refused.code, refused.out) == (2, "")
    assert "ends at seq 1" in refused.err


def test_the_last_place_and_the_one_before_the_first_are_not_beyond_the_end(front: Cli) -> None:
    assert front("diff", "sqlite:doors.db", "front", "--from", "0", "--to", "1", *model, "--json").rows != []
    assert front("snapshot", "sqlite:doors.db", "front", "--at-seq", "1", *model).code == 0


@pytest.mark.parametrize("time", ["yesterday", "2026-11-15T09:30:00"])
def test_a_time_that_is_none_is_refused_with_an_example(front: Cli, time: str) -> None:
    refused = front("snapshot", "sqlite:doors.db", "front", "--at-time", time, *model)
    assert refused.code == 2
    assert "2026-11-15T09:30:00Z" in refused.err


def test_a_snapshot_of_another_version_is_told_as_such(front: Cli) -> None:
    newer = write_door("newer", version=('"door", 1', '"door", 2'))
    assert front("snapshot", "sqlite:doors.db", "front", *newer).code == 0
    refused = front("snapshot", "sqlite:doors.db", "front", "--stored", *newer)
    assert (refused.code, refused.out) == (1, "")
    assert "is of version 1 of the model 'door', which is at 2; rebuild it with 'runstate replay'" in refused.err
    assert front("replay", "sqlite:doors.db", "--check", *newer).code == 1
    assert front("replay", "sqlite:doors.db", *newer).code == 0
    assert front("snapshot", "sqlite:doors.db", "front", "--stored", *newer).code == 0


@pytest.mark.parametrize("command", [("snapshot", "--project"), ("diff", "--from", "0", "--to", "1")])
def test_a_stream_of_a_model_that_is_not_installed_says_what_to_pass(front: Cli, command: tuple[str, ...]) -> None:
    refused = front(command[0], "sqlite:doors.db", "front", *command[1:])
    assert (refused.code, refused.out) == (2, "")
    assert "holds events of the model 'door', which is not installed. Pass --model FILE.py:CLASS" in refused.err
    refused = front(command[0], "sqlite:doors.db", "front", *command[1:], "--model", "engine")
    assert (refused.code, refused.out) == (2, "")
    assert "holds events of the model 'door', not of 'engine'" in refused.err


def test_an_empty_log_has_no_streams_and_says_so(cli: Cli) -> None:
    Path("empty").mkdir()
    assert cli("streams", "ndjson:empty").err == "0 streams\n"
    assert cli("streams", "ndjson:empty", "--json").out == ""
    assert cli("verify", "ndjson:empty").err == "nothing to verify: the log has no streams\n"


def test_a_log_that_is_not_empty_is_simply_intact(front: Cli) -> None:
    assert front("verify", "sqlite:doors.db", *model).err == "intact\n"
    assert front("streams", "sqlite:doors.db", *model).err == ""
    assert front("replay", "sqlite:doors.db", *model).err == "1 stream replayed\n"


def test_a_log_that_the_model_cannot_read_is_not_intact(front: Cli) -> None:
    outcome = front("verify", "sqlite:doors.db")
    assert outcome.code == 1
    assert "intact" not in outcome.err
    assert outcome.out.startswith("front: ")


def test_a_stored_snapshot_says_how_far_it_is_behind(cli: Cli) -> None:
    with runstate.open("sqlite:fleet.db", snapshot_every=2) as store:
        run = store.run("r", tenant="t", plan="p")
        run.started()
        run.paused()
        run.resumed()
    stored = cli("snapshot", "sqlite:fleet.db", "r", "--stored", "--json")
    assert '"status":"PAUSED"' in stored.out
    assert stored.err == "stored at seq 2; the log is at 3\n"
    assert '"status":"RUNNING"' in cli("snapshot", "sqlite:fleet.db", "r", "--json").out
    check = cli("replay", "sqlite:fleet.db", "--check")
    assert (check.code, check.err) == (0, "1 stream: 1 right (1 behind the log, right as far as they go), 0 wrong\n")


# --- refusals of a model of one's own --------------------------------------------------------------------------------

wrong_refusals = {
    "raises": ("return []", "return 1 / 0", "ZeroDivisionError"),
    "gives text": ("return []", "return ['locked']", "runstate.Alert"),
    "gives nothing": ("return []", "pass", "TypeError"),
}


@pytest.mark.parametrize("case", wrong_refusals)
def test_refusals_that_fail_are_the_models_failure(cli: Cli, case: str, caplog: pytest.LogCaptureFixture) -> None:
    line, instead, said = wrong_refusals[case]
    broken = write_door(f"broken_{case.replace(' ', '_')}", refusals=(line, instead))
    refused = cli("append", "sqlite:doors.db", "--check-transitions", *broken, stdin=opened)
    assert refused.code == 2
    assert "error[model.failed] line 1: `refusals` of the model 'door'" in refused.err
    assert said in refused.err
    assert cli("append", "sqlite:doors.db", *broken, stdin=opened).code == 0  # Stored, and its snapshot is an alert.
    assert "SNAPSHOT_FAILED" in caplog.text
    projected = cli("project", "sqlite:doors.db", "--state", "state", *broken)
    assert (projected.code, "error[model.failed] `refusals`" in projected.err) == (2, True)


def test_the_place_of_a_models_failure_is_told(cli: Cli) -> None:
    broken = write_door("broken_evolve", evolve=("return Hall", "return 1 / 0, Hall"))
    number = 1 + Path("broken_evolve.py").read_text().split("\n").index(
        "        return 1 / 0, Hall(isinstance(fact.event, Opened))"
    )
    refused = cli("append", "sqlite:doors.db", "--check-transitions", *broken, stdin=opened)
    assert refused.code == 2
    assert f"broken_evolve.py:{number})" in refused.err


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ("{}", "opened is impossible: LOCKED; nothing was written"),
        ("{'why': 'it is locked'}", "opened is impossible: it is locked (LOCKED); nothing was written"),
        ("{'message': 'x', 'index': 7}", "line 1: opened is impossible: LOCKED; nothing was written"),
    ],
)
def test_a_refusal_is_told_with_its_code_and_its_reason(cli: Cli, details: str, said: str) -> None:
    alert = f"return [Alert(code='LOCKED', level='P3', subject=fact.stream, details={details})]"
    locked = write_door(f"locked_{len(details)}", refusals=("return []", alert))
    refused = cli("append", "sqlite:doors.db", "--check-transitions", *locked, stdin=opened)
    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err
    as_data = cli("append", "sqlite:doors.db", "--check-transitions", *locked, "--json", stdin=opened)
    assert '"refusal":"LOCKED"' in as_data.err


# --- streams: filters, order, limit ------------------------------------------------------------------------------


@pytest.fixture
def fleet(cli: Cli) -> Cli:
    """Four runs: a-1 and a-2 of acme, b-1 and b-2 of globex; a-2 has failed, b-2 has the most events."""
    with runstate.open("sqlite:fleet.db") as store:
        for name, tenant in (("b-2", "globex"), ("a-1", "acme"), ("a-2", "acme"), ("b-1", "globex")):
            run = store.run(name, tenant=tenant, plan="nightly")
            run.started()
            if name == "a-2":
                run.failed(reason="out of memory")
            for step in ("x", "y") if name == "b-2" else ():
                run.step_started(step)
    return cli


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ((), ["a-1", "a-2", "b-1", "b-2"]),
        (("--status", "failed"), ["a-2"]),
        (("--tenant", "globex"), ["b-1", "b-2"]),
        (("--like", "*-1"), ["a-1", "b-1"]),
        (("--since", "1h"), ["a-1", "a-2", "b-1", "b-2"]),
        (("--since", "2100-01-01T00:00:00Z"), []),
        (("--sort", "events", "-r"), ["b-2", "a-2", "a-1", "b-1"]),
        (("--sort", "first"), ["b-2", "a-1", "a-2", "b-1"]),
        (("--reverse", "--limit", "1"), ["b-2"]),
        (("--tenant", "globex", "--status", "RUNNING", "--limit", "1"), ["b-1"]),
        (("--after", "a-2"), ["b-1", "b-2"]),
    ],
)
def test_streams_are_filtered_sorted_and_limited(fleet: Cli, options: tuple[str, ...], found: list[str]) -> None:
    outcome = fleet("streams", "sqlite:fleet.db", "--json", *options)
    assert [row["stream"] for row in outcome.rows] == found


def test_a_limited_list_says_how_to_continue(fleet: Cli) -> None:
    assert fleet("streams", "sqlite:fleet.db", "-n", "2").err == "stopped at --limit 2; continue with --after a-2\n"
    assert fleet("streams", "sqlite:fleet.db", "-n", "4").err == ""


def test_filters_that_match_nothing_say_so(fleet: Cli) -> None:
    outcome = fleet("streams", "sqlite:fleet.db", "--status", "COMPLETED")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.startswith("0 streams match; they are ")
    assert fleet("streams", "sqlite:fleet.db", "--tenant", "nobody").err == "0 streams match\n"


@pytest.mark.parametrize("since", ["yesterday", "5y", "2026-11-15T09:30:00"])
def test_a_time_that_cannot_be_read_is_refused_with_an_example(fleet: Cli, since: str) -> None:
    outcome = fleet("streams", "sqlite:fleet.db", "--since", since)
    assert outcome.code == 2
    assert "like" in outcome.err
