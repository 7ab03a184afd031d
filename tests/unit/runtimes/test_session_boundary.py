"""The boundary: whatever an argument holds, the answer is data; and what `Failed` says about what was written is so."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.unit.runtimes.session_desk import Desk, choices, desk_at, failed, three_steps

from runstate.errors import AppendOutcomeUnknown
from runstate.models.session.payloads import Artifact, GitBranch, PreferenceDelta, TraceItem
from runstate.runtimes.session import Failed, Ok, Sessions, Step, Wanted, Workflow, linear, unwrap
from runstate.runtimes.session import keyring as keyring_module
from runstate.storage.disk import RealDisk

no_text: tuple[Any, ...] = (5, -1, 1.5, True, object(), UUID(int=0), Sessions)
odd_values: tuple[Any, ...] = (
    *no_text,
    None,
    "",
    "\ud800",
    "\x00",
    b"bytes",
    [],
    ["x"],
    {"a": 1},
    GitBranch(value="x"),
)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_at(tmp_path) as made:
        yield made


def right_arguments(desk: Desk) -> dict[str, dict[str, Any]]:
    """Every operation, with arguments that it takes."""
    place = desk.session()
    state, ack = {"state_token": place.state_token}, {"ack_token": place.ack_token}
    kept = unwrap(desk.sessions.keep_artifact("a", b"b"))
    said = unwrap(desk.sessions.append_output(place.state_token, "said"))
    gap = unwrap(desk.sessions.record_gap(place.state_token, "unexpected_failure", "warning", "x"))
    return {
        "create": {"title": "t", "session_key": "k", "session_id": "s-2"},
        "start_run": {"session_id": "s-1", "workflow": three_steps, "run_id": "r-2"},
        "advance": {**ack, "notes": "n", "artifacts": [kept], "step": "step-2"},
        "checkpoint": ack,
        "fork": {"session_id": "s-1", "node_id": place.node_id, "attempt_id": "a"},
        "rewind": {"session_id": "s-1", "node_id": place.node_id},
        "rehydrate": state,
        "keep_artifact": {"name": "n", "data": b"d", "content_type": "text/plain"},
        "append_output": {**state, "notes": "n", "artifacts": [kept], "output_id": "o"},
        "supersede_output": {**state, "superseded": said, "notes": "n", "artifacts": [kept], "output_id": "p"},
        "observe": {"session_id": "s-1", "observation": GitBranch(value="b"), **state, "attempt_id": "a"},
        "set_preferences": {
            **state, "session_id": "s-1", "delta": PreferenceDelta(autonomy="guided"), "attempt_id": "a",
        },
        "report_capability": {
            **state, "capability": "delegation", "status": "available", "provenance": "probe_step", "attempt_id": "a",
        },
        "record_gap": {
            **state, "reason": "unexpected_failure", "severity": "warning", "summary": "s", "how_to_resolve": "h",
            "related_step_id": "step-1", "gap_id": "g",
        },
        "resolve_gap": {**state, "gap_id": gap, "summary": "s"},
        "record_divergence": {
            **state, "reason": "safety_stop", "summary": "s", "related_step_id": "step-1", "attempt_id": "a",
        },
        "trace": {**state, "items": [TraceItem(kind="entered_loop", summary="s")], "attempt_id": "a"},
        "find": {"wanted": Wanted(words=("x",)), "limit": 1},
        "export": {"session_id": "s-1"},
        "import_": {"bundle": unwrap(desk.sessions.export("s-1"))},
    }  # fmt: skip


def test_every_operation_answers_with_data_whatever_it_is_given(desk: Desk) -> None:
    arguments = right_arguments(desk)
    operations = {name for name, _ in inspect.getmembers(Sessions, inspect.isfunction) if not name.startswith("_")}
    assert set(arguments) == operations - {"close"}
    for operation, given in arguments.items():
        for name in given:
            for odd in odd_values:
                answer = getattr(desk.sessions, operation)(**given | {name: odd})
                assert isinstance(answer, Ok | Failed), (operation, name, odd)
                if name != "limit" and any(odd is each for each in no_text):
                    assert failed(answer).code == "request.invalid", (operation, name, odd)
    for operation, given in arguments.items():
        assert isinstance(getattr(desk.sessions, operation)(**given), Ok), operation
    assert not desk.state().inconsistent


def test_no_bytes_and_no_other_value_becomes_text(desk: Desk) -> None:
    place = desk.session()
    kept = unwrap(desk.sessions.keep_artifact("a", b"b"))
    sessions, state = desk.sessions, place.state_token
    odd: Any = b"hello"
    with desk.untouched():
        for refused in (
            sessions.append_output(state, odd),
            sessions.observe("s-1", GitBranch(value=odd)),
            sessions.observe("s-1", GitBranch(value=UUID(int=0))),  # type: ignore[arg-type]
            sessions.trace(state, [TraceItem(kind="entered_loop", summary=odd)]),
            sessions.record_gap(state, "unexpected_failure", "warning", odd),
            sessions.append_output(
                state, "x", artifacts=[Artifact(name=odd, digest=kept.digest, content_type="a/b", byte_length=1)]
            ),
            sessions.append_output(
                state, "x", artifacts=[Artifact(name="a", digest=odd, content_type="a/b", byte_length=1)]
            ),
            sessions.find(Wanted(head_sha=odd)),
            sessions.find(Wanted(words=(odd,))),
            sessions.find(Wanted(words="words")),  # type: ignore[arg-type]
            sessions.start_run("s-1", Workflow(workflow_id=odd, steps=three_steps.steps)),
        ):
            assert failed(refused).code in ("request.invalid", "event.invalid", "json.invalid", "workflow.invalid")


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_at_least_one(desk: Desk, limit: int) -> None:
    desk.session()
    assert failed(desk.sessions.find(Wanted(), limit=limit)).code == "request.invalid"


def test_an_empty_step_is_no_step(desk: Desk) -> None:
    place, single = desk.session(workflow=choices), unwrap(desk.sessions.start_run("s-1", linear("w", "A")))
    with desk.untouched():
        for ack in (place.ack_token, single.ack_token):
            assert failed(desk.sessions.advance(ack or "", step="")).code == "session.invalid_step"


@pytest.mark.parametrize(
    "steps",
    [
        (),
        None,
        (Step(id="a", title="A", next=("nowhere",)),),  # type: ignore[arg-type]
        (Step(id="a", title=b"A"),),  # type: ignore[arg-type]
        (Step(id="a", title=object()),),  # type: ignore[arg-type]
        (Step(id="a", title="\ud800"),),  # type: ignore[arg-type]
    ],
)
def test_a_workflow_that_was_never_compiled_is_checked_before_anything_is_written(desk: Desk, steps: Any) -> None:
    unwrap(desk.sessions.create(session_id="s-1"))
    with desk.untouched():
        assert failed(desk.sessions.start_run("s-1", Workflow(workflow_id="w", steps=steps))).code == "workflow.invalid"  # type: ignore[arg-type]


def test_an_artifact_that_is_not_kept_here_is_refused(desk: Desk) -> None:
    place = desk.session()
    kept = unwrap(desk.sessions.keep_artifact("a", b"b"))
    other = Artifact(name="a", digest=three_steps.hash[:-4] + "0000", content_type="a/b", byte_length=1)  # type: ignore[arg-type]
    with desk.untouched():
        for refused in (
            desk.sessions.append_output(place.state_token, "x", artifacts=[kept, other]),
            desk.sessions.advance(place.ack_token or "", "x", artifacts=[other]),
        ):
            assert failed(refused).code == "blob.not_found"


# --- what was written, and how to try again ----------------------------------------------------------------------


def test_nothing_is_written_where_no_token_could_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring_module, "_patience_seconds", 0.05)
    with desk_at(tmp_path, "segments") as desk:
        place, keyring = desk.session(), desk.sessions._keyring.path

        def refused(code: str) -> None:
            with desk.untouched():
                assert failed(desk.sessions.start_run("s-1", three_steps)).code == code
                assert failed(desk.sessions.fork("s-1", place.node_id)).code == code

        keyring.chmod(0o644)
        refused("keyring.exposed")
        keyring.chmod(0o600)
        whole = keyring.read_bytes()
        keyring.write_bytes(b"{}")
        refused("keyring.damaged")
        keyring.unlink()
        held = RealDisk().lock(keyring.with_name("keyring.json.lock"))
        refused("log.busy")
        held.release()
        keyring.write_bytes(whole)
        keyring.chmod(0o600)
        assert len(desk.state().runs) == 1


def test_an_unknown_outcome_tells_the_ids_to_try_again_with(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation is stored and its answer lost. Tried again with what the failure tells, it is done once."""
    place, sessions = desk.session(), desk.sessions
    state = place.state_token
    calls: dict[str, Any] = {
        "session_id": lambda **i: sessions.create(title="New", **i),
        "run_id": lambda **i: sessions.start_run("s-1", three_steps, **i),
        "output_id": lambda **i: sessions.append_output(state, "said", **i),
        "gap_id": lambda **i: sessions.record_gap(state, "unexpected_failure", "warning", "x", **i),
        "attempt_id": lambda **i: sessions.fork("s-1", place.node_id, **i),
    }
    attempts: list[Any] = [
        calls["attempt_id"],
        lambda **i: sessions.observe("s-1", GitBranch(value="b"), **i),
        lambda **i: sessions.set_preferences("s-1", PreferenceDelta(autonomy="guided"), **i),
        lambda **i: sessions.report_capability(state, "delegation", "available", "probe_step", **i),
        lambda **i: sessions.record_divergence(state, "safety_stop", "x", **i),
        lambda **i: sessions.trace(state, [TraceItem(kind="entered_loop", summary="s")], **i),
    ]
    really = desk.store.log.append

    def lost(*args: Any, **options: Any) -> Any:
        really(*args, **options)
        raise AppendOutcomeUnknown("the disk went away")

    for name, call in [*calls.items(), *(("attempt_id", call) for call in attempts)]:
        with monkeypatch.context() as patched:
            patched.setattr(desk.store.log, "append", lost)
            told = failed(call())
        assert (told.code, told.retryable, list(told.details)) == ("log.outcome_unknown", True, [name])
        with desk.untouched():
            unwrap(call(**told.details))


def test_a_gap_id_belongs_to_one_node(desk: Desk) -> None:
    place = desk.session()
    following = unwrap(desk.sessions.advance(place.ack_token or "", "on"))

    def told(token: str, gap: str = "g-1") -> Any:
        return desk.sessions.record_gap(token, "user_secret_needed", "critical", "a password", gap_id=gap)

    unwrap(told(place.state_token))
    resolution = unwrap(desk.sessions.resolve_gap(place.state_token, "g-1", "given"))
    with desk.untouched():
        assert unwrap(told(place.state_token)) == "g-1"
        for refused in (told(following.state_token), told(place.state_token, resolution)):
            assert (failed(refused).code, failed(refused).details["reason"]) == (
                "event.invalid_transition",
                "gap_exists",
            )
