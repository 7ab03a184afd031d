"""Tables and event rows: they fit, what is cut is visible, and nothing from outside steers the terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from runstate.cli import output
from runstate.cli.event_rows import EventRows
from runstate.cli.output import SafeConsole
from runstate.cli.tables import fit_columns, status_style, write_table
from runstate.logs.log import Record
from runstate.models.engine import ENGINE
from runstate.models.escaping import escape_controls

hostile = "a\x1b[31m\x00\u202e\u009b2J\r\nb\U000e0041"

Screen = Callable[[int], io.StringIO]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Makes stdout a terminal of the given width, and returns what is written to it."""

    def make(width: int) -> io.StringIO:
        file = io.StringIO()
        console = SafeConsole(file=file, width=width, height=30, force_terminal=True, color_system=None)
        for module in ("runstate.cli.tables", "runstate.cli.event_rows"):
            monkeypatch.setattr(f"{module}.stdout_console", lambda: console)
        return file

    return make


def test_control_characters_are_escaped_as_json_escapes_them() -> None:
    assert escape_controls(hostile) == "a\\u001b[31m\\u0000\\u202e\\u009b2J\\u000d\\u000ab\\udb40\\udc41"


def test_ordinary_text_of_any_language_is_left_alone() -> None:
    text = "Größe 漢字 \u3000 \u0645\u06cc\u200c\u062e 👩\u200d🚀 …"
    assert escape_controls(text) == text


@given(st.text())
def test_nothing_that_is_escaped_contains_a_control_character(text: str) -> None:
    escaped = escape_controls(text)
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in escaped)
    assert escape_controls(escaped) == escaped


@given(st.lists(st.integers(0, 100), min_size=1, max_size=9), st.integers(1, 200))
def test_columns_never_exceed_the_terminal(widths: list[int], available: int) -> None:
    fitted = fit_columns(widths, available)
    assert 1 <= len(fitted) <= len(widths)
    assert sum(fitted) + 2 * (len(fitted) - 1) <= max(available, 1)


def test_a_table_that_fits_is_whole() -> None:
    assert fit_columns([10, 30, 5], 49) == [10, 30, 5]


@pytest.mark.parametrize("width", [20, 60, 100])
def test_no_line_of_a_table_is_wider_than_the_terminal(screen: Screen, width: int) -> None:
    file = screen(width)
    write_table(("stream", "status", "message"), [("r" * 40, "FAILED", "漢" * 90), ("s", "COMPLETED", "fine")])
    assert all(cell_len(line) <= width for line in file.getvalue().split("\n"))
    assert "…" in file.getvalue()


def test_columns_without_room_are_named(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    screen(20)
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    write_table(("stream", "status", "last stored"), [("run-0001", "FAILED", "2026-11-16T09:30:00.000Z")])
    assert "not shown: last stored (widen the terminal, or use --json)" in said.getvalue()


def test_a_table_shows_escapes_and_never_sends_them(screen: Screen) -> None:
    file = screen(100)
    write_table(("stream",), [(hostile,)])
    assert "a\\u001b[31m\\u0000" in file.getvalue()
    assert not {"\x1b", "\x00", "\u202e", "\u009b", "\r"} & set(file.getvalue())


@pytest.mark.parametrize(
    ("status", "style"), [("COMPLETED", "green"), ("failed", "red"), ("RUNNING", "yellow"), ("anything", "")]
)
def test_a_status_has_a_colour(status: str, style: str) -> None:
    assert status_style(status) == style


def record(seq: int, kind: str, members: str = "", at: str = "2026-11-16T09:30:00.000Z") -> Record:
    body = (
        f'{{"runSeq":{seq},"persistedAt":"{at}","eventId":"e","eventType":"{kind}","emittedAt":"{at}","runId":"r",'
        '"tenantId":"t","projectId":"p","environmentId":"e","planId":"n","planVersion":"1","engineAttemptId":1,'
        f'"logicalAttemptId":2,"idempotencyKey":"k"{members}}}'
    )
    return Record("r", seq, "e", kind, "k", "t", at, at, body.encode())


def test_event_rows_show_seq_time_type_subject_and_details(screen: Screen) -> None:
    file = screen(100)
    EventRows(lambda stream: ENGINE, with_stream=False).write(
        [record(7, "StepFailed", ',"stepId":"extract","payload":{"error":{"code":"E1"},"host":"h-1"}')]
    )
    header, date, row = file.getvalue().rstrip("\n").split("\n")
    assert header.split() == ["seq", "time", "type", "subject", "details"]
    assert date == "2026-11-16 (UTC)"
    assert row.strip().split("  ") == [
        "7",
        "09:30:00.000",
        "StepFailed",
        "extract (attempt 2)",
        'error={"code":"E1"} host=h-1',
    ]


@pytest.mark.parametrize("width", [1, 20, 40, 60, 100])
def test_no_event_row_is_wider_than_the_terminal(screen: Screen, width: int) -> None:
    file = screen(width)
    rows = EventRows(lambda stream: ENGINE, with_stream=True)
    rows.write([record(1, "StepStarted", ',"stepId":"' + "漢" * 60 + '","payload":{"x":"' + "y" * 200 + '"}')])
    rows.write([record(2, "SomethingWithAVeryLongTypeNameIndeedAndMore")])
    assert all(cell_len(line) <= max(width, 20) for line in file.getvalue().split("\n"))


def test_a_new_date_stands_above_its_events(screen: Screen) -> None:
    file = screen(80)
    rows = EventRows(lambda stream: ENGINE, with_stream=False)
    rows.write([record(1, "RunStarted"), record(2, "RunPaused")])
    rows.write([record(3, "RunResumed", at="2026-11-17T00:00:00.000Z")])
    assert [line for line in file.getvalue().split("\n") if "UTC" in line] == ["2026-11-16 (UTC)", "2026-11-17 (UTC)"]


def test_an_event_that_its_model_cannot_read_is_still_listed(screen: Screen) -> None:
    file = screen(100)
    broken = Record("r", 1, "e", "odd", "k", "", "", "2026-11-16T09:30:00.000Z", b'{"not":"an engine event"}')
    EventRows(lambda stream: ENGINE, with_stream=False).write([broken])
    assert '{"not":"an engine event"}' in file.getvalue()


def test_json_on_a_terminal_is_the_same_value_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    output.write_json({"id": hostile})
    written = capsysbinary.readouterr().out
    assert msgspec.json.decode(written) == {"id": hostile}
    assert all(b >= 32 for b in written.rstrip(b"\n"))
    assert "\u202e" not in written.decode()
