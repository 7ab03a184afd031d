"""The alert book: each alert once, until it is cleared."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from runstate.alerts import AlertBook
from runstate.models.canonical import parse
from runstate.models.model import Alert


def alert(code: str = "SOME", subject: str = "r-1", event_id: str = "") -> Alert:
    return Alert(code=code, level="P2", subject=subject, event_id=event_id)


def test_an_open_alert_is_not_raised_again() -> None:
    heard: list[Alert] = []
    book = AlertBook(heard.append)
    for _ in range(3):
        book.raise_once(alert())
    assert heard == [alert()]


@pytest.mark.parametrize("other", [alert(code="OTHER"), alert(subject="r-2"), alert(event_id="e-1")])
def test_alerts_differ_by_code_subject_and_event(other: Alert) -> None:
    heard: list[Alert] = []
    book = AlertBook(heard.append)
    book.raise_once(alert())
    book.raise_once(other)
    assert heard == [alert(), other]


def test_details_make_no_other_alert() -> None:
    heard: list[Alert] = []
    book = AlertBook(heard.append)
    book.raise_once(alert())
    book.raise_once(Alert(code="SOME", level="P1", subject="r-1", details={"a": 1}))
    assert heard == [alert()]


def test_a_cleared_alert_is_new_again() -> None:
    heard: list[Alert] = []
    book = AlertBook(heard.append)
    book.raise_once(alert())
    book.clear(alert().alert_id)
    book.raise_once(alert())
    assert heard == [alert(), alert()]


def test_clearing_says_whether_there_was_anything_to_clear() -> None:
    book = AlertBook(lambda _: None)
    book.raise_once(alert())
    assert [book.clear(alert().alert_id), book.clear(alert().alert_id)] == [True, False]


def test_what_is_open_is_listed_oldest_first() -> None:
    book = AlertBook(lambda _: None)
    for code in ("B", "A", "C", "A"):
        book.raise_once(alert(code))
    book.clear(alert("B").alert_id)
    assert [found.code for found in book.active()] == ["A", "C"]


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runstate.alerts.remembered_max", 2)
    heard: list[str] = []
    book = AlertBook(lambda found: heard.append(found.code))
    for code in ("A", "B", "C", "B", "A"):
        book.raise_once(alert(code))
    assert heard == ["A", "B", "C", "A"]


def test_many_threads_raise_one_alert_once() -> None:
    heard: list[Alert] = []
    book, barrier = AlertBook(heard.append), threading.Barrier(8)

    def raise_it(_: int) -> None:
        barrier.wait()
        book.raise_once(alert())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(raise_it, range(8)))
    assert heard == [alert()]


def test_a_listener_may_raise_an_alert_itself() -> None:
    heard: list[str] = []

    def listen(found: Alert) -> None:
        heard.append(found.code)
        book.raise_once(alert("SECOND"))

    book = AlertBook(listen)
    book.raise_once(alert("FIRST"))
    assert heard == ["FIRST", "SECOND"]


def test_without_a_listener_an_alert_is_a_line_of_json_in_the_programs_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "runstate.alerts"):
        AlertBook().raise_once(Alert(code="SOME", level="P3", subject="r-1", event_id="e", details={"a": [1]}))
    (entry,) = caplog.records
    assert (entry.name, entry.levelname) == ("runstate.alerts", "WARNING")
    assert parse(entry.getMessage()) == {
        "code": "SOME",
        "level": "P3",
        "subject": "r-1",
        "eventId": "e",
        "details": {"a": [1]},
    }
