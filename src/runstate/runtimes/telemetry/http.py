"""Telemetry over HTTP: one thread saves records in the outbox, another posts them; the run waits for neither."""

from __future__ import annotations

import atexit
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Annotated, Self

import msgspec

from runstate.models.rundir.events import RunEvent
from runstate.runtimes.telemetry.endpoint import Answer, Endpoint
from runstate.runtimes.telemetry.outbox import Outbox
from runstate.runtimes.telemetry.records import records
from runstate.runtimes.telemetry.trouble import logger, unfailing
from runstate.storage.disk import Disk

_batch_max = 1000
_idle_s = 1.0


class Backoff(msgspec.Struct, frozen=True):
    """How long to wait before the next try: doubled each time up to a bound, and never the same for two senders."""

    first_s: float = 0.5
    longest_s: float = 60.0

    def delay_s(self, failures: int, asked_s: float = 0.0) -> float:
        """The wait after that many failures in a row; at least what the endpoint asked for, within the bound."""
        doubled = min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 60))
        return max(min(asked_s, self.longest_s), doubled * random.uniform(0.5, 1.0))  # noqa: S311 - no secret


class HttpTelemetry:
    """Posts the records of events to an endpoint, in order and at least once.

    `emit` only puts the record in a queue, and never raises. Once a record is in the outbox, it survives the process;
    `saved` says how many are. The outbox is drained for as long as this lives, and by whoever opens it next.
    Counted in `dropped`, and told to the log "runstate.telemetry": records that found the queue or the outbox full.
    """

    def __init__(
        self,
        endpoint: str,
        outbox: PurePath,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        queue_max: int = 10_000,
        outbox_bytes_max: int = 64 * 1024 * 1024,
        backoff: Backoff | None = None,
        disk: Disk | None = None,
    ) -> None:
        """
        Raises:
            InvalidUrl: the endpoint is not http or https, or a header could not be sent.
        """
        self.delivered = self.rejected = self.dropped = self.saved = 0
        self._endpoint = Endpoint(endpoint, headers=headers, timeout_s=timeout_s)
        self._outbox = Outbox(outbox, bytes_max=outbox_bytes_max, unsaved_max=queue_max, disk=disk)
        self._backoff = backoff or Backoff()
        self._queue: deque[bytes] = deque()
        self._queue_max = queue_max
        self._arrived = threading.Condition()
        self._saved_some = threading.Event()
        self._closing = threading.Event()
        self._all_saved = False
        self._deadline = float("inf")
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=f"runstate-telemetry-{name}", daemon=True)
            for name, work in (("outbox", self._save), ("sender", self._send))
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    def emit(self, event: RunEvent) -> None:
        """Take note of an event, as the log stored it. Returns at once and never raises."""
        with unfailing("An event could not be told to the telemetry endpoint"):
            lines = [msgspec.json.encode(record) for record in records(event)]
            with self._arrived:
                for line in lines:
                    if self._closing.is_set() or len(self._queue) >= self._queue_max:
                        self._drop(1, "the queue is full, or closed")
                        continue
                    self._queue.append(line)
                    self._arrived.notify()

    def close(self, timeout_s: float = 5.0) -> None:
        """Save everything and deliver what can be within that time; the rest stays in the outbox. Never raises."""
        with unfailing("The telemetry could not be closed"):
            atexit.unregister(self.close)
            self._deadline = min(self._deadline, time.monotonic() + timeout_s)
            with self._arrived:
                self._closing.set()
                self._arrived.notify_all()
            for thread in self._threads:
                thread.join(max(0.0, self._deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the two threads -----------------------------------------------------------------------------------------

    def _guard(self, work: Callable[[], None]) -> None:
        with unfailing("Telemetry stopped; the run goes on without it"):
            work()

    def _save(self) -> None:
        try:
            while lines := self._next_batch():
                refused = self._outbox.append(lines)
                self.saved += len(lines) - refused
                if refused:
                    self._drop(refused, "the outbox is full")
                self._saved_some.set()
        finally:
            self._all_saved = True
            self._saved_some.set()

    def _next_batch(self) -> list[bytes]:
        """Wait for lines; none: this was closed, and everything is saved."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._queue or self._closing.is_set())
            return [self._queue.popleft() for _ in range(min(len(self._queue), _batch_max))]

    def _send(self) -> None:
        failures = 0
        try:
            while time.monotonic() < self._deadline:
                self._saved_some.clear()
                finishing = self._all_saved  # Read before the head: what is saved after this is seen next time.
                line = self._outbox.head()
                if line is None:
                    if finishing:
                        return
                    self._saved_some.wait(_idle_s)
                elif self._settle(line, answer := self._post(line)):
                    failures = 0
                else:
                    failures += 1
                    if failures == 1:
                        logger.warning("The telemetry endpoint is away: %s %s", answer.status or "", answer.text)
                    if self._closing.is_set():
                        return
                    self._closing.wait(self._backoff.delay_s(failures, answer.retry_after_s))
        finally:
            self._endpoint.close()
            self._outbox.release()

    def _post(self, line: bytes) -> Answer:
        try:
            ids = _ids.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return Answer(422, f"The line in the outbox is no record: {error}")
        trace = f"00-{ids.trace_id}-{ids.span_id}-01"
        return self._endpoint.post(line, {"Idempotency-Key": ids.event_id, "traceparent": trace})

    def _settle(self, line: bytes, answer: Answer) -> bool:
        """Whether the line is done with: taken by the endpoint, or refused by it for good."""
        if answer.accepted:
            self.delivered += 1
        elif answer.refused:
            self.rejected += 1
            if not self._outbox.set_aside(line, f"{answer.status} {answer.text}".strip()):
                logger.error("A refused telemetry record could not be set aside: %s", line[:500])
        else:
            return False
        self._outbox.settle(line)
        return True

    def _drop(self, count: int, why: str) -> None:
        with self._arrived:
            first, self.dropped = not self.dropped, self.dropped + count
        if first:
            logger.warning("Telemetry records are dropped: %s", why)


_Id = Annotated[str, msgspec.Meta(pattern="^[!-~]{1,128}$")]


class _Ids(msgspec.Struct):
    """What a record's headers are made of: text that a header can hold."""

    event_id: _Id
    trace_id: _Id
    span_id: _Id


_ids = msgspec.json.Decoder(_Ids)
