"""A proxy on loopback that spoils chosen requests to DynamoDB: real answers of the service, real lost connections."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

Fault = Callable[[str, dict[str, Any]], str | None]
"""Given an operation and its request: None lets it through, `drop` does it and loses the answer, anything else is the
code of the error that is answered, and it is not done."""


class Proxy:
    def __init__(self) -> None:
        self.fault: Fault = lambda operation, request: None
        self.seen: list[str] = []
        """Every operation that was asked for."""
        self.endpoint = ""


def times(count: int, operation: str, fault: str) -> Fault:
    """The first so many requests of one operation go wrong."""
    left = [count]

    def decide(asked: str, request: dict[str, Any]) -> str | None:
        if asked != operation or not left[0]:
            return None
        left[0] -= 1
        return fault

    return decide


@contextmanager
def proxy(endpoint: str) -> Iterator[Proxy]:
    made = Proxy()
    target = urlsplit(endpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            operation = self.headers["X-Amz-Target"].rpartition(".")[2]
            made.seen.append(operation)
            fault = made.fault(operation, json.loads(body))
            if fault not in (None, "drop"):
                self._answer(400, _error(str(fault)))
                return
            connection = HTTPConnection(str(target.hostname), target.port)
            connection.request("POST", "/", body, dict(self.headers))
            answer = connection.getresponse()
            told = answer.read()
            connection.close()
            if fault == "drop":
                self.close_connection = True
                return
            self._answer(answer.status, told)

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever)
    thread.start()
    made.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _error(code: str) -> bytes:
    answer: dict[str, Any] = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": f"{code} by the proxy"}
    if code == "TransactionConflict":
        answer["__type"] = "com.amazonaws.dynamodb.v20120810#TransactionCanceledException"
        answer["CancellationReasons"] = [{"Code": "None"}, {"Code": code, "Message": "another transaction"}]
    return json.dumps(answer).encode()
