"""What a plain `pip install` gives: no Spark, and one line that says how to have it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import runstate
from runstate.cli.main import app

_url = "sqlite:runs.db"
_pipeline = {
    "run": (_url, "--to", "made"),
    "resume": ("made",),
    "ingest": (_url, "--to", "made"),
    "quarantine": ("made",),
    "replay": (_url, "--to", "made"),
    "audit": (_url,),
    "report": (_url, "--to", "made"),
    "archive": (_url, "--to", "made"),
    "stream": (_url, "--state", "made"),
    "versions": ("made",),
    "restore": ("made", "--version", "1"),
    "vacuum": ("made",),
    "compact": ("made",),
    "convert": ("made",),
    "sql": ("SELECT 1", _url),
    "shell": (_url,),
    "warm": (),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """One with a log, and beside it what stands in the way of importing Spark's packages."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("pyarrow", "pyspark"):
        (blocked / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n")
    work = tmp_path / "work"
    work.mkdir()
    with runstate.open(f"sqlite:{work}/runs.db") as store:
        store.run("r-1", tenant="acme", plan="nightly").started()
    return work


def ask(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(directory.parent / "blocked"), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "runstate", *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)


def test_every_pipeline_command_is_looked_at() -> None:
    group = get_command(app).commands["pipeline"]  # type: ignore[attr-defined]
    assert set(group.commands) == set(_pipeline)


@pytest.mark.parametrize(
    "arguments",
    [
        *(("pipeline", name, *given) for name, given in _pipeline.items()),
        ("project", _url, "--to", "parquet:table", "--state", "made"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_it_says_what_to_install_and_makes_nothing(directory: Path, arguments: tuple[str, ...]) -> None:
    before = sorted(directory.iterdir())
    done = ask(directory, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error[log.unsupported]")
    assert "pip install 'runstate[spark]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(directory.iterdir()) == before


def test_help_is_given_all_the_same(directory: Path) -> None:
    assert "--force" in ask(directory, "pipeline", "run", "--help").stdout


@pytest.mark.slow
def test_the_demo_recommends_only_what_is_there(directory: Path) -> None:
    done = ask(directory, "demo", "--to", "here")
    assert done.returncode == 0, done.stderr
    assert "left out. The pipeline needs Spark" in done.stderr
    advice = done.stderr.partition("Try next")[2]
    assert "runstate streams" in advice
    assert "pipeline" not in advice
