"""`runstate project` and `runstate lag`: what they refuse, and what they leave behind when they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Cli

import runstate
from runstate.cli.projection import state_directory

url = "sqlite:runs.db"


@pytest.fixture
def filled(cli: Cli) -> Cli:
    with runstate.open(url) as store:
        run = store.run("r-1", tenant="acme", plan="nightly")
        run.started()
        run.completed()
    runstate.open("ndjson:runs").close()
    return cli


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("sqlite:none.db",), 3, "error[log.not_found]"),
        ((url, "sqlite:none.db"), 3, "error[log.not_found]"),
        (("ndjson:runs",), 2, "error[log.unsupported]"),
        ((url, "--to", "nowhere"), 2, "error[url.invalid]"),
    ],
    ids=["no log", "one of two missing", "no feed", "no sink"],
)
def test_a_projector_that_is_refused_leaves_no_logbook(
    filled: Cli, arguments: tuple[str, ...], code: int, told: str
) -> None:
    outcome = filled("project", *arguments, "--state", "state")
    assert outcome.code == code
    assert outcome.err.startswith(told)
    assert not Path("state").exists()


@pytest.mark.parametrize("refused", ["sqlite:none.db", "ndjson:runs", "table:runs"])
def test_on_spark_it_is_refused_before_spark_is_started_and_leaves_no_logbook(filled: Cli, refused: str) -> None:
    # The master is none that Spark could start on: it is not asked.
    outcome = filled("pipeline", "stream", url, refused, "--state", "state", "--master", "nowhere")
    assert outcome.err.startswith(("error[log.not_found]", "error[log.unsupported]"))
    assert not Path("state").exists()


def test_a_log_without_a_feed_is_told_which_have_one_and_what_to_do(filled: Cli) -> None:
    told = filled("project", "ndjson:runs", "--state", "state").err
    assert all(word in told for word in ("sqlite", "postgresql", "runstate replay", "runstate copy"))


def test_the_events_that_were_projected_are_counted(filled: Cli) -> None:
    assert "2 events projected; --follow goes on" in filled("project", url, "--state", "state").err
    assert "0 events projected" in filled("project", url, "--state", "state").err


@pytest.mark.parametrize("state", ["state", "never-made"])
def test_of_a_log_that_is_missing_the_lag_says_so(filled: Cli, state: str) -> None:
    assert filled("project", url, "--state", "state").code == 0
    outcome = filled("lag", "sqlite:none.db", "--state", state)
    assert outcome.code == 3
    assert "none.db" in outcome.err
    assert "logbook" not in outcome.err


def test_of_a_log_that_nobody_projects_the_lag_says_what_to_do(filled: Cli) -> None:
    with runstate.open("sqlite:other.db") as store:
        store.run("r-1", tenant="acme", plan="nightly").started()
    assert filled("project", "sqlite:other.db", "--state", "other").code == 0
    for state in ("other", "never-made"):
        outcome = filled("lag", url, "--state", state)
        assert outcome.code == 3
        assert "runstate project" in outcome.err


def test_no_log_is_left_out_of_the_lag_in_silence(filled: Cli) -> None:
    with runstate.open("sqlite:other.db") as store:
        store.run("r-1", tenant="acme", plan="nightly").started()
    assert filled("project", url, "--state", "state").code == 0
    outcome = filled("lag", url, "sqlite:other.db", "--state", "state")
    assert (outcome.code, outcome.out) == (3, "")
    assert "other.db" in outcome.err


def test_another_password_is_not_another_logbook() -> None:
    urls = ["postgresql://me:old@db/runs", "postgresql://me:new@db/runs", "postgresql://me@db/runs"]
    assert len({state_directory([url], "engine") for url in urls}) == 1
