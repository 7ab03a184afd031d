"""The endpoint: plain HTTP only, answers of bounded size and time, and waits that grow between tries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from tests.unit.runtimes.loopback import Reply, answer, serving

from runstate.errors import InvalidUrl
from runstate.runtimes.telemetry import Backoff, HttpTelemetry
from runstate.runtimes.telemetry.endpoint import Endpoint, answer_bytes_max

Serve = Callable[[Reply], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """`serve(reply)`: the URL of a server that answers so, until the test ends."""
    with ExitStack() as started:
        yield lambda reply: started.enter_context(serving(reply))


def answering(status: int, body: bytes = b"", **headers: str) -> Reply:
    return lambda request, _: answer(request, status, body, **headers)


@pytest.mark.parametrize(
    "url",
    ["ftp://host/", "file:///etc/passwd", "host:80", "http://", "http://h:99999/", "http://u:p@h/", "http://h/a b", ""],
)
def test_only_plain_http_urls_are_taken(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidUrl):
        HttpTelemetry(url, tmp_path / "outbox")
    assert list(tmp_path.iterdir()) == []


def test_a_header_that_would_smuggle_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidUrl, match="X-A"):
        HttpTelemetry("http://localhost/", tmp_path / "outbox", headers={"X-A": "1\r\nX-B: 2"})


def test_a_connection_that_the_server_ended_is_made_anew(serve: Serve) -> None:
    def hang_up(request: BaseHTTPRequestHandler, _: bytes) -> None:
        answer(request, 202)
        request.close_connection = True  # Without a word about it in the answer.

    endpoint = Endpoint(serve(hang_up))
    assert [endpoint.post(b"{}", {}).status for _ in range(3)] == [202, 202, 202]
    endpoint.close()


def test_a_redirect_is_not_followed(serve: Serve) -> None:
    posts: list[bytes] = []

    def redirect(request: BaseHTTPRequestHandler, body: bytes) -> None:
        posts.append(body)
        answer(request, 307, Location="file:///etc/passwd")

    endpoint = Endpoint(serve(redirect))
    answered = endpoint.post(b"{}", {})
    assert (answered.status, answered.accepted, answered.refused) == (307, False, False)
    assert posts == [b"{}"]
    endpoint.close()


def test_a_long_answer_is_cut_off_and_spoils_no_other(serve: Serve) -> None:
    endpoint = Endpoint(serve(answering(200, b"x" * (4 * answer_bytes_max))))
    for _ in range(3):
        answered = endpoint.post(b"{}", {})
        assert (answered.status, len(answered.text)) == (200, 500)
        assert endpoint._connection is None  # What was not read must not be taken for the next answer.


def test_an_answer_that_quotes_the_request_shows_no_token(serve: Serve) -> None:
    endpoint = Endpoint(f"{serve(lambda request, _: answer(request, 400, request.path.encode()))}in?token=geheim")
    text = endpoint.post(b"{}", {}).text
    endpoint.close()
    assert text == "/in?token=…"


def test_an_answer_that_trickles_ends_at_the_deadline(serve: Serve) -> None:
    ended = threading.Event()

    def trickle(request: BaseHTTPRequestHandler, _: bytes) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not ended.wait(0.02):
            request.wfile.write(b"y")

    endpoint = Endpoint(serve(trickle), timeout_s=0.2)
    begin = time.monotonic()
    assert endpoint.post(b"{}", {}).status == 0
    assert 0.15 < time.monotonic() - begin < 0.9
    ended.set()


def test_a_server_that_says_nothing_is_left_at_the_deadline(serve: Serve) -> None:
    ended = threading.Event()

    def wait(request: BaseHTTPRequestHandler, _: bytes) -> None:
        ended.wait(30)

    endpoint = Endpoint(serve(wait), timeout_s=0.1)
    assert "Timeout" in endpoint.post(b"{}", {}).text
    ended.set()


@pytest.mark.parametrize(("value", "asked_s"), [("7", 7.0), ("soon", 0.0), ("-1", 0.0), ("9" * 50, 0.0)])
def test_the_server_may_ask_for_a_wait(serve: Serve, value: str, asked_s: float) -> None:
    endpoint = Endpoint(serve(answering(503, Retry_After=value)))
    assert endpoint.post(b"{}", {}).retry_after_s == asked_s
    endpoint.close()


def test_waits_grow_and_have_a_bound() -> None:
    waits = [Backoff(first_s=1, longest_s=60).delay_s(failures) for failures in (1, 2, 3, 10, 10_000)]
    for wait, most in zip(waits, (1, 2, 4, 60, 60), strict=True):
        assert most / 2 <= wait <= most
    assert Backoff(first_s=1, longest_s=60).delay_s(1, asked_s=30) == 30
    assert Backoff(first_s=1, longest_s=60).delay_s(1, asked_s=9999) == 60
