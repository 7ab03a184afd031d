"""What a snapshot of version 2 carries: the engine's reference, skip reasons, the root cause, artifact references."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

import runstate
from runstate.logs.log import StoredSnapshot
from runstate.logs.wal import WalLog
from runstate.models.canonical import digest
from runstate.models.engine import ENGINE, RunSnapshot

Lines = Callable[..., bytes]
temporal = {"provider": "temporal", "namespace": "prod", "workflowId": "w-1", "runId": "8f14"}


def fold(lines: list[bytes]) -> dict[str, Any]:
    """The snapshot's JSON, folded line by line and event by event to the same bytes."""
    folded = ENGINE.dump(ENGINE.fold(ENGINE.initial("r-1"), lines))
    evolved = ENGINE.initial("r-1")
    for line in lines:
        evolved = ENGINE.evolve(evolved, ENGINE.decode(line))
    assert ENGINE.dump(evolved) == folded
    found: dict[str, Any] = msgspec.json.decode(folded)
    return found


# --- engineRunRef ----------------------------------------------------------------------------------------


def test_the_reference_of_a_v1_event_is_in_the_snapshot(line_v1: Lines) -> None:
    assert fold([line_v1(1, "RunStarted", engine_run_ref=temporal)])["engineRunRef"] == temporal


def test_the_reference_in_the_payload_of_the_start_is_in_the_snapshot(line: Lines) -> None:
    assert fold([line(1, "RunStarted", payload={"engineRunRef": temporal})])["engineRunRef"] == temporal


def test_the_reference_in_a_member_of_a_v2_event_is_in_the_snapshot(line: Lines) -> None:
    assert fold([line(1, "RunStarted", extra={"engineRunRef": "w-1"})])["engineRunRef"] == "w-1"


def test_the_newest_reference_counts(line: Lines, line_v1: Lines) -> None:
    lines = [
        line(1, "RunStarted", payload={"engineRunRef": "w-1"}),
        line_v1(2, "StepStarted", step_id="a", engine_run_ref="w-2"),
        line_v1(3, "StepCompleted", step_id="a", engine_run_ref=None),
        line(4, "RunCompleted"),
    ]
    assert fold(lines)["engineRunRef"] == "w-2"


def test_an_impossible_or_unknown_event_gives_no_reference(line: Lines, line_v1: Lines) -> None:
    lines = [
        line(1, "RunStarted"),
        line_v1(2, "RunStarted", engine_run_ref="w-1", idempotency_key="again"),
        line_v1(3, "SignalAccepted", engine_run_ref="w-2"),
        line(4, "StepStarted", "a", payload={"engineRunRef": "w-3"}),
    ]
    assert fold(lines)["engineRunRef"] is None


def test_a_reference_of_any_json_is_written_canonically(line_v1: Lines) -> None:
    ref = {"\ufb33": 1e17, "\U0001f600": [0.1, 2.0**68], "a": None}
    dumped = ENGINE.dump(ENGINE.fold(ENGINE.initial("r-1"), [line_v1(1, "RunStarted", engine_run_ref=ref)]))
    assert ENGINE.dump(ENGINE.load(dumped)) == dumped


# --- skip reasons ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"reason": "nothing to load"}, "nothing to load"),
        ({"reason": ""}, ""),
        ({"reason": 'q"\n\u2028é'}, 'q"\n\u2028é'),
        ({"reason": None}, None),
        ({"reason": 7}, None),
        ({}, None),
    ],
    ids=str,
)
def test_the_reason_of_a_skip_is_in_the_snapshot(line: Lines, payload: dict[str, Any], reason: str | None) -> None:
    (step,) = fold([line(1, "StepSkipped", "load", payload=payload)])["steps"]
    assert (step["status"], step["skipReason"]) == ("SKIPPED", reason)


def test_only_a_skip_has_a_skip_reason(line: Lines) -> None:
    lines = [line(1, "StepStarted", "a", payload={"reason": "x"}), line(2, "StepFailed", "a", payload={"reason": "x"})]
    assert fold(lines)["steps"][0]["skipReason"] is None


