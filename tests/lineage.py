"""OpenLineage for tests: a receiver on loopback, and a check of events against the types of OpenLineage's client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attr
from openlineage.client import event_v2, facet_v2
from openlineage.client.generated import base


def _facet_types(of: type[base.BaseFacet]) -> Iterator[type[base.BaseFacet]]:
    for each in of.__subclasses__():
        yield each
        yield from _facet_types(each)


def check_event(event: dict[str, Any]) -> dict[str, Any]:
    """Make the event from the client's own types: each member must be known, and pass its validator."""
    assert facet_v2  # Imported, so that all types of facets are known.
    assert event["schemaURL"] == event_v2.RunEvent._get_schema()
    run, job = event["run"], event["job"]
    made = event_v2.RunEvent(
        eventTime=event["eventTime"],
        eventType=event_v2.RunState(event["eventType"]),
        producer=event["producer"],
        run=event_v2.Run(**{**run, "facets": _facets(run["facets"])}),
        job=event_v2.Job(**{**job, "facets": _facets(job["facets"])}),
        inputs=[event_v2.InputDataset(**_dataset(each, "inputFacets")) for each in event["inputs"]],
        outputs=[event_v2.OutputDataset(**_dataset(each, "outputFacets")) for each in event["outputs"]],
    )
    assert made.run.runId == run["runId"]
    assert event.keys() <= {each.name for each in attr.fields(base.RunEvent)}
    return event


def _dataset(given: dict[str, Any], own: str) -> dict[str, Any]:
    return {**given, "facets": _facets(given["facets"]), own: _facets(given[own])}


def _facets(given: dict[str, dict[str, Any]]) -> dict[str, Any]:
    types = {each._get_schema(): each for each in _facet_types(base.BaseFacet)}
    found = {}
    for name, facet in given.items():
        members = {key: value for key, value in facet.items() if not key.startswith("_")}
        found[name] = types[facet["_schemaURL"]](**members, producer=facet["_producer"])
    return found


class Receiver:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.url = ""


@contextmanager
def receiving(status: int = 201) -> Iterator[Receiver]:
    """An HTTP server that takes events, or answers them with another status."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            found.headers.append(dict(self.headers))
            found.paths.append(self.path)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """The test prints what matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
