"""Projects a log for as long as it is asked to, and keeps the logbook: restarts, outages, new versions of a model."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from runstate.alerts import log_alert
from runstate.errors import InvalidPosition, ModelFailed, RunstateError, Unsupported, shown_url
from runstate.logbook import Entry, Logbook
from runstate.logs.log import Capability, EventLog
from runstate.logs.waiting import wait_for_more
from runstate.measuring import measuring
from runstate.models.canonical import digest
from runstate.models.model import Alert, AnyModel
from runstate.projector import Projector
from runstate.sinks import Sink, StoreSink
from runstate.store import Store

_logger = logging.getLogger("runstate.projector")

heartbeat_s = 1.0
"""How often the lag is put down while nothing moves."""
look_s = 0.02
"""How long a log is left alone that cannot tell of new events."""

SinkOf = Callable[[Store[Any, Any, Any], str], Sink]
"""Makes the sink for a store; the text is empty, or the name under which rows are kept aside."""


def store_sink(store: Store[Any, Any, Any], aside: str) -> Sink:
    return StoreSink(store.log, store.model.name, aside=aside)


def check_feed(url: str, log: EventLog) -> None:
    """
    Raises:
        Unsupported: the log has no feed, and cannot be followed.
    """
    if Capability.FEED not in log.capabilities:
        raise Unsupported(
            f"The {url.partition(':')[0]} log offers no feed to follow; sqlite, postgresql, dynamodb and snowflake do. "
            "Rebuild its snapshots with 'runstate replay', or copy its streams to such a log with 'runstate copy'",
            capability=Capability.FEED.value,
        )


def tell_alerts(store: Store[Any, Any, Any], book: Logbook) -> None:
    """Put the store's alerts into a logbook, and into the log of this process what is new there."""

    def raised(alert: Alert) -> None:
        if book.raised(alert):
            log_alert(alert)

    def cleared(alert: Alert) -> None:
        book.cleared(alert.alert_id)
        _logger.warning("%s is over: %s", alert.code, alert.subject)

    # What was open when the last projector ended still is: it is not told again, and can be cleared.
    store.alerts.tell(raised, cleared, book.open_alerts())


def begun(url: str, model: AnyModel, book: Logbook) -> Entry:
    """Where to go on with a log: with what readers see, or aside if that is of another version of the model.

    Raises:
        ModelFailed: the logbook is that of another model.
    """
    seen, fresh = book.entry(url), Entry(shown_url(url), model.name, model.version)
    if seen is not None and seen.model != model.name:
        raise ModelFailed(
            f"The logbook {book.path} is that of a projector of the model {seen.model!r}, not of "
            f"{model.name!r}; give this one a directory of its own with --state"
        )
    if seen is None or seen.version == model.version:
        return seen or fresh
    aside = book.entry(url, is_aside=True)
    if aside is None or aside.version != model.version:
        _logger.warning(
            "%s: version %d of the model %s is projected aside, and switched to when it has caught up with %d",
            *(fresh.url, model.version, model.name, seen.version),
        )
        aside = msgspec.structs.replace(fresh, is_aside=True)
    return aside


def aside_name(entry: Entry) -> str:
    """The name under which a sink keeps what is projected aside; one for each log, since each is switched by itself."""
    return f"v{entry.version}.{digest(entry.url.encode())[:8]}" if entry.is_aside else ""


class Follower:
    """Projects one log into a sink, on from where its logbook says."""

    def __init__(
        self,
        url: str,
        store: Store[Any, Any, Any],
        book: Logbook,
        sink_of: SinkOf = store_sink,
        *,
        page_events: int = 1000,
    ) -> None:
        """
        Raises:
            Unsupported: the log has no feed.
            ModelFailed: the logbook is that of another model.
        """
        check_feed(url, store.log)
        self.url, self._store, self._book, self._page_events = url, store, book, page_events
        tell_alerts(store, book)
        self._entry = begun(url, store.model, book)
        self._sink = sink_of(store, aside_name(self._entry))
        self._before = self._entry
        self._away_since: float | None = None
        self._noting = threading.RLock()
        self.events = 0
        """How many events it has taken in so far."""
        self.projector = self._projector()

    def _projector(self) -> Projector:
        return Projector(
            self._store,
            sink=self._sink,
            after=self._entry.position,
            page_events=self._page_events,
            name=self._entry.url,
        )

    @property
    def left_out(self) -> Counter[str]:
        """Streams of other models, by model, as far as they were met."""
        return self.projector.left_out

    def catch_up(self) -> int:
        """Project until the feed has come to its end. Returns how many events there were.

        Raises:
            RunstateError: the log or the sink has refused; what the sink has stays.
        """
        before = self.events
        with measuring(self._measure):
            while self._poll():
                pass
        return self.events - before

    def run(self, stop: threading.Event) -> None:
        """Follow the feed until told to stop. What is away for a while is waited for; the lag says for how long.

        Raises:
            RunstateError: one that no retry can mend.
        """
        with measuring(self._measure):
            while not stop.is_set():
                try:
                    if not self._poll() and not stop.is_set():
                        self._wait()
                    self._is_back()
                except RunstateError as error:
                    if not error.retryable:
                        raise
                    self._is_away(error)
                    stop.wait(heartbeat_s)

    def note(self) -> None:
        """Put down how it is."""
        with self._noting:
            made, entry = self.projector, self._entry
            self._entry = Entry(
                *(entry.url, entry.model, entry.version, entry.is_aside, made.position),
                *(self._before.events + made.events, self._before.resyncs + made.resyncs),
                *(len(made.stale()), made.lag_s),
            )
            self._book.note(self._entry)

    def _measure(self) -> None:
        """Measure the lag and put it down, beside the loop that projects."""
        self.projector.measure()
        self.note()

    def _poll(self) -> int:
        try:
            events = self.projector.poll()
        except InvalidPosition as error:
            # Another log is at that place now, or this one from an older backup. To read it again changes nothing that
            # is right already.
            _logger.warning("%s: %s; it is projected from its beginning", self._entry.url, error)
            with self._noting:
                self._entry = Entry(*(self._entry.url, self._entry.model, self._entry.version, self._entry.is_aside))
                self._before, self.projector = self._entry, self._projector()
            events = self.projector.poll()
        self.events += events
        if events:
            self.note()
        elif self._entry.is_aside:
            self._switch()
        return events

    def _switch(self) -> None:
        with self._noting:
            self._sink.switch()
            self._book.drop(self._entry)
            self._entry = Entry(*(self._entry.url, self._entry.model, self._entry.version), False, self._entry.position)
            self.note()
        _logger.warning("%s: switched over to version %d of the model", self._entry.url, self._entry.version)

    def _wait(self) -> None:
        """Until there may be more; the lag of a log that is still is measured and put down all the same."""
        until = time.monotonic() + heartbeat_s
        position = self.projector.position
        while (left_s := until - time.monotonic()) > 0:
            wait_for_more(self._store.log, position, left_s, look_s=look_s)
            if self._store.log.feed(after=position, limit=1).records:
                return
        self.projector.heartbeat()
        self.note()

    def _is_away(self, error: RunstateError) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            _logger.warning("%s: %s (%s); trying again until it is back", self._entry.url, error, error.code)
        self.projector.waited()
        self.note()

    def _is_back(self) -> None:
        if self._away_since is not None:
            _logger.warning("%s: back after %.1f s", self._entry.url, time.monotonic() - self._away_since)
            self._away_since = None
