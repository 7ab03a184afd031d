"""A DynamoDB on loopback: moto's server in a process of its own, or what RUNSTATE_TEST_DYNAMODB_ENDPOINT names.

The server is started by whoever asks first, once per process, and ends with it. Every log gets a table of its own.

Moto keeps everything in memory, and its transactions are not atomic under concurrent requests: it copies the table,
writes, and puts the copy back if a condition fails, together with what others wrote meanwhile. So this process serves
one request at a time. That copy is also deep, a query sorts the whole table, and an answer tries ten ways to read each
value: here the copy shares the items, an update replaces the item that it changes, a query looks at its own partition,
and text is answered as it is. All of this is about the stand-in, not about the log.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import subprocess
import sys
from collections import defaultdict
from copy import copy, deepcopy
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import Any

region = "eu-central-1"
_credentials = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


class MotoServer:
    """A server process. It ends with `stop`, and with the process that started it, however that ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().decode().strip()
        if not port:
            raise RuntimeError("moto did not start; its stderr says why")
        self.endpoint = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        self._process.communicate()  # The end of its stdin is the end of it.


@cache
def server_endpoint() -> str:
    """The server that all tests of this process share."""
    if given := os.environ.get("RUNSTATE_TEST_DYNAMODB_ENDPOINT"):
        return given
    for name, value in _credentials.items():
        os.environ.setdefault(name, value)
    server = MotoServer()
    atexit.register(server.stop)
    return server.endpoint


def url_at(place: Path) -> str:
    """The URL of a log of its own for each path, as if the path were where it is."""
    return url_on(server_endpoint(), place)


def url_on(endpoint: str, place: Path) -> str:
    return f"dynamodb://test-{hashlib.sha256(str(place).encode()).hexdigest()[:32]}?region={region}&endpoint={endpoint}"


def _serve() -> None:
    from moto.core.serialize import BaseJSONSerializer
    from moto.dynamodb.models import DynamoDBBackend
    from moto.dynamodb.models.table import Table
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # Connections are kept, as DynamoDB keeps them.
        disable_nagle_algorithm = True  # Otherwise each answer on a kept connection takes 40 ms.

        def log(self, *_: object) -> None:
            """Say nothing: a test that fails says what it asked for."""

    application = DomainDispatcherApplication(create_backend_app)
    turn = Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> Any:
        with turn:
            return list(application(environ, start_response))

    _make_faster(DynamoDBBackend, Table, BaseJSONSerializer)
    server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def _make_faster(backend: Any, table: Any, serializer: Any) -> None:
    table.__deepcopy__ = _shallow
    update, query, structure = backend.update_item, table.query, serializer._serialize_type_structure

    def update_a_copy(self: Any, table_name: str, key: dict[str, dict[str, str]], *args: Any, **named: Any) -> Any:
        item = self.get_item(table_name, key)
        if item is not None:
            self.get_table(table_name).items[item.hash_key][item.range_key] = deepcopy(item)
        return update(self, table_name, key, *args, **named)

    def query_a_partition(self: Any, hash_key: Any, *args: Any, **named: Any) -> Any:
        whole, self.items = self.items, defaultdict(dict, {hash_key: self.items.get(hash_key, {})})
        try:
            return query(self, hash_key, *args, **named)
        finally:
            self.items = whole

    def text_at_once(self: Any, serialized: Any, value: Any, shape: Any, key: str) -> None:
        if shape.name == "AttributeValue" and isinstance(value, dict) and value.keys() & {"S", "N"}:
            serialized[key] = value
        else:
            structure(self, serialized, value, shape, key)

    backend.update_item, table.query = update_a_copy, query_a_partition
    serializer._serialize_type_structure = text_at_once


def _shallow(self: Any, memo: object) -> Any:
    twin = copy(self)
    twin.items = defaultdict(dict, {pk: dict(items) for pk, items in self.items.items()})
    return twin


if __name__ == "__main__":
    _serve()