def test_an_earlier_attempt_keeps_its_skip_reason(line: Lines) -> None:
    lines = [line(1, "StepSkipped", "a", payload={"reason": "not due"}), line(2, "StepStarted", "a", 2)]
    (step,) = fold(lines)["steps"]
    assert (step["skipReason"], step["attempts"][0]["skipReason"]) == (None, "not due")


# --- the root cause --------------------------------------------------------------------------------------


def error(code: str) -> dict[str, Any]:
    return {"code": code, "message": f"{code} happened", "retryable": False}


def failing(line: Lines, seq: int, step: str, attempt: int = 1, code: str | None = "TIMEOUT") -> list[bytes]:
    payload = {} if code is None else {"error": error(code)}
    return [line(seq, "StepStarted", step, attempt), line(seq + 1, "StepFailed", step, attempt, payload=payload)]


def test_the_root_cause_is_the_step_that_failed_and_its_error(line: Lines) -> None:
    lines = [line(1, "RunStarted"), *failing(line, 2, "load"), line(4, "RunFailed", payload={"error": error("RUN")})]
    assert fold(lines)["rootCause"] == {"stepId": "load", "logicalAttemptId": 1, "error": error("TIMEOUT")}


def test_of_several_failed_steps_the_first_to_appear_is_the_root_cause(line: Lines) -> None:
    lines = [
        line(1, "StepStarted", "first"),
        *failing(line, 2, "second", code="LATER"),
        line(4, "StepFailed", "first", payload={"error": error("FIRST")}),
        line(5, "RunFailed"),
    ]
    assert fold(lines)["rootCause"] == {"stepId": "first", "logicalAttemptId": 1, "error": error("FIRST")}


def test_a_step_that_a_retry_has_mended_is_not_the_root_cause(line: Lines) -> None:
    lines = [
        *failing(line, 1, "a", code="MENDED"),
        line(3, "StepStarted", "a", 2),
        line(4, "StepCompleted", "a", 2),
        *failing(line, 5, "b", 1, "OLD"),
        *failing(line, 7, "b", 2, "NEW"),
        line(9, "RunFailed"),
    ]
    assert fold(lines)["rootCause"] == {"stepId": "b", "logicalAttemptId": 2, "error": error("NEW")}


def test_a_failed_step_without_an_error_has_that_of_the_run(line: Lines) -> None:
    lines = [*failing(line, 1, "a", code=None), line(3, "RunFailed", payload={"error": error("RUN")})]
    assert fold(lines)["rootCause"] == {"stepId": "a", "logicalAttemptId": 1, "error": error("RUN")}


def test_without_a_failed_step_the_root_cause_is_the_error_of_the_run(line: Lines) -> None:
    lines = [line(1, "RunStarted"), line(2, "RunFailed", payload={"error": error("BUDGET")})]
    assert fold(lines)["rootCause"] == {"stepId": None, "logicalAttemptId": None, "error": error("BUDGET")}


def test_a_run_that_fails_without_a_word_has_no_root_cause(line: Lines) -> None:
    assert fold([line(1, "RunStarted"), line(2, "RunFailed")])["rootCause"] is None


@pytest.mark.parametrize("end", ["RunCompleted", "RunCancelled"])
def test_a_run_that_has_not_failed_has_no_root_cause(line: Lines, end: str) -> None:
    assert fold([line(1, "RunStarted"), *failing(line, 2, "a"), line(4, end)])["rootCause"] is None


def test_what_happens_after_the_end_does_not_change_the_root_cause(line: Lines) -> None:
    lines = [line(1, "StepStarted", "a"), *failing(line, 2, "b"), line(4, "RunFailed"), line(5, "StepFailed", "a")]
    assert fold(lines)["rootCause"]["stepId"] == "b"


# --- artifactRefs ----------------------------------------------------------------------------------------


