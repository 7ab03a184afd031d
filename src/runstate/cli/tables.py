"""Tables for people: they fit the terminal, and what is cut or left out is visible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from runstate.cli.output import stdout_console, words
from runstate.models.escaping import escape_controls

_gap = 2
_whole_cells_max = 24
"""A column up to this width, such as a time or a number, is shown whole or not at all."""
_cut_cells_min = 12
"""A wider one may be cut down to this before columns at the right are left out."""
_status_columns = frozenset({"status", "severity", "outcome", "level"})
_styles = {
    "green": "completed success finished complete archived restored intact",
    "red": "failed dead damage error refused p1 p2 stale",
    "yellow": "running paused taken in_progress blocked complete_with_gaps warning working p3 approved",
    "dim": "pending cancelled skipped queued idle created",
}
_style_of_status = {status: style for style, statuses in _styles.items() for status in statuses.split()}


def status_style(status: str) -> str:
    """The colour of a status, empty for one that has none."""
    return _style_of_status.get(status.lower(), "")


def write_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table to stdout.

    On a terminal, cells that do not fit end with an ellipsis, and columns that do not fit are left out from the right
    and named on stderr. When stdout is not a terminal, nothing is cut.
    """
    cells = [[escape_controls("" if value is None else str(value)) for value in row] for row in rows]
    console = stdout_console()
    widths = [max([cell_len(name), *(cell_len(row[i]) for row in cells)]) for i, name in enumerate(columns)]
    if console.is_terminal:
        widths = fit_columns(widths, console.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in zip(columns, widths, strict=False):
        table.add_column(Text(name), width=width, no_wrap=True, overflow="ellipsis")
    for row in cells:
        table.add_row(*(_cell(name, text) for name, text in zip(columns[: len(widths)], row, strict=False)))
    console.print(table)
    if left_out := [name for name in columns[len(widths) :] if name]:
        words.print(f"not shown: {', '.join(left_out)} (widen the terminal, or use --json)", style="dim")


def fit_columns(widths: Sequence[int], available: int) -> list[int]:
    """The widths to draw columns with, in the given space: all of them, or as many from the left as have room."""
    smallest = [width if width <= _whole_cells_max else _cut_cells_min for width in widths]
    shown = 0
    while shown < len(widths) and sum(smallest[: shown + 1]) + _gap * shown <= available:
        shown += 1
    if shown == 0:
        return [max(1, available)]
    fitted, left = smallest[:shown], available - sum(smallest[:shown]) - _gap * (shown - 1)
    for i in range(shown):
        more = min(widths[i] - fitted[i], left)
        fitted[i] += more
        left -= more
    return fitted


def _cell(column: str, text: str) -> Text:
    return Text(text, status_style(text) if column in _status_columns else "")
