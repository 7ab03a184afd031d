"""The bytes of a run's snapshot: canonical, hashed, and the same after any number of round trips."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from runstate.errors import InvalidJson
from runstate.models.engine import ENGINE, Attempt, RootCause, RunSnapshot, Step, StepError

Histories = st.SearchStrategy[list[bytes]]


def golden_lines(golden: Path) -> list[bytes]:
    # Not splitlines(): a history may hold U+2028 inside its strings, and this one does.
    return (golden / "engine_history.ndjson").read_bytes().removesuffix(b"\n").split(b"\n")


def as_doubles(value: Any) -> Any:
    """JSON as RFC 8785 sees it: a run of digits beyond 2^53 is a double."""
    if isinstance(value, dict):
        return {name: as_doubles(member) for name, member in value.items()}
    if isinstance(value, list):
        return [as_doubles(item) for item in value]
    return float(value) if type(value) is int and abs(value) >= 2**53 else value


def folded(lines: list[bytes]) -> RunSnapshot:
    return ENGINE.fold(ENGINE.initial("r-1"), lines)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_bytes_are_those_of_rfc_8785(data: st.DataObject, histories: Histories) -> None:
    dumped = ENGINE.dump(folded(data.draw(histories)))
    assert rfc8785.dumps(as_doubles(json.loads(dumped))) == dumped


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_hash_is_the_digest_of_the_bytes_without_it(data: st.DataObject, histories: Histories) -> None:
    state = folded(data.draw(histories))
    members = as_doubles(json.loads(ENGINE.dump(state)))
    found = members.pop("hash")
    assert found == hashlib.sha256(rfc8785.dumps(members)).hexdigest() == state.hash


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_snapshot_is_dumped_as_it_was_loaded(data: st.DataObject, histories: Histories) -> None:
    dumped = ENGINE.dump(folded(data.draw(histories)))
    assert ENGINE.dump(ENGINE.load(dumped)) == dumped


@pytest.mark.parametrize(
    "artifact", [1e17, 2.0**53, 2.0**63, 2.0**68, 1e20, 1e21, -1e18, {"a": [1e17]}, 0.5, 5e-324, 1.0], ids=repr
)
def test_a_double_of_any_size_survives_a_round_trip(artifact: Any) -> None:
    # From 2^53 on, a double's canonical text is a run of digits, which a careless reader takes for an integer.
    state = RunSnapshot("r-1", artifacts=[artifact, 0.5])
    state.steps = [
        Step(2, 1, step_id="a", artifacts=[artifact, 0.5], attempts=[Attempt(1, 1, artifacts=[artifact, 0.5])])
    ]
    once = ENGINE.dump(ENGINE.load(ENGINE.dump(state)))
    assert once == ENGINE.dump(state)


def test_dumping_changes_nothing() -> None:
    state = RunSnapshot("r-1", artifacts=[0.5], steps=[Step(1, 1, step_id="a", artifacts=[1e21])])
    ENGINE.dump(state)
    assert state == RunSnapshot("r-1", artifacts=[0.5], steps=[Step(1, 1, step_id="a", artifacts=[1e21])])


def test_the_snapshot_has_exactly_the_members_of_the_contract() -> None:
    members = msgspec.json.decode(
        ENGINE.dump(RunSnapshot("r-1", steps=[Step(1, 1, step_id="a", attempts=[Attempt(1, 1)])]))
    )
    assert set(members) == {
        "runId",
        "status",
        "lastEventSeq",
        "steps",
        "artifacts",
        "artifactRefs",
        "engineRunRef",
        "rootCause",
        "startedAt",
        "completedAt",
        "totalDurationMs",
        "inconsistent",
        "hash",
    }
    attempt = {"status", "logicalAttemptId", "engineAttemptId", "startedAt", "completedAt", "artifacts", "error"}
    attempt |= {"artifactRefs", "skipReason"}
    assert set(members["steps"][0]) == attempt | {"stepId", "attempts"}
    assert set(members["steps"][0]["attempts"][0]) == attempt


@pytest.mark.parametrize(
    "changed",
    [
        {"run_id": "r-2"},
        {"status": "RUNNING"},
        {"last_event_seq": 1},
        {"steps": [Step(1, 1, step_id="a")]},
        {"artifacts": [0]},
        {"started_at": "2026-11-15T09:30:00Z"},
        {"completed_at": "2026-11-15T09:30:00Z"},
        {"total_duration_ms": 0},
        {"inconsistent": True},
        {"artifact_refs": [0]},
        {"engine_run_ref": "w-1"},
        {"root_cause": RootCause(StepError("E", "m", True))},
        {"root_cause": RootCause(None, 1, "a")},
    ],
    ids=str,
)
def test_every_member_is_in_the_hash(changed: dict[str, Any]) -> None:
    state = RunSnapshot("r-1")
    assert msgspec.structs.replace(state, **changed).hash != state.hash


def test_every_member_of_an_attempt_is_in_the_hash() -> None:
    attempt = Attempt(1, 1)
    changes: list[dict[str, Any]] = [
        {"logical_attempt_id": 2},
        {"engine_attempt_id": 2},
        {"status": "FAILED"},
        {"started_at": "x"},
        {"completed_at": "x"},
        {"artifacts": [1]},
        {"error": StepError("E", "m", True)},
        {"error": StepError("E", "m", False)},
        {"artifact_refs": [1]},
        {"skip_reason": ""},
    ]
    attempts = [attempt, *(msgspec.structs.replace(attempt, **change) for change in changes)]
    hashes = {RunSnapshot("r-1", steps=[Step(2, 1, step_id="a", attempts=[old])]).hash for old in attempts}
    assert len(hashes) == len(attempts)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"runId":5}', b'{"runId":"r"', b'{"runId":"r","steps":[{}]}', b"\xff"]
)
def test_bytes_that_no_dump_wrote_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidJson):
        ENGINE.load(data)


def test_the_golden_history_folds_into_the_golden_snapshot(golden: Path) -> None:
    state = ENGINE.fold(ENGINE.initial("r-2026-é"), golden_lines(golden))
    assert ENGINE.dump(state) == (golden / "engine_snapshot_v2.json").read_bytes()


def test_the_golden_history_evolves_into_the_golden_snapshot(golden: Path) -> None:
    state = ENGINE.initial("r-2026-é")
    for line in golden_lines(golden):
        state = ENGINE.evolve(state, ENGINE.decode(line))
    assert ENGINE.dump(state) == (golden / "engine_snapshot_v2.json").read_bytes()


def test_version_2_of_a_snapshot_says_all_that_version_1_said(golden: Path) -> None:
    old = json.loads((golden / "engine_snapshot.json").read_bytes())
    new = json.loads((golden / "engine_snapshot_v2.json").read_bytes())
    assert _without(new, "artifactRefs", "engineRunRef", "rootCause", "skipReason", "hash") == _without(old, "hash")


def _without(value: Any, *names: str) -> Any:
    if isinstance(value, dict):
        return {name: _without(member, *names) for name, member in value.items() if name not in names}
    return [_without(item, *names) for item in value] if isinstance(value, list) else value


def test_a_snapshot_of_version_1_can_still_be_loaded(golden: Path) -> None:
    old = ENGINE.load((golden / "engine_snapshot.json").read_bytes())
    assert (old.run_id, old.artifact_refs, old.engine_run_ref, old.root_cause) == ("r-2026-é", [], None, None)


def test_the_golden_snapshot_is_dumped_as_it_was_loaded(golden: Path) -> None:
    data = (golden / "engine_snapshot_v2.json").read_bytes()
    assert ENGINE.dump(ENGINE.load(data)) == data


def test_the_golden_hash_can_be_checked_without_runstate(golden: Path) -> None:
    members = as_doubles(json.loads((golden / "engine_snapshot_v2.json").read_bytes()))
    found = members.pop("hash")
    assert hashlib.sha256(rfc8785.dumps(members)).hexdigest() == found


def test_the_golden_history_raises_its_alerts(golden: Path) -> None:
    raised: list[tuple[str, int]] = []
    ENGINE.fold(
        ENGINE.initial("r-2026-é"),
        golden_lines(golden),
        lambda alert: raised.append((alert.code, alert.details["runSeq"])),
    )
    assert raised == [
        ("INVALID_TRANSITION", 8),
        ("INVALID_TRANSITION", 12),
        ("INVALID_TRANSITION", 18),
        ("PROJECTOR_CAUSAL_VIOLATION", 18),
        ("INVALID_TRANSITION", 41),
        ("INVALID_TRANSITION", 42),
    ]


def test_every_line_of_the_golden_history_is_as_its_schema_says(
    golden: Path, schemas: Callable[[str], dict[str, Any]]
) -> None:
    for line in golden_lines(golden):
        ENGINE.check_line(line)
