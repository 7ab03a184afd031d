"""Runs commands under a pseudoterminal, and shows their screen as a person would see it."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pyte
from tests.quick_java import quick_java

_history_lines = 10_000
_colour = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[1-7]|9[1-7])(?:;[0-9;]*)?m")


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a person's shell: nothing of the test's own but where programs and caches are."""
    kept = {name: os.environ[name] for name in ("XDG_CACHE_HOME", "PYTHONPATH", "JAVA_HOME") if name in os.environ}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm-256color", **kept, **quick_java, **more}


def runstate_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "runstate", *arguments]


class Terminal:
    """One command under a pseudoterminal. Reading from it feeds the screen; nothing else does."""

    def __init__(self, command: list[str], directory: Path, env: dict[str, str], columns: int, rows: int) -> None:
        self._child: Any = pexpect.spawn(
            command[0], command[1:], cwd=str(directory), env=env, dimensions=(rows, columns), timeout=None
        )
        self._child.delayafterclose = self._child.delayafterterminate = 0.05
        self._screen = pyte.HistoryScreen(columns, rows, history=_history_lines)
        self._stream = pyte.ByteStream(self._screen)
        self.columns, self.raw = columns, b""
        self.code: int | None = None
        """Its exit code, for tests that share a terminal."""

    # --- what a person does ------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._child.sendintr()

    def type(self, text: str) -> None:
        self._child.send(text)

    def wait_until_drawn(self, timeout_s: float = 60.0) -> None:
        """Read until anything at all is on the screen."""
        deadline = time.monotonic() + timeout_s
        while not self.text:
            assert self._read(deadline), "nothing was drawn"

    def wait_for(self, *words: str, timeout_s: float = 60.0) -> None:
        """Read until all words have been on the screen, now or before. Line breaks count as one space."""
        deadline = time.monotonic() + timeout_s
        while not all(word in self.flat for word in words):
            assert self._read(deadline), f"{words} never came:\n{self.text}"

    def wait_for_match(self, pattern: str, timeout_s: float = 60.0) -> None:
        """Read until the pattern is found on the screen."""
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, self.text):
            assert self._read(deadline), f"{pattern} never came:\n{self.text}"

    def finish(self, timeout_s: float = 60.0) -> int:
        """Read until the command has ended. Returns its exit code as a shell would show it."""
        deadline = time.monotonic() + timeout_s
        while self._read(deadline):
            pass
        self._child.close(force=False)
        if self._child.signalstatus is not None:
            return 128 + int(self._child.signalstatus)
        return int(self._child.exitstatus)

    def kill(self) -> None:
        """End the command, whatever it does."""
        self._child.close(force=True)

    # --- what a person sees ------------------------------------------------------------------------------------------

    @property
    def lines(self) -> list[str]:
        """Everything that can be scrolled to: the lines above the screen and those on it, without blank ends."""
        above = ["".join(line[x].data for x in range(self.columns)) for line in self._screen.history.top]
        found = [line.rstrip() for line in [*above, *self._screen.display]]
        while found and not found[-1]:
            found.pop()
        return found

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def flat(self) -> str:
        """The text with every line break and run of spaces as one space: for sentences that do not fit one line."""
        return " ".join(self.text.split())

    @property
    def unwrapped(self) -> str:
        """The text with lines that fill the width joined to the next one: for words that the terminal has broken."""
        return "".join(line if len(line) == self.columns else f"{line}\n" for line in self.lines)

    @property
    def is_cursor_visible(self) -> bool:
        return not self._screen.cursor.hidden

    @property
    def is_prompt_on_its_own_line(self) -> bool:
        """Whether a shell's prompt would begin at the left."""
        return self._screen.cursor.x == 0

    @property
    def has_colour(self) -> bool:
        return bool(_colour.search(self.raw))

    def _read(self, deadline: float) -> bool:
        """Take in what there is; False at the end of the output."""
        while True:
            try:
                chunk = self._child.read_nonblocking(65536, timeout=max(0.0, min(1.0, deadline - time.monotonic())))
            except pexpect.TIMEOUT:
                assert time.monotonic() < deadline, f"still not over:\n{self.text}"
                continue
            except pexpect.EOF:
                return False
            self.raw += chunk
            self._stream.feed(chunk)
            return True
