"""What the driver of the live projection does for one log: keep rows, tell alerts, measure the lag, note how it is."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from runstate.errors import RunstateError
from runstate.following import aside_name, begun, tell_alerts
from runstate.logbook import Entry, Logbook
from runstate.logs.log import now
from runstate.models.canonical import digest
from runstate.pipeline.live.feed_reader import open_feed
from runstate.pipeline.live.fold import Folded, Gathering, Target
from runstate.projector import Projector
from runstate.sinks import Projected, Sink
from runstate.storage.disk import RealDisk, replace_durably
from runstate.store import Store

logger = logging.getLogger("runstate.projector")

Tell = Callable[[Projected], None]


class TellingOnce:
    """A sink that also tells somebody of every row that is new to it."""

    def __init__(self, sink: Sink, tell: Tell) -> None:
        self._sink, self._tell = sink, tell
        self.load, self.drop, self.switch = sink.load, sink.drop, sink.switch

    def keep(self, rows: Sequence[Projected]) -> None:
        known = {row.stream: self._sink.load(row.stream) for row in rows}
        self._sink.keep(rows)
        for row in rows:
            before = known[row.stream]
            if before is None or (before.born, before.stale, before.rank) != (row.born, row.stale, row.rank):
                self._tell(row)


class KeptLog:
    """One log, its sink and its entry in the logbook."""

    def __init__(self, url: str, store: Store[Any, Any, Any], book: Logbook, target: Target, tell: Tell) -> None:
        """
        Raises:
            ModelFailed: the logbook is that of another model.
        """
        self.url, self._store, self._book = url, store, book
        self.entry = begun(url, store.model, book)
        tell_alerts(store, book)
        with_aside = msgspec.structs.replace(target, asides={self.entry.url: aside_name(self.entry)})
        sink = with_aside.sink(url, store.log, store.model)
        self._sink: Sink = TellingOnce(sink, tell) if target.to == "console" else sink
        self._watch = Projector(store, sink=Gathering(sink), after=self.entry.position, name=self.entry.url)
        self._noting = threading.Lock()
        self._away_since: float | None = None
        self._stale_path = Path(target.state) / f"stale.{digest(self.entry.url.encode())[:8]}.json"
        self.stale = _read_names(self._stale_path)
        """Streams that wait for a resync. A restart must not forget them: perhaps no event of theirs ever comes."""
        self.is_caught_up = False

    # --- rows ----------------------------------------------------------------------------------------------

    def keep(self, folded: Folded) -> int:
        """Keep what the tasks of a batch have made. Done again, it changes nothing. How many events were new.

        Raises:
            RunstateError: the sink has refused; the batch will be done again.
        """
        self._keep(folded.rows, folded.dropped)
        for alert in folded.alerts:
            self._store.alerts.raise_once(alert)
        if vanished := sum(each.vanished for each in folded.progress):
            logger.warning("%s: %d events are gone before they were read, with their streams", self.entry.url, vanished)
        until = folded.progress[0].until
        if until == self.entry.position:
            return 0
        events = sum(each.events for each in folded.progress)
        resyncs = sum(each.resyncs for each in folded.progress)
        self._note(position=until, events=self.entry.events + events, resyncs=self.entry.resyncs + resyncs)
        return events

    def _keep(self, rows: Sequence[Projected], dropped: Sequence[str]) -> None:
        current, gone = list[Projected](), list(dropped)
        for row in rows:
            first = self._store.log.read(row.stream, limit=1)
            if not first:
                gone.append(row.stream)
            elif first[0].seq > 1 or first[0].persisted_at == row.born:
                current.append(row)
            else:
                logger.warning("%s: %s was deleted and begun again meanwhile", self.entry.url, row.stream)
        if current:
            self._sink.keep(current)
        for stream in gone:
            logger.warning("%s: %s was deleted, and is dropped", self.entry.url, stream)
            self._sink.drop(stream)
        stale = (self.stale - {*gone, *(row.stream for row in current)}) | {row.stream for row in current if row.stale}
        if stale != self.stale:
            replace_durably(RealDisk(), self._stale_path, msgspec.json.encode(sorted(stale)))
            self.stale = stale

    def sweep(self) -> None:
        """Resync what is STALE, though nothing new has come of it."""
        if self.stale:
            gathering = Gathering(self._sink)
            projector = Projector(self._store, sink=gathering, name=self.entry.url)
            for stream in sorted(self.stale):
                projector.projection(stream)
            projector.sweep()
            self._keep(list(gathering.rows.values()), list(gathering.dropped))
            self._note(resyncs=self.entry.resyncs + projector.resyncs)

    # --- how it is -----------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Measure the lag and put it down, also when nothing moves, or when the log does not answer.

        Raises:
            LogNotFound: it is no longer there. Whoever has it open would never notice.
        """
        self._watch.position = self.entry.position
        try:
            open_feed(self.url).close()
            lag_s = self._watch.heartbeat()
        except RunstateError as error:
            if not error.retryable:
                raise
            self._is_away(error)
            lag_s = self._watch.waited()
            self.is_caught_up = False
        else:
            self._is_back()
            self.is_caught_up = lag_s == 0.0 and self._watch.position == self.entry.position
        self._note(lag_s=lag_s)

    def wait_for_it(self) -> None:
        """Put down how far behind it is while there is no query."""
        self._note(lag_s=self._watch.waited())

    def _is_away(self, error: RunstateError) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            logger.warning("%s: %s (%s); trying again until it is back", self.entry.url, error, error.code)

    def _is_back(self) -> None:
        if self._away_since is not None:
            logger.warning("%s: back after %.1f s", self.entry.url, time.monotonic() - self._away_since)
            self._away_since = None

    def switch(self) -> None:
        """Let readers see what was projected aside. May be done again if it was interrupted."""
        if self.entry.is_aside:
            self._sink.switch()
            aside = self.entry
            self._note(is_aside=False)
            self._book.drop(aside)
            logger.warning("%s: switched over to version %d of the model", aside.url, aside.version)

    def _note(self, **changes: Any) -> None:
        with self._noting:
            made: Entry = msgspec.structs.replace(self.entry, stale=len(self.stale), measured_at=now(), **changes)
            self._book.note(made)
            self.entry = made


def _read_names(path: Path) -> set[str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=set[str])
    except FileNotFoundError:
        return set()
