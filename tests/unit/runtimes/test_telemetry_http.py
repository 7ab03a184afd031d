"""Telemetry over HTTP against a real server: in order, at least once, and nothing of it ever reaches the run."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path, PurePath
from typing import Any

import pytest
from tests.unit.runtimes.loopback import answer, serving

from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.models.rundir import RunEvent
from runstate.runtimes.telemetry import Backoff, HttpTelemetry, from_url

Handler = Callable[[BaseHTTPRequestHandler, int], None]
trace, span = "a" * 32, "b" * 16
quick = Backoff(first_s=0.001, longest_s=0.01)


def event(n: int, kind: str = "WORK_ITEM_STARTED") -> RunEvent:
    return RunEvent(
        event_id=f"e-{n}",
        run_id="r-1",
        ts="2026-11-15T09:30:00.000Z",
        type=kind,
        payload={"work_item_id": f"r-1:w:1:{n}"},
        trace_id=trace,
        span_id=span,
    )


def ids(numbers: range) -> list[str]:
    return [f"e-{n}" for n in numbers]


class Receiver:
    """A real endpoint: keeps what it accepts, in order; `plan` answers the n-th request instead, if it is there."""

    url: str

    def __init__(self) -> None:
        self.plan: Handler | None = None
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.accepted: list[tuple[str, dict[str, Any]]] = []
        self._changed = threading.Condition()

    def take(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        with self._changed:
            number = len(self.requests)
            self.requests.append((dict(request.headers), body))
            self._changed.notify_all()
        if self.plan is not None:
            self.plan(request, number)
        else:
            self.accept(request)

    def accept(self, request: BaseHTTPRequestHandler) -> None:
        """Keep the newest record and say so."""
        with self._changed:
            headers, body = self.requests[-1]
            self.accepted.append((headers["Idempotency-Key"], json.loads(body)))
            self._changed.notify_all()
        answer(request, 202)

    def keys(self) -> list[str]:
        return [key for key, _ in self.accepted]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 10)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    with serving(started.take) as url:
        started.url = f"{url}records?x=1"
        yield started


@contextmanager
def nobody() -> Iterator[str]:
    """An endpoint that refuses connections: the port is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/"


def telemetry(url: str, outbox: PurePath, **options: Any) -> HttpTelemetry:
    return HttpTelemetry(url, outbox, **({"backoff": quick} | options))


def emit(to: HttpTelemetry, numbers: range) -> None:
    for n in numbers:
        to.emit(event(n))


def drain(receiver: Receiver, outbox: PurePath) -> None:
    """What a later process does: open the outbox, and nothing else."""
    with telemetry(receiver.url, outbox):
        pass


# --- delivery --------------------------------------------------------------------------------------------------------


def test_records_arrive_in_order(receiver: Receiver, tmp_path: Path) -> None:
    with telemetry(receiver.url, tmp_path / "outbox") as sender:
        emit(sender, range(100))
    assert receiver.keys() == ids(range(100))
    assert (sender.delivered, sender.saved, sender.dropped) == (100, 100, 0)
    assert (tmp_path / "outbox").read_bytes() == b""


def test_a_post_carries_its_ids(receiver: Receiver, tmp_path: Path) -> None:
    with telemetry(receiver.url, tmp_path / "outbox", headers={"Authorization": "Bearer x"}) as sender:
        emit(sender, range(1))
    headers, body = receiver.requests[0]
    assert json.loads(body)["event_id"] == headers["Idempotency-Key"] == "e-0"
    assert headers["traceparent"] == f"00-{trace}-{span}-01"
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Bearer x"


def test_events_without_a_record_are_not_sent(receiver: Receiver, tmp_path: Path) -> None:
    with telemetry(receiver.url, tmp_path / "outbox") as sender:
        sender.emit(event(1, "ARTIFACT_WRITTEN"))
    assert receiver.requests == []


