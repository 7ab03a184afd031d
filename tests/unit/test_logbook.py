"""The logbook: how far a projector has come, how it is doing, and its alerts, each of them once."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runstate.errors import InvalidUrl, LogBusy, LogFailed, LogNotFound, NotALog, shown_url
from runstate.logbook import Entry, Logbook, file_name
from runstate.logs.log import Position
from runstate.models.model import Alert


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Logbook]:
    with closing(Logbook(tmp_path / "state")) as made:
        yield made


gap = Alert(code="GAP", level="P3", subject="r-1", event_id="e", details={"n": 1})
lag = Alert(code="LAG", level="P2", subject="sqlite:a.db")


def test_an_entry_is_what_was_noted_last(book: Logbook) -> None:
    book.note(Entry("sqlite:a.db", "engine", 1, False, Position("7"), 10, 1, 0, 0.5))
    book.note(Entry("sqlite:a.db", "engine", 1, False, Position("9"), 12, 1, 2, 0.25))
    (entry,) = book.entries()
    assert (entry.position, entry.events, entry.stale, entry.lag_s) == ("9", 12, 2, 0.25)
    assert entry.measured_at


def test_it_is_found_again_by_another_process(book: Logbook, tmp_path: Path) -> None:
    book.note(Entry("sqlite:a.db", "engine", 1, position=Position("7")))
    with closing(Logbook(tmp_path / "state", create=False)) as other:
        found = other.entry("sqlite:a.db")
    assert found is not None
    assert found.position == "7"


def test_what_is_aside_has_an_entry_of_its_own(book: Logbook) -> None:
    book.note(Entry("sqlite:a.db", "engine", 1, position=Position("7")))
    book.note(aside := Entry("sqlite:a.db", "engine", 2, True, Position("3")))
    assert [(e.version, e.position) for e in book.entries()] == [(1, "7"), (2, "3")]
    book.drop(aside)
    assert [e.version for e in book.entries()] == [1]


def test_no_password_is_put_down(book: Logbook, tmp_path: Path) -> None:
    url = "postgresql://user:hush@127.0.0.1/db"
    book.note(Entry(shown_url(url), "engine", 1, position=Position("1-2")))
    found = book.entry(url)
    assert found is not None
    assert b"hush" not in (tmp_path / "state" / file_name).read_bytes()


def test_an_alert_is_raised_once_while_it_is_open(book: Logbook) -> None:
    assert [book.raised(gap), book.raised(gap), book.raised(lag)] == [True, False, True]
    assert [alert.code for alert in book.alerts()] == ["GAP", "LAG"]


def test_an_alert_that_was_cleared_can_be_raised_again(book: Logbook, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([f"2026-11-15T12:00:0{n}.000Z" for n in range(9)])
    monkeypatch.setattr("runstate.logbook.now", lambda: next(times))
    book.raised(lag)
    book.cleared(lag.alert_id)
    assert book.alerts(open_only=True) == []
    assert book.raised(lag)
    first, second = book.alerts()
    assert (first.cleared_at, second.cleared_at) == ("2026-11-15T12:00:01.000Z", None)
    assert book.alert_counts() == ({"LAG": 2}, {"LAG": 1})


def test_open_alerts_come_back_as_they_were_raised(book: Logbook) -> None:
    book.raised(gap)
    assert book.open_alerts() == [gap]


def test_a_missing_logbook_is_no_new_one(tmp_path: Path) -> None:
    with pytest.raises(LogNotFound, match="runstate project"):
        Logbook(tmp_path / "state", create=False)
    assert not (tmp_path / "state").exists()


def test_another_database_is_left_as_it_is(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / file_name)) as other:
        other.execute("CREATE TABLE mine (a)")
        other.commit()
    before = (tmp_path / file_name).read_bytes()
    with pytest.raises(NotALog):
        Logbook(tmp_path)
    assert (tmp_path / file_name).read_bytes() == before


def test_noise_is_refused(tmp_path: Path) -> None:
    (tmp_path / file_name).write_bytes(b"noise" * 1000)
    with pytest.raises(LogFailed):
        Logbook(tmp_path)


def test_one_projector_keeps_it_at_a_time(book: Logbook, tmp_path: Path) -> None:
    with book.kept_for("store"), closing(Logbook(tmp_path / "state")) as other:
        with pytest.raises(LogBusy), other.kept_for("store"):
            pass
        assert other.entries() == []  # Whoever only looks is let in.
    with book.kept_for("store"):
        pass


def test_it_is_that_of_one_sink(book: Logbook) -> None:
    with book.kept_for("store"):
        pass
    with pytest.raises(InvalidUrl, match="--state"), book.kept_for("parquet:/table"):
        pass
    with book.kept_for("store"):
        pass


def test_a_restart_of_the_machine_is_noticed_until_the_sink_was_made_good(
    book: Logbook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.logbook._boot", lambda: "a")
    for _ in range(2):
        with book.kept_for("store"):
            assert not book.is_after_restart
    monkeypatch.setattr("runstate.logbook._boot", lambda: "b")
    for _ in range(2):  # Whoever is killed before that leaves it to the next one.
        with book.kept_for("store"):
            assert book.is_after_restart
    book.reconciled()
    with book.kept_for("store"):
        assert not book.is_after_restart


def test_nobody_else_may_read_it(book: Logbook) -> None:
    assert stat.S_IMODE(book.path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in book.path.parent.iterdir()} == {0o600}


def test_a_log_that_an_earlier_version_noted_with_a_hidden_password_is_projected_anew(book: Logbook) -> None:
    book.note(Entry("postgresql://user:…@127.0.0.1/db", "engine", 1, position=Position("1-2")))
    book.note(Entry("sqlite:a.db", "engine", 1, position=Position("7")))
    with book.kept_for("store"):
        assert [entry.url for entry in book.entries()] == ["sqlite:a.db"]
