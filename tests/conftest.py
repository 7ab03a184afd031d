"""What holds for all tests: those that take their time are left out of `make check`."""

from __future__ import annotations

import functools
import gc
import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.commands import Cli, Outcome
from typer.main import get_command

from runstate.cli import main

main_module = sys.modules[main.__module__]

# What is imported and collected stays: the garbage collector would take a third of the time that collecting takes.
gc.disable()

# How long Hypothesis takes to think of an example says something about the machine, nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# A background job ignores Ctrl-C, and so would the commands that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

_crash = Path(__file__).parent / "crash"
_stand_ins = {"dynamodb", "snowflake"}
"""Their servers are written for tests, and take ten times as long as the real logs beside them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _crash in item.path.parents or _uses_a_stand_in(item):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    gc.enable()


def _uses_a_stand_in(item: pytest.Item) -> bool:
    parameters = (
        item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    )
    used = {value for value in parameters if isinstance(value, str)} | {item.path.stem.removeprefix("test_")}
    return not used.isdisjoint(_stand_ins)


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests and the commands that they start leave the state directory of the user alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@functools.cache
def _commands() -> Any:
    """The tree of all commands. To build it takes Typer ten times as long as most commands take."""
    return get_command(main_module.app)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """Runs a command in this process, in an empty directory: `cli("status", "r")`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(main_module, "app", _commands())

    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["runstate", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code: Any = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code or 0
        captured = capsysbinary.readouterr()
        return Outcome(code, captured.out.decode(), captured.err.decode())

    return run