def test_what_an_absent_endpoint_missed_comes_later_unchanged(receiver: Receiver, tmp_path: Path) -> None:
    with telemetry(receiver.url, tmp_path / "there") as sender:
        emit(sender, range(20))
    expected, receiver.accepted = receiver.accepted, []
    with nobody() as url, telemetry(url, tmp_path / "away") as sender:
        emit(sender, range(20))
    assert sender.delivered == 0
    drain(receiver, tmp_path / "away")
    assert receiver.accepted == expected


@pytest.mark.parametrize("status", [500, 503, 408, 429, 302])
def test_a_failure_that_may_pass_is_tried_again(receiver: Receiver, tmp_path: Path, status: int) -> None:
    def fail_twice(request: BaseHTTPRequestHandler, number: int) -> None:
        if number < 2:
            answer(request, status, Location=receiver.url)
        else:
            receiver.accept(request)

    receiver.plan = fail_twice
    with telemetry(receiver.url, tmp_path / "outbox") as sender:
        emit(sender, range(3))
        receiver.wait_for(lambda: len(receiver.accepted) == 3)
    assert [headers["Idempotency-Key"] for headers, _ in receiver.requests] == ["e-0", "e-0", "e-0", "e-1", "e-2"]
    assert not (tmp_path / "outbox.rejected").exists()


def test_a_refused_record_is_set_aside_and_the_next_one_sent(receiver: Receiver, tmp_path: Path) -> None:
    def refuse_the_second(request: BaseHTTPRequestHandler, number: int) -> None:
        if number == 1:
            answer(request, 400, b"bad scope")
        else:
            receiver.accept(request)

    receiver.plan = refuse_the_second
    with telemetry(receiver.url, tmp_path / "outbox") as sender:
        emit(sender, range(3))
    assert receiver.keys() == ["e-0", "e-2"]
    (kept,) = [json.loads(line) for line in (tmp_path / "outbox.rejected").read_text().splitlines()]
    assert kept["reason"] == "400 bad scope"
    assert kept["record"]["event_id"] == "e-1"
    drain(receiver, tmp_path / "outbox")
    assert len(receiver.requests) == 3


def test_a_line_that_is_no_record_is_set_aside(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "outbox").write_bytes(b'no json\n{"event_id":"a\\nb","trace_id":"","span_id":""}\n')
    with telemetry(receiver.url, tmp_path / "outbox") as sender:
        emit(sender, range(1))
    assert receiver.keys() == ["e-0"]
    assert len((tmp_path / "outbox.rejected").read_text().splitlines()) == 2


def test_two_processes_share_an_outbox(receiver: Receiver, tmp_path: Path) -> None:
    with telemetry(receiver.url, tmp_path / "outbox") as one, telemetry(receiver.url, tmp_path / "outbox") as two:
        emit(one, range(50))
        emit(two, range(50, 100))
    drain(receiver, tmp_path / "outbox")
    assert sorted(set(receiver.keys())) == sorted(ids(range(100)))


# --- never failing, never blocking -----------------------------------------------------------------------------------


@pytest.fixture
def hanging(receiver: Receiver) -> Iterator[Receiver]:
    """A server that takes requests and says nothing until the test ends."""
    freed = threading.Event()

    def wait(request: BaseHTTPRequestHandler, number: int) -> None:
        freed.wait(30)
        answer(request, 500)

    receiver.plan = wait
    yield receiver
    freed.set()


def test_a_slow_endpoint_does_not_hold_up_the_run(hanging: Receiver, tmp_path: Path) -> None:
    sender = telemetry(hanging.url, tmp_path / "outbox")
    emit(sender, range(1))
    hanging.wait_for(lambda: len(hanging.requests) == 1)
    begin = time.monotonic()
    emit(sender, range(1, 1000))
    emitted_s = time.monotonic() - begin
    sender.close(timeout_s=0.1)
    assert emitted_s < 0.5
    assert time.monotonic() - begin < 1
    assert (tmp_path / "outbox").read_bytes().count(b'"event_id"') == sender.saved == 1000