def test_references_to_artifacts_are_kept_beside_the_artifacts(line: Lines) -> None:
    ref = {"uri": "s3://lake/raw", "kind": "table", "sha256": "ab", "sizeBytes": 12}
    lines = [
        line(1, "StepStarted", "a"),
        line(2, "StepFailed", "a", payload={"artifactRefs": ["log"]}),
        line(3, "StepStarted", "a", 2),
        line(4, "StepCompleted", "a", 2, payload={"artifactRefs": [ref, 0.5], "artifacts": ["x"]}),
        line(5, "RunFailed", payload={"artifactRefs": ["report"], "artifacts": ["y"]}),
    ]
    found = fold(lines)
    (step,) = found["steps"]
    assert (step["artifactRefs"], step["artifacts"]) == ([ref, 0.5], ["x"])
    assert (step["attempts"][0]["artifactRefs"], step["attempts"][0]["artifacts"]) == (["log"], [])
    assert (found["artifactRefs"], found["artifacts"]) == (["log", ref, 0.5, "report"], ["x", "y"])


def test_references_that_are_not_a_list_are_ignored(line: Lines) -> None:
    lines = [line(1, "StepStarted", "a"), line(2, "StepCompleted", "a", payload={"artifactRefs": {"uri": "x"}})]
    assert fold(lines)["artifactRefs"] == []


# --- the golden history of version 2 ---------------------------------------------------------------------


def golden_state(golden: Path) -> RunSnapshot:
    lines = (golden / "engine_history_v2.ndjson").read_bytes().split(b"\n")[:-1]
    return ENGINE.fold(ENGINE.initial("team/nightly/2026-11-15"), lines)


def test_the_second_golden_history_folds_into_its_snapshot(golden: Path) -> None:
    assert ENGINE.dump(golden_state(golden)) == (golden / "engine_history_v2_snapshot.json").read_bytes()


def test_the_second_golden_snapshot_has_all_that_version_2_carries(
    golden: Path, schemas: Callable[[str], dict[str, Any]]
) -> None:
    found = msgspec.json.decode((golden / "engine_history_v2_snapshot.json").read_bytes())
    jsonschema_rs.Draft202012Validator(schemas("engine.snapshot")).validate(found)
    assert found["engineRunRef"]["provider"] == "temporal"
    assert found["rootCause"]["error"]["code"] == "TIMEOUT"
    assert found["artifactRefs"]
    assert [step["skipReason"] for step in found["steps"]].count(None) == len(found["steps"]) - 1
    assert found["totalDurationMs"] == 62500


# --- snapshots of version 1 ------------------------------------------------------------------------------


def stored_version_1(golden: Path) -> StoredSnapshot:
    body = (golden / "engine_snapshot.json").read_bytes()
    return StoredSnapshot("engine", 1, 42, digest(body), body)


def test_a_snapshot_of_version_1_is_discarded_and_rebuilt(golden: Path, log_url: str, line: Lines) -> None:
    with runstate.open(log_url, "engine", snapshot_every=0) as store:
        run = store.run("r-1", tenant="acme", plan="nightly")
        run.step_skipped("load", reason="not due")
        store.log.save_snapshot("r-1", msgspec.structs.replace(stored_version_1(golden), seq=1))
        assert store.snapshots.stored("r-1") is None
        assert store.rebuild_snapshot("r-1").version == 2
        kept = store.get_snapshot("r-1")
        assert kept is not None
        assert (kept.status, kept.steps[0].skip_reason) == ("PENDING", "not due")


def test_a_snapshot_of_version_1_goes_on_where_its_events_were_compacted(golden: Path, tmp_path: Path) -> None:
    url = f"wal:{tmp_path}/log"
    with runstate.open(url, "engine", snapshot_every=0) as store:
        run = store.run("r-1", tenant="acme", plan="nightly")
        run.started()
        run.step_started("load")
        assert isinstance(store.log, WalLog)
        old = b'{"artifacts":[],"completedAt":null,"hash":"","inconsistent":false,"lastEventSeq":2,"runId":"r-1",'
        old += b'"startedAt":"2026-11-15T09:30:00Z","status":"RUNNING","steps":[],"totalDurationMs":null}'
        store.log.checkpoint("r-1", StoredSnapshot("engine", 1, 2, digest(old), old))
    with runstate.open(url, "engine") as store:
        kept = store.get_snapshot("r-1")
        assert kept is not None
        assert (kept.status, kept.last_event_seq, kept.root_cause) == ("RUNNING", 2, None)
        store.run("r-1", tenant="acme", plan="nightly").completed()
        assert store.project_snapshot("r-1").status == "COMPLETED"
