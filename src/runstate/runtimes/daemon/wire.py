"""What is said over a daemon's socket: one JSON object a line, a request and then its answer.

A request names what is asked by `op`. An answer is `{"ok":…}`, or `{"error":{…}}` with the code, the words, whether a
retry can help, and the details of an error as `errors.py` has them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from runstate.errors import RunstateError
from runstate.logs.log import Record
from runstate.models.daemon.events import default_daemon

request_bytes_max = 2 * 1024 * 1024
"""A longer request is refused, and its connection closed: nobody can fill the daemon's memory."""


class RequestRefused(RunstateError):
    """The request is none that a daemon understands."""

    code = "daemon.request_refused"


class DaemonAway(RunstateError):
    """The daemon has ended the connection; what was asked last may or may not have been done."""

    code = "daemon.away"
    retryable = True


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    """What can be asked."""


class Emit(Request, frozen=True, kw_only=True, tag="emit"):
    event: msgspec.Raw
    durable: bool = True


class Push(Request, frozen=True, kw_only=True, tag="push"):
    queue: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    item_id: str = ""
    namespace: str = ""
    event_id: str = ""


class StartWorker(Request, frozen=True, kw_only=True, tag="start_worker"):
    """Without `lease_s`, the worker is alive as long as the connection is."""

    name: str
    queue: str
    concurrency: int = 1
    namespace: str = ""
    lease_s: float | None = None
    project_root: str = ""
    runbook_hash: str = ""


class Take(Request, frozen=True, kw_only=True, tag="take"):
    worker: str
    queue: str = ""
    namespace: str = ""
    wait_s: float = 0.0
    pipeline_id: str = ""


class Complete(Request, frozen=True, kw_only=True, tag="complete"):
    queue: str
    item_id: str
    worker: str = ""
    namespace: str = ""


class Fail(Request, frozen=True, kw_only=True, tag="fail"):
    queue: str
    item_id: str
    error: str
    worker: str = ""
    namespace: str = ""


class Retry(Request, frozen=True, kw_only=True, tag="retry"):
    queue: str
    item_id: str
    namespace: str = ""


class Heartbeat(Request, frozen=True, kw_only=True, tag="heartbeat"):
    worker: str
    namespace: str = ""


class StopWorker(Request, frozen=True, kw_only=True, tag="stop_worker"):
    worker: str
    namespace: str = ""
    error: str | None = None


class Items(Request, frozen=True, kw_only=True, tag="items"):
    queue: str
    namespace: str = ""
    status: str = ""
    limit: int = 1000


class Stats(Request, frozen=True, kw_only=True, tag="stats"):
    pass


class State(Request, frozen=True, kw_only=True, tag="state"):
    pass


class Seq(Request, frozen=True, kw_only=True, tag="seq"):
    pass


class Events(Request, frozen=True, kw_only=True, tag="events"):
    after_seq: int = 0
    limit: int = 1000


class Checkpoint(Request, frozen=True, kw_only=True, tag="checkpoint"):
    pass


class Compact(Request, frozen=True, kw_only=True, tag="compact"):
    pass


AnyRequest = (
    Emit
    | Push
    | StartWorker
    | Take
    | Complete
    | Fail
    | Retry
    | Heartbeat
    | StopWorker
    | Items
    | Stats
    | State
    | Seq
    | Events
    | Checkpoint
    | Compact
)


class Answer(msgspec.Struct):
    ok: msgspec.Raw = msgspec.Raw(b"null")
    error: dict[str, Any] | None = None


class Event(msgspec.Struct, frozen=True):
    """An event as the log holds it, told over the socket."""

    seq: int
    event_id: str
    type: str
    persisted_at: str
    event: msgspec.Raw


def told(record: Record) -> Event:
    """A record as it is told."""
    return Event(record.seq, record.event_id, record.type, record.persisted_at, msgspec.Raw(record.body))


def read_request(line: bytes) -> AnyRequest:
    """
    Raises:
        RequestRefused: what is wrong with it.
    """
    try:
        found: AnyRequest = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RequestRefused(f"The request cannot be understood: {error}") from error
    return found


def error_from(data: dict[str, Any]) -> RunstateError:
    """The error that an answer tells of, as the class that has its code."""
    found = _classes(RunstateError).get(str(data.get("code")), RunstateError)
    details = data.get("details")
    return found(str(data.get("message")), **(details if isinstance(details, dict) else {}))


def socket_name(name: str = default_daemon) -> str:
    """What the socket of a daemon is called in its directory."""
    return f".{name}.sock"


def _classes(kind: type[RunstateError]) -> dict[str, type[RunstateError]]:
    found = {kind.code: kind}
    for each in kind.__subclasses__():
        found |= _classes(each)
    return found


_decoder = msgspec.json.Decoder(AnyRequest)
