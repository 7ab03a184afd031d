"""What statuses mean: the same group for the same thing, in whatever model."""

from __future__ import annotations

from typing import get_args

import pytest

from runstate.models.engine.evolve import run_transitions
from runstate.models.registry import find_model
from runstate.models.session.projections import RunStatus
from runstate.models.statuses import usual_group


@pytest.mark.parametrize(
    ("words", "group"),
    [
        (["COMPLETED", "completed", "succeeded", "Done", "SUCCESS"], "completed"),
        (["FAILED", "error", "timed-out", "Timed Out"], "failed"),
        (["CANCELLED", "canceled", "aborted"], "cancelled"),
        (["in_progress", "IN PROGRESS", "running"], "running"),
        (["PENDING", "queued", "idle"], "waiting"),
        (["paused", "blocked"], "paused"),
        (["", "ajar", "completedly"], "unknown"),
    ],
)
def test_usual_words_mean_what_they_say(words: list[str], group: str) -> None:
    assert {usual_group(word) for word in words} == {group}


known = {
    "engine": {state for pairs in run_transitions.values() for state in (*pairs, *pairs.values())},
    "session": {"created", *get_args(RunStatus)},
    "daemon": {"idle", "working"},
    "rundir": {"CREATED", "COMPLETED", "FAILED", "CANCELLED", "RENDERING"},
}


@pytest.mark.parametrize("model", known)
def test_every_status_of_our_models_has_a_group(model: str) -> None:
    groups = {status: find_model(model).status_group(status) for status in known[model]}
    assert "unknown" not in groups.values(), groups


def test_a_session_with_gaps_is_complete() -> None:
    assert find_model("session").status_group("complete_with_gaps") == "completed"


def test_a_state_that_a_graph_has_named_is_one_of_work() -> None:
    rundir = find_model("rundir")
    assert [rundir.status_group(state) for state in ("RENDERING", "PAUSED", "")] == ["running", "paused", "unknown"]
