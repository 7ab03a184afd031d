"""Closed streams, other encodings and full disks: a sentence where one is needed, and never a traceback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.fleets import histories
from tests.terminal.ptys import environment, runstate_command

import runstate

pytestmark = pytest.mark.slow
_commands = [
    "streams sqlite:fleet.db",
    "tail sqlite:fleet.db",
    "fetch sqlite:fleet.db engine-0-0001",
    "snapshot sqlite:fleet.db engine-0-0001",
    "diff sqlite:fleet.db engine-0-0001 --from 1 --to 5",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bad-terminals")
    with runstate.open(f"sqlite:{made}/fleet.db", on_alert=lambda alert: None) as store:
        for lines in histories("engine", 0, 3).values():
            store.append_events([store.model.parse(line) for line in lines])
    return made


def _run(directory: Path, command: str, redirect: str = "", **env: str) -> subprocess.CompletedProcess[bytes]:
    line = f"{' '.join(runstate_command(*command.split()))} {redirect}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=directory, env=environment(directory, **env), capture_output=True, timeout=60
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("command", _commands)
def test_a_reader_that_is_gone_is_not_an_error(directory: Path, command: str) -> None:
    source, target = os.pipe()
    os.close(source)
    try:
        done = subprocess.run(
            runstate_command(*command.split()),
            cwd=directory,
            env=environment(directory),
            stdout=target,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(target)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("command", _commands)
def test_a_closed_standard_output_is_reported_in_a_sentence(directory: Path, command: str) -> None:
    done = _run(directory, command, ">&-")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"Standard output is closed" in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", "<&-"])
def test_a_closed_standard_error_or_input_changes_nothing(directory: Path, closed: str) -> None:
    done, plain = _run(directory, _commands[0], closed), _run(directory, _commands[0])
    assert (done.returncode, done.stdout) == (0, plain.stdout)


@pytest.mark.parametrize("command", [*_commands, "--help"])
@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONIOENCODING": "ascii:strict"},
        {"PYTHONIOENCODING": "latin-1:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["ascii", "latin-1", "LC_ALL=C"],
)
def test_an_encoding_without_our_characters_does_not_fail(directory: Path, command: str, env: dict[str, str]) -> None:
    assert _run(directory, command, **env).returncode == 0


@pytest.mark.parametrize("command", _commands)
def test_a_full_disk_is_reported_in_a_sentence(directory: Path, command: str) -> None:
    done = _run(directory, command, "> /dev/full")
    assert done.returncode == 2
    assert b"error[os]" in done.stderr
