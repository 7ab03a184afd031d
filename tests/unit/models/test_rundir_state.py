"""`snapshot.json`: what is written can be read, is the same on every machine, and is refused when it is not ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runstate.errors import InvalidJson, SnapshotTooNew
from runstate.models.rundir import RUNDIR, Artifact, Issue, RunDirectory, WorkItem
from runstate.models.rundir.evolve import Fold

at = "2026-11-15T09:30:00.000Z"


def state_with(error: Any = None, location: Any = None, name: str = "a") -> RunDirectory:
    item = WorkItem("w", "render", 1, "", ["a"], [], "failed", at, at, error)
    issue = Issue("i", "warn", "m", location=location)
    artifact = Artifact("p", "ab" * 32, None, None, at, False, None)
    return RunDirectory("r-1", "A", {name: "DONE"}, {name: artifact}, [item], [issue])


def test_the_golden_snapshot_is_read_and_written_byte_for_byte(golden: Path) -> None:
    body = (golden / "rundir_snapshot.json").read_bytes()
    assert RUNDIR.dump(RUNDIR.load(body)) == body


values: list[Any] = [
    None,
    True,
    0,
    -1,
    2**53 - 1,
    1e17,
    1e20,
    1e21,
    1.5e300,
    2.0**68,
    5e-324,
    0.1,
    -0.0,
    1.0,
    "é",
    "\u2028\0\x7f",
]
values += [[], {}, {"\ufb33": 1, "\U0001f600": 2, "é": 3, "z": 4}, {"a": [1e20, {"b": "\U0001f600"}]}]


@pytest.mark.parametrize("value", values, ids=repr)
def test_any_value_comes_back_and_gives_the_same_bytes_again(value: Any) -> None:
    body = RUNDIR.dump(state_with(error=value, location={"x": value}))
    (item,) = json.loads(body, parse_int=float)["work_items"]
    assert (item["error"], RUNDIR.dump(RUNDIR.load(body))) == (value, body)


@pytest.mark.parametrize("name", ["a", "über", "\U0001f600", "\u2028", '"', "x" * 4096])
def test_any_name_comes_back(name: str) -> None:
    state = state_with(name=name)
    assert RUNDIR.load(RUNDIR.dump(state)) == state


def test_names_are_sorted_whatever_order_they_came_in() -> None:
    one, other = state_with(), state_with()
    one.section_states = {"b": "1", "a": "2"}
    other.section_states = {"a": "2", "b": "1"}
    assert RUNDIR.dump(one) == RUNDIR.dump(other)


def test_a_snapshot_has_exactly_the_members_of_the_contract() -> None:
    members = ["artifacts_index", "issues", "run_id", "run_state", "schema_version", "section_states", "work_items"]
    assert list(json.loads(RUNDIR.dump(state_with()))) == members


def test_what_a_fold_remembers_is_no_part_of_the_state() -> None:
    state = state_with()
    body = RUNDIR.dump(state)
    Fold(state).finish()
    assert (RUNDIR.dump(state), state) == (body, state_with())


def test_an_integer_that_would_lose_digits_is_refused_rather_than_written() -> None:
    with pytest.raises(InvalidJson):
        RUNDIR.dump(state_with(error=2**63 + 1))


@pytest.mark.parametrize("version", [2, 99, 2**40])
def test_a_snapshot_of_a_newer_version_is_refused_as_such(version: int) -> None:
    newer = json.loads(RUNDIR.dump(state_with())) | {"schema_version": version}
    with pytest.raises(SnapshotTooNew, match=str(version)):
        RUNDIR.load(json.dumps(newer).encode())


@pytest.mark.parametrize("change", [{"new_member": 1}, {"work_items": {}}, {"run_id": None}], ids=str)
def test_a_newer_snapshot_of_another_shape_is_refused_as_newer(change: dict[str, Any]) -> None:
    newer = json.loads(RUNDIR.dump(state_with())) | {"schema_version": 2} | change
    with pytest.raises(SnapshotTooNew):
        RUNDIR.load(json.dumps(newer).encode())


@pytest.mark.parametrize("version", [0, -1, "1", None, True, 1.5])
def test_a_snapshot_of_no_version_that_ever_was_is_refused(version: Any) -> None:
    with pytest.raises(InvalidJson):
        RUNDIR.load(msgspec.json.encode(json.loads(RUNDIR.dump(state_with())) | {"schema_version": version}))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b"{}", b'{"run_id":"r-1"}', b"\xff", b'{"schema_version":1}', b"[" * 100_000],
    ids=lambda body: repr(body[:20]),
)
def test_what_is_no_snapshot_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidJson):
        RUNDIR.load(body)


def test_every_torn_snapshot_is_refused(golden: Path) -> None:
    body = (golden / "rundir_snapshot.json").read_bytes()
    for length in range(len(body)):
        with pytest.raises(InvalidJson):
            RUNDIR.load(body[:length])


@pytest.mark.parametrize("run", ["", "..", "a/b", "a\0", "é" * 101])
def test_a_snapshot_of_a_run_that_cannot_be_is_refused(run: str) -> None:
    with pytest.raises(InvalidJson):
        RUNDIR.load(json.dumps(json.loads(RUNDIR.dump(state_with())) | {"run_id": run}).encode())


def test_a_snapshot_that_somebody_formatted_is_read() -> None:
    pretty = json.dumps(json.loads(RUNDIR.dump(state_with())), indent=2).encode()
    assert RUNDIR.load(pretty) == state_with()
