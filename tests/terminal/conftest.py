"""Commands under a pseudoterminal, in two sizes: a wide one with colour, and a small one with NO_COLOR."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.terminal.ptys import Terminal, environment, runstate_command

Start = Callable[..., Terminal]


@pytest.fixture(params=["100x30", "60x20-no-colour"])
def size(request: pytest.FixtureRequest) -> str:
    """A test that asks for this runs in both terminals."""
    return str(request.param)


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts `runstate ARGUMENTS` in an empty directory: `start("status", "r")`.

    At the end of the test, no screen may have shown a traceback.
    """
    named = request.getfixturevalue("size") if "size" in request.fixturenames else "100x30"
    columns, rows = map(int, named.split("-")[0].split("x"))
    no_colour = {"NO_COLOR": "1"} if named.endswith("no-colour") else {}
    started: list[Terminal] = []

    def begin(*arguments: str, shell: str | None = None, columns: int = columns, **env: str) -> Terminal:
        command = runstate_command(*arguments)
        if shell is not None:
            command = ["bash", "-c", re.sub(r"\brunstate(?= )", " ".join(command), shell)]
        directory = request.getfixturevalue("directory") if "directory" in request.fixturenames else tmp_path
        started.append(Terminal(command, directory, environment(tmp_path, **no_colour, **env), columns, rows))
        return started[-1]

    yield begin
    for terminal in started:
        terminal.kill()
        assert b"Traceback" not in terminal.raw, terminal.text
        assert not (no_colour and terminal.has_colour), terminal.raw


def check_in_order(terminal: Terminal) -> None:
    """What every command owes a terminal: a visible cursor, and a line of its own for the prompt."""
    assert terminal.is_cursor_visible
    assert terminal.is_prompt_on_its_own_line, terminal.text
