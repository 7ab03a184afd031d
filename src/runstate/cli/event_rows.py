"""Events as rows that fit a terminal: seq, time, type, subject, and the beginning of what they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from runstate.cli.output import is_terminal, stdout_console, write_line
from runstate.logs.log import Record
from runstate.logs.record_json import encode_record
from runstate.models.escaping import escape_controls
from runstate.models.model import AnyModel, Description

_details_cells_min = 12
_widths_max = {"seq": 10, "time": 12, "stream": 24, "type": 28, "subject": 28}
"""The widest that a column gets, in cells; the details get the rest of the line."""
_dropped_first = ("subject", "time", "stream")
"""In this order, columns give way on a terminal that is too narrow for all."""


ModelOf = Callable[[str], AnyModel | None]
"""The model to describe the events of a stream with; None if there is none: they are shown as they are."""


def record_writer(model_of: ModelOf, as_json: bool, *, with_stream: bool) -> Callable[[Sequence[Record]], None]:
    """The function that writes a page of records: rows for a person at a terminal, JSON for everything else."""
    if is_terminal() and not as_json:
        return EventRows(model_of, with_stream=with_stream).write

    def write(records: Sequence[Record]) -> None:
        for record in records:
            write_line(encode_record(record))

    return write


class EventRows:
    """Writes records as rows. The first page decides how wide the columns are; a date stands above its events."""

    def __init__(self, model_of: ModelOf, *, with_stream: bool) -> None:
        self._model_of, self._console = model_of, stdout_console()
        self._columns = ["seq", "time", *(["stream"] if with_stream else []), "type", "subject"]
        self._widths: dict[str, int] = {}
        self._date = ""

    def write(self, records: Sequence[Record]) -> None:
        """Write a page of records."""
        rows = [(record, self._describe(record)) for record in records]
        texts = [_texts(record, description) for record, description in rows]
        if not self._widths:
            self._start(texts)
        for record, cells in zip(records, texts, strict=True):
            if record.persisted_at[:10] != self._date:
                self._date = record.persisted_at[:10]
                self._console.print(Text(f"{self._date} (UTC)", "dim"))
            self._console.print(self._row(cells), no_wrap=True, crop=True)

    def _start(self, texts: list[dict[str, str]]) -> None:
        needed = {name: max([len(name), *(cell_len(cells[name]) for cells in texts)]) for name in self._columns}
        self._widths = {name: min(width, _widths_max[name]) for name, width in needed.items()}
        for name in _dropped_first:
            if self._room() < _details_cells_min:
                self._widths.pop(name, None)
        header = {name: name for name in self._widths} | {"details": "details"}
        self._console.print(self._row(header, header=True), no_wrap=True, crop=True)

    def _room(self) -> int:
        """The cells that are left for the details."""
        return self._console.width - sum(self._widths.values()) - 2 * len(self._widths)

    def _row(self, cells: dict[str, str], *, header: bool = False) -> Text:
        row = Text(style="bold" if header else "")
        for name, width in self._widths.items():
            text = _cut(cells[name], width)
            padded = text.rjust(width) if name == "seq" else set_cell_size(text, width)
            row.append(padded + "  ", "" if header else _style(name, cells[name]))
        room = max(self._room(), 0)
        row.append(_cut(cells["details"], room), "" if header else "dim")
        row.rstrip()
        return row

    def _describe(self, record: Record) -> Description:
        model = self._model_of(record.stream)
        try:
            if model is not None:
                return model.describe(model.decode(record.body))
        except Exception:  # noqa: BLE001, S110 - a list shows what is there, also what its model cannot read
            pass
        return Description("", msgspec.Raw(record.body))


def _texts(record: Record, description: Description) -> dict[str, str]:
    shown = {
        "seq": str(record.seq),
        "time": record.persisted_at[11:23],
        "stream": record.stream,
        "type": record.type,
        "subject": description.subject,
        "details": _brief(description.details),
    }
    return {name: escape_controls(text) for name, text in shown.items()}


def _brief(details: Any) -> str:
    """Members as `name=value`, values as JSON, texts without quotes."""
    if isinstance(details, dict):
        return " ".join(f"{name}={_value(value)}" for name, value in details.items())
    return _value(details)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "backslashreplace")


def _cut(text: str, cells: int) -> str:
    if cell_len(text) <= cells:
        return text
    return "" if cells < 1 else set_cell_size(text, cells - 1).rstrip() + "…"


def _style(column: str, text: str) -> str:
    if column != "type":
        return {"seq": "cyan", "time": "dim", "stream": "cyan"}.get(column, "")
    kind = text.lower()
    if any(word in kind for word in ("fail", "error", "cancel", "dead", "reject")):
        return "red"
    return "green" if any(word in kind for word in ("complet", "success", "finish")) else ""
