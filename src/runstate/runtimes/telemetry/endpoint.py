"""One HTTP endpoint to post JSON to: a deadline for each exchange, bounded answers, redirects never followed."""

from __future__ import annotations

import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, urlsplit

import msgspec

from runstate.errors import InvalidUrl, redact

answer_bytes_max = 64 * 1024
"""What is read of an answer. More of it ends the connection."""

_url = re.compile(r"[!-~]{1,2000}")
_header_name = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_header_value = re.compile(r"[\t -~]*")


class Answer(msgspec.Struct, frozen=True):
    """What became of a post. Status 0: no answer came, and nobody knows whether the post arrived."""

    status: int
    text: str
    """What the endpoint said, or why it said nothing; without secrets, since it may quote what it was sent."""
    retry_after_s: float = 0.0

    @property
    def accepted(self) -> bool:
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Whether the endpoint will never take this body, however often it is sent."""
        return 400 <= self.status < 500 and self.status not in (408, 429)


class Endpoint:
    """Posts to one URL over one connection that is kept open; used by one thread at a time."""

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 10.0) -> None:
        """
        Raises:
            InvalidUrl: the URL is not http or https with a host, or a header could not be sent.
        """
        parts = _checked(url)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Content-Type": "application/json"} | dict(headers or {})
        for name, value in self._headers.items():
            if not _header_name.fullmatch(name) or not _header_value.fullmatch(value):
                raise InvalidUrl(f"The header {name[:80]!r} of the telemetry endpoint can't be sent", header=name[:80])
        self._timeout_s = timeout_s
        self._connect = _connector(parts, timeout_s)
        self._connection: http.client.HTTPConnection | None = None

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send one body. Every failure is an answer with status 0; nothing about the network raises."""
        kept_open = self._connection is not None
        try:
            return self._exchange(body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            if not kept_open or isinstance(error, TimeoutError):
                return _no_answer(error)
        # A server may end an idle connection whenever it likes; that says nothing about the next one.
        try:
            return self._exchange(body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            return _no_answer(error)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _exchange(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        deadline = time.monotonic() + self._timeout_s
        connection = self._connection = self._connection or self._connect()
        connection.response_class = lambda sock, **options: _Response(sock, deadline, **options)  # type: ignore[assignment]
        if connection.sock is not None:
            connection.sock.settimeout(self._timeout_s)
        connection.request("POST", self._target, body, {**self._headers, **headers})
        with connection.getresponse() as response:
            data = response.read(answer_bytes_max)
            finished = response.isclosed() or not response.read(1)
            text = redact(data[:500].decode(errors="replace"))
            answer = Answer(response.status, text, _retry_after_s(response))
        if not finished:
            self.close()
        return answer


def _no_answer(error: Exception) -> Answer:
    return Answer(0, redact(f"{type(error).__name__}: {error}"[:500]))


class _Response(http.client.HTTPResponse):
    """An answer that must be complete by its deadline: a socket's own timeout starts anew with every byte."""

    def __init__(self, sock: socket.socket, deadline: float, debuglevel: int = 0, method: str | None = None) -> None:
        super().__init__(sock, debuglevel, method)
        self.fp.close()
        self.fp = io.BufferedReader(_Reader(sock, deadline))


class _Reader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline
        self._raw = sock.makefile("rb", buffering=0)  # Keeps the socket open until the answer has been read.

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int | None:  # type: ignore[override]
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer was not complete in time")
        self._sock.settimeout(left_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        # Without its cause, which quotes parts of the URL.
        raise InvalidUrl("The telemetry endpoint cannot be read: write http://HOST/PATH or https://HOST/PATH") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidUrl("The telemetry endpoint must not hold a password; give it as a header")
    if not usable or not _url.fullmatch(url):
        raise InvalidUrl(
            f"A telemetry endpoint is http://HOST/PATH or https://HOST/PATH, not {url[:80]!r}", url=url[:200]
        )
    return parts


def _connector(parts: SplitResult, timeout_s: float) -> Callable[[], http.client.HTTPConnection]:
    host = parts.hostname or ""
    if parts.scheme == "http":
        return lambda: http.client.HTTPConnection(host, parts.port or 80, timeout=timeout_s)
    context = ssl.create_default_context()
    return lambda: http.client.HTTPSConnection(host, parts.port or 443, timeout=timeout_s, context=context)


def _retry_after_s(response: http.client.HTTPResponse) -> float:
    value = response.headers.get("Retry-After", "")
    return float(value) if re.fullmatch(r"[0-9]{1,6}", value) else 0.0
