"""How the commands speak: data on stdout, words and progress on stderr, nothing that moves off a terminal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

T = TypeVar("T")
_steering = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")

words = Console(stderr=True, markup=False, highlight=False, soft_wrap=True)
"""For people: what happened, what to do."""


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 stream`, `2 streams`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def visible(text: str) -> str:
    """The text with what would steer a terminal, or turn the direction of a line, shown as an escape."""
    return _steering.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def write_line(line: bytes) -> None:
    """One line of data."""
    try:
        sys.stdout.buffer.write(line + b"\n")
    except BrokenPipeError:
        # The reader has seen enough (`| head`): that is no failure of ours.
        silence_stdout()
        raise typer.Exit from None


def silence_stdout() -> None:
    """Send what is still to come nowhere; Python would otherwise complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_json(value: Any) -> None:
    """One value as one line of JSON."""
    write_line(msgspec.json.encode(value))


def write_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table for people. Off a terminal it is as wide as its content: nothing is cut where a program reads it."""
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=10_000)
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text("" if value is None else str(value)) for value in row))
    console.print(table)


def progress(items: Iterable[T], doing: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar on stderr while they are gone through. Off a terminal there is no bar."""
    if not words.is_terminal:
        yield from items
        return
    columns = (SpinnerColumn(), TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=words, transient=True) as bar:
        yield from bar.track(items, total=total, description=doing)


class Overlong(bytes):
    """The beginning of a line that is longer than the limit; the rest of it was passed over."""


def numbered_lines(file: BinaryIO, bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers from 1, blank ones left out. Only `\\n` ends a line.

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
