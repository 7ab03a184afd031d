"""How commands write: data to stdout, messages to stderr, and nothing from outside that could steer a terminal."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from runstate.models.escaping import escape_controls


class SafeConsole(Console):
    """A console that escapes control characters in everything it draws."""

    def print(self, *objects: Any, **options: Any) -> None:
        # Escaped before Rich sees it: Rich silently drops some of these characters.
        shown = (escape_controls(each, keep="\n\t") if isinstance(each, str) else each for each in objects)
        super().print(*shown, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            safe = segment.text if segment.control else escape_controls(segment.text, keep="\n")
            yield segment if safe == segment.text else Segment(safe, segment.style)

    def on_broken_pipe(self) -> None:
        """Stop quietly: the reader has seen enough (`| head`)."""
        self.quiet = True
        silence_stdout()
        raise typer.Exit


os.environ.setdefault("TERM", "dumb")  # A terminal that does not say what it understands gets plain text.
words = SafeConsole(stderr=True, markup=False, highlight=False, soft_wrap=True)
"""Messages for people."""


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 stream`, `2 streams`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def print_error(code: str, message: str) -> None:
    """One error, the way every command reports it."""
    words.print(Text.assemble((f"error[{code}]", "bold red"), f" {message}"))


def prepare_streams() -> None:
    """Make stdin, stdout and stderr usable, whatever the caller has done to them.

    A closed descriptor would otherwise be given to the next file that is opened, and a stray print would write into
    it. A character that the locale cannot encode is written as an escape instead of failing.
    """
    stdout_is_open = _is_open(1)
    for descriptor in range(3):
        if not _is_open(descriptor):
            os.open(os.devnull, os.O_RDWR)  # The lowest free descriptor: this one.
    for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if not stdout_is_open:
        print_error("os", "Standard output is closed, so results cannot be printed. To discard them, use >/dev/null")
        sys.exit(2)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def is_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout.isatty()


def write_line(line: bytes) -> None:
    """One line of data: the exact bytes, or on a terminal the same with control characters escaped."""
    if is_terminal():
        line = escape_controls(line.decode("utf-8", "backslashreplace"), keep="\n").encode()
    try:
        sys.stdout.buffer.write(line + b"\n")
    except BrokenPipeError:
        # The reader has seen enough (`| head`): not a failure.
        silence_stdout()
        raise typer.Exit from None


def silence_stdout() -> None:
    """Discard further output; Python would otherwise report the broken pipe again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_json(value: Any) -> None:
    """One value as one line of JSON."""
    write_line(msgspec.json.encode(value))


def stdout_console() -> SafeConsole:
    """A console for tables and trees on stdout. When it is not a terminal, lines are as long as their content."""
    if is_terminal():
        return SafeConsole(file=sys.stdout, markup=False, highlight=False)
    return SafeConsole(file=sys.stdout, markup=False, highlight=False, width=10_000)


class Overlong(bytes):
    """The beginning of a line that is longer than the limit; the rest of it was skipped."""


def numbered_lines(file: BinaryIO, bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1, without blank ones. Only `\\n` ends a line.

    A line beyond the limit comes as `Overlong`, so that no input can fill the memory.
    """
    number = 0
    while line := file.readline(bytes_max + 1):
        number += 1
        if len(line) > bytes_max and not line.endswith(b"\n"):
            while (rest := file.readline(bytes_max)) and not rest.endswith(b"\n"):
                pass
            yield number, Overlong(line[:100])
        elif line.strip():
            yield number, line.rstrip(b"\r\n")
