"""The projector: follows a log's feed and keeps a snapshot of every stream, at most a second behind.

It trusts nothing but sequence numbers. One that comes too early means that something is missing between: the
stream is marked STALE and rebuilt from the log. One that comes late fills such a gap, and the stream is rebuilt
again. A gap that is never filled is normal too, and ends as soon as the log has been read once more.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from runstate.errors import RunstateError
from runstate.logs.log import Position, Record, now
from runstate.logs.pending import Blocker, oldest_pending
from runstate.logs.stream_models import head_model
from runstate.measuring import measuring
from runstate.models.model import Alert
from runstate.models.model_errors import translate_model_errors
from runstate.sinks import Projected, Sink, StoreSink
from runstate.store import Store

_logger = logging.getLogger("runstate.projector")

lag_normal_s = 1.0
"""At most this far behind is as it should be; here an open `PROJECTOR_LAG_HIGH` is cleared."""
lag_high_s = 5.0
"""Further behind than this raises `PROJECTOR_LAG_HIGH`."""
lag_resync_s = 10.0
"""Events older than this are not applied one by one: their stream is read from the log to its end."""

_states_max = 10_000
"""States held in memory; a stream whose state was let go starts again from its row in the sink."""


class Projection(msgspec.Struct, rename="camel"):
    """How far one stream has been projected."""

    stream: str
    watermark: int = 0
    """The last sequence number in the state."""
    applied: int = 0
    """How many events are in the state. Fewer than the watermark: there are gaps below it."""
    observed: int = 0
    """The highest sequence number seen. STALE ends when the watermark has come this far."""
    status: Literal["LIVE", "STALE"] = "LIVE"
    late: bool = False
    """Something arrived below the watermark: only folding the whole stream again puts it in its place."""
    resyncs: int = 0
    born: str = ""
    """When its first event was stored. With another first event it is another stream, begun after a deletion."""
    event_id: str = ""
    """Of the last event in the state; empty if only a row of the sink records it."""
    projected_at: str = ""
    """When that row was made."""

    def is_replaced_by(self, record: Record) -> bool:
        """Whether a record has the seq of the last event in the state, and is another one: a repair, or a quarantine,
        has taken that one out, and its seq was given again."""
        if record.seq != self.watermark:
            return False
        if self.event_id:
            return record.event_id != self.event_id
        return "" < self.projected_at < record.persisted_at


class Projector:
    """Call `poll` in a loop, or let `run` do it. Reprocessing from any earlier position changes nothing."""

    def __init__(
        self,
        store: Store[Any, Any, Any],
        *,
        sink: Sink | None = None,
        after: Position | None = None,
        page_events: int = 1000,
        name: str = "projector",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`sink` is where snapshots go: by default to the log itself. `name` tells alerts about the lag apart."""
        self._store, self._page_events, self._clock = store, page_events, clock
        self._lag_high = Alert(
            code="PROJECTOR_LAG_HIGH", level="P2", subject=name, details={"thresholdSeconds": lag_high_s}
        )
        self._sink = StoreSink(store.log, store.model.name) if sink is None else sink
        self._projections: dict[str, Projection] = {}
        self._states: OrderedDict[str, Any] = OrderedDict()
        self._changed: dict[str, None] = {}
        """Streams of which the sink does not know all yet, in the order in which they changed."""
        self._caught_up_at = clock()
        self.position = after
        """Where the feed is read next. Keep it, to go on from here in another process."""
        self.lag_s = 0.0
        """The age of the oldest event that is not projected yet, when last measured."""
        self.events = self.resyncs = 0
        """How many have been taken in, and how often a stream was read again, since this projector was made."""
        self.left_out: Counter[str] = Counter()
        """Streams of other models than the store's, by model. None of their events is projected."""
        self._others = set[str]()

    # --- taking in -----------------------------------------------------------------------------------------

    def poll(self) -> int:
        """Project the next page of the feed, and whatever is STALE. Returns how many events came."""
        page = self._store.log.feed(after=self.position, limit=self._page_events)
        if page.records:
            # Before projecting: a sink that takes long, or hangs, must not hide how old these events are.
            self._measured(self._age_s(page.records[0].persisted_at))
        self.project(page.records)
        self.position = page.next
        self.heartbeat()
        return len(page.records)

    def project(self, records: Iterable[Record]) -> None:
        """Take in a stretch of the feed, and resync whatever is STALE. Once this returns, the sink has all of it."""
        by_stream: dict[str, list[Record]] = {}
        for record in records:
            by_stream.setdefault(record.stream, []).append(record)
        for stream, found in by_stream.items():
            if self._has_model(stream, found[0]):
                self._observe(stream, found)
                self.events += len(found)
        self.sweep()
        self._flush()

    def _has_model(self, stream: str, first: Record) -> bool:
        """Whether a stream is of the store's model. Looked up once, and again if it begins: it may be another one."""
        if first.seq > 1 and (stream in self._projections or stream in self._others):
            return stream not in self._others
        info = self._store.log.stream(stream)
        if info is None or info.model in ("", self._store.model.name):
            self._others.discard(stream)
            return True
        self.left_out[info.model] += stream not in self._others
        self._others.add(stream)
        return False

    def observe(self, stream: str, records: Iterable[Record]) -> None:
        """Take in what one fetch gave of a stream: ascending, perhaps with gaps, perhaps late, perhaps known."""
        self._observe(stream, records)
        self._flush()

    def _observe(self, stream: str, records: Iterable[Record]) -> None:
        projection = self.projection(stream)
        fresh: list[Record] = []
        for record in records:
            projection.observed = max(projection.observed, record.seq)
            following = projection.watermark + len(fresh) + 1
            if record.seq == 1 and projection.born != record.persisted_at:
                if projection.watermark > 0:
                    self._begin_again(projection)
                    projection.status = "STALE"
                projection.born, projection.observed = record.persisted_at, 1
            if projection.status == "STALE":
                # The resync reads what follows from the log; and all of it, if this fills a gap below the watermark.
                projection.late |= record.seq <= projection.watermark > projection.applied
                projection.late |= projection.is_replaced_by(record)
                continue
            if record.seq > following:
                self._store.alerts.raise_once(_gap(record, following))
                projection.status = "STALE"
            elif record.seq < following:
                # Without a gap below the watermark, this is only an event that was applied before.
                projection.late = projection.applied < projection.watermark or projection.is_replaced_by(record)
                projection.status = "STALE" if projection.late else "LIVE"
            elif self._age_s(record.persisted_at) > lag_resync_s:
                projection.status = "STALE"
            else:
                fresh.append(record)
        if fresh:
            self._apply(projection, fresh)
        if projection.status == "STALE":
            self._changed[stream] = None

    def sweep(self) -> None:
        """Resync every STALE stream, also those of which nothing new arrives."""
        stale = [projection for projection in self._projections.values() if projection.status == "STALE"]
        if stale:
            self._flush()  # Whoever reads a snapshot meanwhile shall see that it is STALE.
        for projection in stale:
            self._resync(projection)
        self._flush()

    def reconcile(self) -> int:
        """Resync every stream whose row is behind the log, wherever the position is. Returns how many were.

        For after a power cut: a log does not flush its snapshots, since they can be made again, and so the sink may
        have lost what the position says it has.
        """
        behind = 0
        for head in self._store.log.heads(versions=False):
            if head_model(self._store.log, head) not in ("", self._store.model.name):
                continue
            projection = self.projection(head.stream)
            if head.last_seq is not None and projection.watermark < head.last_seq:
                projection.observed, projection.status = max(projection.observed, head.last_seq), "STALE"
                behind += 1
                self.sweep()
            self._let_go([head.stream])
        return behind

    def run(self, stop: threading.Event, *, interval_s: float = 0.2) -> None:
        """Poll until told to stop. A log or a sink that is away for a while is waited for; the lag says how long."""
        with measuring(self.measure):
            while not stop.is_set():
                try:
                    events = self.poll()
                except RunstateError as error:
                    if not error.retryable:
                        raise
                    events = 0
                    self.waited()
                if events == 0:
                    stop.wait(interval_s)

    # --- lag -----------------------------------------------------------------------------------------------

    def heartbeat(self) -> float:
        """Measure the lag, also when nothing moves or while another thread projects.

        `PROJECTOR_LAG_HIGH` is raised once, and cleared. If an open transaction holds the feed back,
        `PROJECTOR_FEED_BLOCKED` names its session.
        """
        oldest = oldest_pending(self._store.log, self.position)
        if oldest is None:
            self._caught_up_at = self._clock()
        lag_s = 0.0 if oldest is None else self._age_s(oldest.persisted_at)
        blocker = None if oldest is None or lag_s <= lag_high_s else oldest.blocked_by
        blocked = self._blocked_by(blocker)
        if blocker is None:
            self._store.alerts.clear(blocked.alert_id)
        else:
            self._store.alerts.raise_once(blocked)
        return self._measured(lag_s)

    def _blocked_by(self, blocker: Blocker | None) -> Alert:
        details = {} if blocker is None else msgspec.to_builtins(blocker)
        return Alert(code="PROJECTOR_FEED_BLOCKED", level="P2", subject=self._lag_high.subject, details=details)

    def measure(self) -> float:
        """The lag, whether the log answers or not."""
        try:
            return self.heartbeat()
        except RunstateError:  # The loop that projects meets the same error, and reports it.
            return self.waited()

    def waited(self) -> float:
        """The lag where the log does not answer: nobody knows better than how long ago all was projected."""
        return self._measured((self._clock() - self._caught_up_at).total_seconds())

    def _measured(self, lag_s: float) -> float:
        self.lag_s = lag_s
        if lag_s > lag_high_s:
            self._store.alerts.raise_once(self._lag_high)
        elif lag_s <= lag_normal_s:
            self._store.alerts.clear(self._lag_high.alert_id)
        return lag_s

    def _age_s(self, persisted_at: str) -> float:
        """How long ago an event was stored; a clock that was set back makes it zero, never negative."""
        return max(0.0, (self._clock() - datetime.fromisoformat(persisted_at)).total_seconds())

    # --- one stream ----------------------------------------------------------------------------------------

    def projection(self, stream: str) -> Projection:
        """How far a stream has been projected; one not seen before starts from its row in the sink."""
        found = self._projections.get(stream)
        if found is None:
            found = self._projections[stream] = Projection(stream)
            self._restore(found)
        return found

    @property
    def held(self) -> int:
        """How many streams are held in memory: some of those that are not over."""
        return len(self._projections)

    def stale(self) -> list[str]:
        """The streams that wait for a resync."""
        # A copy: another thread measures while this one projects.
        return [projection.stream for projection in list(self._projections.values()) if projection.status == "STALE"]

    def _restore(self, projection: Projection) -> None:
        model, row = self._store.model, self._sink.load(projection.stream)
        if row is None or row.version != model.version:
            self._states[projection.stream] = model.initial(projection.stream)
            return
        self._states[projection.stream] = model.load(row.body)
        projection.watermark, projection.applied, projection.born = row.last_event_seq, row.applied, row.born
        projection.observed, projection.status = row.observed, "STALE" if row.stale else "LIVE"
        projection.projected_at = row.projected_at

    def _apply(self, projection: Projection, records: Sequence[Record]) -> None:
        stream, lines = projection.stream, [record.body for record in records]
        try:
            # Taken out while it is folded: should that fail half way, nobody goes on with half a state.
            with translate_model_errors(self._store.model, stream):
                state = self._store.model.fold(self._states.pop(stream), lines, self._store.alerts.raise_once)
        except BaseException:
            self._forget(stream)
            raise
        projection.watermark, projection.event_id = records[-1].seq, records[-1].event_id
        projection.applied += len(lines)
        self._states[stream] = state
        self._changed[stream] = None

    def _resync(self, projection: Projection) -> None:
        """Read the stream from the log to its end: what is missing, or all of it when something came late."""
        stream = projection.stream
        if self._store.log.stream(stream) is None:
            _logger.warning("The stream %r was deleted while it was projected; it is dropped from the sink", stream)
            self._forget(stream)
            self._sink.drop(stream)
            return
        if projection.late or stream not in self._states:
            self._begin_again(projection)
        projection.resyncs += 1
        self.resyncs += 1
        while page := self._store.log.read(stream, after_seq=projection.watermark, limit=self._page_events):
            self._apply(projection, page)
        if projection.watermark >= projection.observed:
            projection.status, projection.late = "LIVE", False
            self._changed[stream] = None

    def _begin_again(self, projection: Projection) -> None:
        self._states[projection.stream] = self._store.model.initial(projection.stream)
        projection.watermark = projection.applied = 0

    # --- giving out ----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Hand to the sink what has changed. Should it refuse, what it has is where these streams go on from."""
        # Before its first event there is nothing to keep of a stream.
        changed = [s for s in self._changed if s in self._states and self._projections[s].watermark]
        self._changed.clear()
        try:
            if changed:
                self._sink.keep([self._row(self._projections[stream]) for stream in changed])
        except BaseException:
            for stream in changed:
                self._forget(stream)
            raise
        self._let_go(changed)

    def _row(self, projection: Projection) -> Projected:
        model, state = self._store.model, self._states[projection.stream]
        return Projected(
            stream=projection.stream,
            model=model.name,
            version=model.version,
            last_event_seq=projection.watermark,
            applied=projection.applied,
            observed=projection.observed,
            born=projection.born,
            status=model.status(state),
            stale=projection.status == "STALE",
            projected_at=now(),
            body=model.dump(state),
        )

    def _let_go(self, changed: Iterable[str]) -> None:
        """Bound the memory: streams that are over, or not touched for longest, start again from their rows."""
        for stream in changed:
            if self._projections[stream].status == "LIVE" and self._store.model.is_over(self._states[stream]):
                self._forget(stream)
        while len(self._states) > _states_max:
            stream, _ = self._states.popitem(last=False)
            if self._projections[stream].status == "LIVE":
                del self._projections[stream]

    def _forget(self, stream: str) -> None:
        self._projections.pop(stream, None)
        self._states.pop(stream, None)
        self._changed.pop(stream, None)


def _gap(record: Record, expected: int) -> Alert:
    return Alert(
        code="PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED",
        level="P3",
        subject=record.stream,
        event_id=record.event_id,
        details={"stream": record.stream, "expectedSeq": expected, "observedSeq": record.seq},
    )