def test_a_full_queue_drops_and_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with nobody() as url:
        sender = telemetry(url, tmp_path / "outbox", queue_max=0)
        emit(sender, range(3))
        sender.close()
    assert sender.dropped == 3
    assert caplog.text.count("are dropped") == 1


def test_a_full_outbox_drops_and_counts(tmp_path: Path) -> None:
    with nobody() as url, telemetry(url, tmp_path / "outbox", outbox_bytes_max=1000) as sender:
        emit(sender, range(100))
    assert sender.saved + sender.dropped == 100
    assert 0 < sender.saved < 10
    assert (tmp_path / "outbox").stat().st_size <= 1000


def test_a_full_disk_costs_nothing_but_durability(receiver: Receiver) -> None:
    with telemetry(receiver.url, PurePath("/t/outbox"), disk=SimulatedDisk(capacity_bytes=0)) as sender:
        emit(sender, range(10))
    assert receiver.keys() == ids(range(10))


def test_an_outbox_that_can_not_be_never_raises(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with telemetry(receiver.url, tmp_path / "file" / "outbox") as sender:
        emit(sender, range(10))
    assert receiver.keys() == ids(range(10))


def test_a_hopeless_event_never_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with nobody() as url, telemetry(url, tmp_path / "outbox") as sender:
        sender.emit(None)  # type: ignore[arg-type]
        sender.emit(
            RunEvent(event_id="e", run_id="r", type="RUN_FAILED", payload={"error": object()}, trace_id="", span_id="")
        )
    assert caplog.text.count("could not be told") == 2


def test_after_closing_nothing_raises_and_nothing_is_sent(receiver: Receiver, tmp_path: Path) -> None:
    sender = telemetry(receiver.url, tmp_path / "outbox")
    sender.close()
    sender.emit(event(1))
    sender.close()
    assert receiver.requests == []
    assert sender.dropped == 1


def test_a_url_makes_a_sender(receiver: Receiver, tmp_path: Path) -> None:
    made = from_url(receiver.url, outbox=tmp_path / "outbox")
    made.emit(event(1))
    made.close()
    assert receiver.keys() == ["e-1"]


# --- kills -----------------------------------------------------------------------------------------------------------

_child = """
import sys, time
from pathlib import Path
from runstate.models.rundir import RunEvent
from runstate.runtimes.telemetry import HttpTelemetry

sender = HttpTelemetry(sys.argv[1], Path(sys.argv[2]))
for n in range(50):
    sender.emit(RunEvent(event_id=f"e-{n}", run_id="r-1", ts="2026-11-15T09:30:00Z", type="WORK_ITEM_STARTED",
                         payload={"work_item_id": str(n)}, trace_id="a" * 32, span_id="b" * 16))
while sender.saved < 50:
    time.sleep(0.001)
print("saved", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [0, 1, 7, 49])
def test_a_killed_sender_loses_nothing(receiver: Receiver, tmp_path: Path, kill_at: int) -> None:
    killed = threading.Event()

    def hold(request: BaseHTTPRequestHandler, number: int) -> None:
        if number == kill_at:
            killed.wait(30)  # In the middle of a delivery: sent, and not answered.
            request.close_connection = True
        else:
            receiver.accept(request)

    receiver.plan = hold
    command = [sys.executable, "-c", _child, receiver.url, str(tmp_path / "outbox")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "saved\n"
        receiver.wait_for(lambda: len(receiver.requests) > kill_at)
        child.send_signal(signal.SIGKILL)
    killed.set()
    receiver.plan = None
    drain(receiver, tmp_path / "outbox")
    assert receiver.keys() == ids(range(50))
    assert [headers["Idempotency-Key"] for headers, _ in receiver.requests].count(f"e-{kill_at}") == 2
