"""Every reading command, over logs of every model, without --model, with the right one and with a wrong one.

Each answers as the log read through the right model does, or refuses and names both models. None answers wrongly, and
none succeeds with nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.commands import Cli, Outcome
from tests.fleets import histories, models, put_blobs

from runstate.logs.record_json import encode_record
from runstate.models.model import AnyModel
from runstate.models.registry import find_model
from runstate.store import Store
from runstate.store import open as open_store

own_model = """
import msgspec
from runstate import TaggedModel

class Opened(msgspec.Struct, tag="opened", frozen=True): ...
class Locked(msgspec.Struct, tag="locked", frozen=True): ...

class Hall(msgspec.Struct):
    count: int = 0
    is_locked: bool = False

class Door(TaggedModel[Opened | Locked, Hall]):
    name, version = "door", 1
    events, state = Opened | Locked, Hall

    def evolve(self, state, fact):
        match fact.event:
            case Opened():
                return Hall(state.count + 1)
            case Locked():
                return Hall(state.count, True)

    def status(self, state):
        return "locked" if state.is_locked else "open"

    def is_over(self, state):
        return state.is_locked
"""
door_lines = {
    f"door-{number}": [
        json.dumps({"stream": f"door-{number}", "key": f"k{n}", "event": {"type": kind}}).encode()
        for n, kind in enumerate(["opened"] * number + ["locked"])
    ]
    for number in (1, 2, 3)
}
names = [*models(), "door"]
logs = [
    *[f"{name}-in-sqlite" for name in names],
    *["rundir-in-ndjson", "session-in-segments", "daemon-in-wal"],
    *[f"door-in-{scheme}" for scheme in ("ndjson", "segments", "wal")],
]


class Filled(NamedTuple):
    """A log of one model, and the model."""

    url: str
    model: AnyModel
    place: str
    """What --model is given: a name, or the place of a model that is not installed."""

    @property
    def is_installed(self) -> bool:
        return ":" not in self.place

    def open(self) -> Store[Any, Any, Any]:
        return open_store(self.url, self.model, create=False, on_alert=lambda alert: None)

    @property
    def streams(self) -> list[str]:
        with self.open() as store:
            return [info.stream for info in store.log.streams()]

    @property
    def stream(self) -> str:
        return self.streams[0]

    @property
    def last_seq(self) -> int:
        with self.open() as store:
            found = store.log.stream(self.stream)
            assert found is not None
            return found.last_seq


@pytest.fixture(scope="module", params=logs)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    name, _, scheme = request.param.partition("-in-")
    directory = tmp_path_factory.mktemp("models")
    place = name
    if name == "door":
        (directory / "door.py").write_text(own_model)
        place = f"{directory}/door.py:Door"
    made = Filled(f"{scheme}:{directory}/log", find_model(place), place)
    with open_store(made.url, made.model, on_alert=lambda alert: None) as store:
        for lines in (door_lines if name == "door" else histories(name, 0, 4)).values():
            put_blobs(store.log, lines)
            store.append_events([made.model.parse(line) for line in lines])
    return made


# --- what each command must answer -----------------------------------------------------------------------------------


def answers_streams(filled: Filled, done: Outcome, to: Path) -> None:
    with filled.open() as store:
        expected = {name: store.model.status(store.project_snapshot(name)) for name in filled.streams}
    assert {row["stream"]: row["status"] for row in done.rows} == expected
    assert {row["model"] for row in done.rows} == {filled.model.name}


def answers_fetch(filled: Filled, done: Outcome, to: Path) -> None:
    with filled.open() as store:
        assert done.out.encode() == b"".join(encode_record(each) + b"\n" for each in store.log.read(filled.stream))


def answers_tail(filled: Filled, done: Outcome, to: Path) -> None:
    with filled.open() as store:
        expected = {name: [record.seq for record in store.log.read(name)] for name in filled.streams}
    found: dict[str, list[int]] = {}
    for row in done.rows:
        found.setdefault(row["stream"], []).append(row["seq"])
    assert found == expected


def answers_snapshot(filled: Filled, done: Outcome, to: Path) -> None:
    with filled.open() as store:
        assert done.out.strip().encode() == store.model.dump(store.project_snapshot(filled.stream))


def answers_diff(filled: Filled, done: Outcome, to: Path) -> None:
    with filled.open() as store:
        expected = [change.path for change in store.diff(filled.stream, from_seq=0, to_seq=filled.last_seq)]
    assert expected
    assert [row["path"] for row in done.rows] == expected


def answers_replay(filled: Filled, done: Outcome, to: Path) -> None:
    assert done.err.startswith(f"{len(filled.streams)} stream"), done.err
    with filled.open() as store:
        for name in filled.streams:
            stored = store.log.load_snapshot(name, filled.model.name)
            assert stored is not None
            assert stored.body == store.model.dump(store.project_snapshot(name))


def answers_check(filled: Filled, done: Outcome, to: Path) -> None:
    count = len(filled.streams)
    assert f"{count} right, 0 wrong" in done.err, done.err


def answers_verify(filled: Filled, done: Outcome, to: Path) -> None:
    assert_intact(done)


def assert_intact(done: Outcome) -> None:
    """Some of the events are impossible where they stand. That is a warning, and no damage."""
    warnings = done.out.splitlines()
    assert all("event.invalid_transition" in warning for warning in warnings), done.out
    assert ("0 damaged" if warnings else "intact") in done.err, done.err


def answers_lag(filled: Filled, done: Outcome, to: Path) -> None:
    with filled.open() as store:
        events = sum(info.events for info in store.log.streams())
    measured = [(row["model"], row["events"], row["lagS"]) for row in done.rows if "lagS" in row]  # No alerts.
    assert measured == [(filled.model.name, events, 0)]


def answers_project(filled: Filled, done: Outcome, to: Path) -> None:
    import pyarrow.parquet as pq

    rows = [row for path in sorted((to / "rows" / "data").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    found = {row["stream"]: row["status"] for row in rows}
    with filled.open() as store:
        assert found == {name: store.model.status(store.project_snapshot(name)) for name in filled.streams}


def answers_copy(filled: Filled, done: Outcome, to: Path) -> None:
    copied = Filled(f"sqlite:{to}/copied.db", filled.model, filled.place)
    assert copied.streams == filled.streams
    with filled.open() as ours, copied.open() as theirs:
        for name in filled.streams:
            assert theirs.log.read(name) == ours.log.read(name)
            info = theirs.log.stream(name)
            assert info is not None
            assert info.model == filled.model.name


def over_streams(filled: Filled) -> list[str]:
    with filled.open() as store:
        return [name for name in filled.streams if store.model.is_over(store.project_snapshot(name))]


def answers_archive(filled: Filled, done: Outcome, to: Path) -> None:
    if not (over := over_streams(filled)):
        assert done.rows == []
        return
    assert {row["stream"]: row["outcome"] for row in done.rows} == dict.fromkeys(over, "copied")
    archived = Filled(f"archive:{to}/archive", filled.model, filled.place)
    assert archived.streams == over


class Command(NamedTuple):
    words: Callable[[Filled, Path], list[str]]
    check: Callable[[Filled, Outcome, Path], None]
    needs_model: bool = True
    """Whether it has to fold: then it is refused where the model is not installed and not given."""
    takes_model: bool = True
    needs_feed: bool = False


commands = {
    "streams": Command(lambda log, to: ["streams", log.url, "--json"], answers_streams),
    "fetch": Command(lambda log, to: ["fetch", log.url, log.stream], answers_fetch, needs_model=False),
    "tail": Command(lambda log, to: ["tail", log.url], answers_tail, needs_model=False, needs_feed=True),
    "snapshot": Command(lambda log, to: ["snapshot", log.url, log.stream, "--json"], answers_snapshot),
    "diff": Command(
        lambda log, to: ["diff", log.url, log.stream, "--from", "0", "--to", str(log.last_seq), "--json"], answers_diff
    ),
    "replay": Command(lambda log, to: ["replay", log.url], answers_replay),
    "replay --check": Command(lambda log, to: ["replay", log.url, "--check"], answers_check),
    "verify": Command(lambda log, to: ["verify", log.url], answers_verify),
    "lag": Command(
        lambda log, to: ["lag", log.url, "--state", f"{to}/book", "--json"],
        answers_lag,
        needs_model=False,
        needs_feed=True,
    ),
    "project": Command(
        lambda log, to: ["project", log.url, "--to", f"parquet:{to}/rows", "--state", f"{to}/book"],
        answers_project,
        needs_feed=True,
    ),
    "copy": Command(
        lambda log, to: ["copy", log.url, f"sqlite:{to}/copied.db"], answers_copy, needs_model=False, takes_model=False
    ),
    "archive": Command(
        lambda log, to: ["archive", log.url, "--to", f"{to}/archive", "--older-than", "0s", "--keep", "--json"],
        answers_archive,
    ),
}


def is_possible(log: str, name: str) -> bool:
    return log.endswith("-in-sqlite") or not commands[name].needs_feed


possible = [(log, name) for log in logs for name in commands if is_possible(log, name)]
impossible = [(log, name) for log in logs for name in commands if not is_possible(log, name)]
on_each = pytest.mark.parametrize(("filled", "command"), possible, indirect=True)


@pytest.fixture
def command(request: pytest.FixtureRequest, filled: Filled, cli: Cli, tmp_path: Path) -> Command:
    if request.param == "lag":
        cli(*commands["project"].words(filled, tmp_path), "--model", filled.place)
        (tmp_path / "rows").rename(tmp_path / "projected")
    return commands[request.param]


@pytest.mark.parametrize(("filled", "command"), impossible, indirect=["filled"])
def test_a_command_that_needs_a_feed_refuses_a_log_without_one(
    filled: Filled, command: str, cli: Cli, tmp_path: Path
) -> None:
    for given in ([], ["--model", filled.place]):
        done = cli(*commands[command].words(filled, tmp_path), *given)
        assert (done.code, done.out) in [(2, ""), (3, "")], done.err


@on_each
def test_with_the_right_model_it_gives_the_right_answer(
    filled: Filled, command: Command, cli: Cli, tmp_path: Path
) -> None:
    given = ["--model", filled.place] if command.takes_model else []
    done = cli(*command.words(filled, tmp_path), *given)
    assert done.code == 0, done.err
    command.check(filled, done, tmp_path)


@on_each
def test_without_a_model_it_uses_the_recorded_one(filled: Filled, command: Command, cli: Cli, tmp_path: Path) -> None:
    done = cli(*command.words(filled, tmp_path))
    if filled.is_installed or not command.needs_model:
        assert done.code == 0, done.err
        command.check(filled, done, tmp_path)
    else:
        check_names_what_is_missing(filled, done)


def check_names_what_is_missing(filled: Filled, done: Outcome) -> None:
    """A model that is not installed: the command says so and what to do, and gives no state."""
    said = done.err + done.out
    assert repr(filled.model.name) in said
    assert "not installed" in said
    assert "--model FILE.py:CLASS" in said.replace("\n", " ")
    if done.code == 0:  # `streams` lists them without a status.
        assert [row["status"] for row in done.rows] == ["? model.unknown"] * len(filled.streams)
    assert "intact" not in done.err.replace("not intact", "")


@pytest.mark.parametrize(
    ("filled", "command"), [pair for pair in possible if commands[pair[1]].takes_model], indirect=True
)
def test_with_a_wrong_model_it_refuses_and_names_both(
    filled: Filled, command: Command, cli: Cli, tmp_path: Path
) -> None:
    wrong = next(name for name in models() if name != filled.model.name)
    done = cli(*command.words(filled, tmp_path), "--model", wrong)
    assert done.code in (1, 2), done.err
    assert done.out == ""
    assert repr(wrong) in done.err
    assert repr(filled.model.name) in done.err
    assert not (tmp_path / "archive").exists()
    assert not (tmp_path / "rows").exists()


def test_copy_leaves_out_streams_of_another_model_than_the_given_one(filled: Filled, cli: Cli, tmp_path: Path) -> None:
    wrong = next(name for name in models() if name != filled.model.name)
    copy = ["copy", filled.url, f"sqlite:{tmp_path}/copied.db"]
    done = cli(*copy, "--model", wrong)
    assert done.code == 1
    told = done.out.splitlines()
    assert [line.partition(": ")[0] for line in told] == filled.streams
    assert all("model.mismatch" in line and repr(wrong) in line and repr(filled.model.name) in line for line in told)
    assert Filled(f"sqlite:{tmp_path}/copied.db", filled.model, filled.place).streams == []
    done = cli(*copy, "--model", filled.place)
    assert done.code == 0, done.err
    answers_copy(filled, done, tmp_path)


# --- restore ---------------------------------------------------------------------------------------------------------


on_each_with_an_end = pytest.mark.parametrize(
    "filled", [log for log in logs if not log.startswith("daemon-")], indirect=True
)
"""The stream of a daemon is never over, so nothing of it is archived."""


@pytest.fixture
def archive(filled: Filled, cli: Cli, tmp_path: Path) -> Path:
    assert over_streams(filled)
    done = cli(*commands["archive"].words(filled, tmp_path), "--model", filled.place)
    assert done.code == 0, done.err
    return tmp_path / "archive"


@on_each_with_an_end
@pytest.mark.parametrize("is_given", [False, True], ids=["without a model", "with the model"])
def test_a_restored_log_records_the_model(
    filled: Filled, archive: Path, cli: Cli, tmp_path: Path, is_given: bool
) -> None:
    url = f"sqlite:{tmp_path}/restored.db"
    done = cli("restore", str(archive), url, *(["--model", filled.place] if is_given else []))
    assert done.code == 0, done.err
    restored = Filled(url, filled.model, filled.place)
    assert restored.streams == over_streams(filled)
    answers_streams(restored, cli("streams", url, "--json", "--model", filled.place), tmp_path)


@on_each_with_an_end
def test_restore_refuses_a_wrong_model(filled: Filled, archive: Path, cli: Cli, tmp_path: Path) -> None:
    wrong = next(name for name in models() if name != filled.model.name)
    done = cli("restore", str(archive), f"sqlite:{tmp_path}/restored.db", "--model", wrong)
    assert (done.code, repr(wrong) in done.err, repr(filled.model.name) in done.err) == (2, True, True)
    assert not (tmp_path / "restored.db").exists()


# --- the pipeline refuses before Spark starts ------------------------------------------------------------------------

spark_commands = {
    "run": lambda log, to: ["run", log.url, "--to", f"{to}/out"],
    "ingest": lambda log, to: ["ingest", log.url, "--to", f"{to}/out"],
    "replay": lambda log, to: ["replay", log.url, "--to", f"{to}/out"],
    "audit": lambda log, to: ["audit", log.url],
    "archive": lambda log, to: ["archive", log.url, "--to", f"{to}/out", "--older-than", "0s"],
    "stream": lambda log, to: ["stream", log.url, "--to", f"parquet:{to}/out", "--state", f"{to}/book"],
}


@pytest.mark.parametrize("name", spark_commands)
def test_the_pipeline_refuses_a_wrong_model(filled: Filled, name: str, cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'runstate[spark]'")
    wrong = next(name for name in models() if name != filled.model.name)
    done = cli("pipeline", *spark_commands[name](filled, tmp_path), "--model", wrong)
    assert (done.code, repr(wrong) in done.err, repr(filled.model.name) in done.err) == (2, True, True), done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("filled", [log for log in logs if log.startswith("door-")], indirect=True)
@pytest.mark.parametrize("name", spark_commands)
def test_the_pipeline_names_a_model_that_is_not_installed(filled: Filled, name: str, cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'runstate[spark]'")
    done = cli("pipeline", *spark_commands[name](filled, tmp_path))
    assert done.code == 2, done.err
    check_names_what_is_missing(filled, done)
    assert not (tmp_path / "out").exists()


# --- a log of several models -----------------------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    """A log with a stream of each installed model."""
    url = f"sqlite:{tmp_path}/mixed.db"
    for name in models():
        with open_store(url, name, on_alert=lambda alert: None) as store:
            lines = next(iter(histories(name, 0, 1).values()))
            put_blobs(store.log, lines)
            store.append_events([store.model.parse(line) for line in lines])
    return url


def test_each_stream_is_read_with_its_own_model(mixed: str, cli: Cli) -> None:
    rows = cli("streams", mixed, "--json").rows
    assert sorted(row["model"] for row in rows) == models()
    for row in rows:
        with open_store(mixed, row["model"], on_alert=lambda alert: None) as store:
            assert row["status"] == store.model.status(store.project_snapshot(row["stream"]))
            state = store.model.dump(store.project_snapshot(row["stream"]))
        assert cli("snapshot", mixed, row["stream"], "--json").out.strip().encode() == state
    count = len(rows)
    assert f"{count} right, 0 wrong" in cli("replay", mixed, "--check").err
    assert_intact(cli("verify", mixed))
    assert len(cli("tail", mixed).rows) == sum(row["events"] for row in rows)


@pytest.mark.parametrize("name", models())
def test_a_given_model_chooses_its_streams_and_says_what_was_left_out(mixed: str, cli: Cli, name: str) -> None:
    for command in (["streams", mixed, "--json"], ["tail", mixed]):
        done = cli(*command, "--model", name)
        assert done.code == 0
        assert {row["stream"].partition("-")[0] for row in done.rows} == {name}
        for other in set(models()) - {name}:
            assert f"left out: 1 stream of the model {other!r}" in done.err


@pytest.mark.parametrize("name", spark_commands)
def test_the_pipeline_refuses_a_log_of_several_models(mixed: str, name: str, cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pip install 'runstate[spark]'")
    done = cli("pipeline", *spark_commands[name](Filled(mixed, find_model("engine"), "engine"), tmp_path))
    assert done.code == 2, done.err
    assert all(repr(each) in done.err for each in models())
    assert "runstate copy" in done.err.replace("\n", " ")
    assert not (tmp_path / "out").exists()
