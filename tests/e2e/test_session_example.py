"""The worked example: an agent that is really killed, sent back, and resumed elsewhere through a bundle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

example = Path(__file__).parents[2] / "examples/session/agent.py"
steps = 4


def run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NO_COLOR": "1", "HOME": str(directory)}
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, env=environment)


def agent(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(directory, sys.executable, str(example), *arguments)


def session(directory: Path, *arguments: str) -> str:
    done = run(directory, str(Path(sys.executable).parent / "runstate"), "session", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def nodes(directory: Path, desk: str) -> list[dict[str, Any]]:
    told = session(directory, "tree", f"segments:{desk}/sessions", "review-7", "--json")
    return [json.loads(line) for line in told.split("\n") if line]


@pytest.mark.slow
@pytest.mark.parametrize("kill_after", range(1, steps + 1))
def test_an_agent_that_is_killed_goes_on_and_does_nothing_twice(tmp_path: Path, kill_after: int) -> None:
    killed = agent(tmp_path, "laptop", "--kill-after", str(kill_after))
    assert killed.returncode == -signal.SIGKILL
    assert len(nodes(tmp_path, "laptop")) == kill_after + 1
    resumed = agent(tmp_path, "laptop")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == f"that step was stored\n{steps - kill_after} steps done, the review is written\n"
    line = nodes(tmp_path, "laptop")
    assert [node["edgeKind"] for node in line] == [None, *["acked_step"] * steps]
    assert line[-1]["isTerminal"]


@pytest.mark.slow
def test_a_session_is_killed_rewound_forked_and_resumed_on_another_machine(tmp_path: Path) -> None:
    assert agent(tmp_path, "laptop", "--kill-after", "3").returncode == -signal.SIGKILL
    (tmp_path / "desktop").mkdir()
    session(tmp_path, "export", "segments:laptop/sessions", "review-7", "review.json")
    told = session(
        tmp_path, "import", "segments:desktop/sessions", "review.json", "--keyring", "desktop/keyring.json", "--json"
    )
    assert json.loads(told)["sessionId"] == "review-7"
    # Even the note that the killed agent left is carried over: its token is of no use there.
    (tmp_path / "desktop/about-to-say.json").write_bytes((tmp_path / "laptop/about-to-say.json").read_bytes())
    resumed = agent(tmp_path, "desktop")
    assert resumed.stdout == "the token is of no use here: token.invalid\n1 steps done, the review is written\n"
    assert agent(tmp_path, "desktop", "--again", "step-2").returncode == 0
    kinds = [node["edgeKind"] for node in nodes(tmp_path, "desktop")]
    assert kinds == [None, *["acked_step"] * 4, "forked_from_non_tip", *["acked_step"] * 2]
    assert len(nodes(tmp_path, "laptop")) == 4
    for desk in ("laptop", "desktop"):
        session(tmp_path, "verify", f"segments:{desk}/sessions")
