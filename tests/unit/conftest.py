"""What many unit tests begin with: events, stored lines, histories, and stores on every log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from tests.log_urls import take_no_events, url_at

import runstate
from runstate.contracts import EngineStore
from runstate.logs.registry import installed_schemes
from runstate.models.engine import CanonicalEngineEvent, RunEventRecord, RunEventWrite, idempotency_key
from runstate.models.engine.events import members_json
from runstate.models.model import stable_uuid

root = Path(__file__).parents[2]


def make_write(
    event_type: str = "RunStarted", step: str | None = None, attempt: int = 1, run: str = "r-1", **fields: Any
) -> RunEventWrite:
    """A valid event of contract v2; its key is the one that its fields give, its id comes from that key."""
    members: dict[str, Any] = {
        "event_type": event_type,
        "emitted_at": "2026-11-15T09:30:00.000Z",
        "run_id": run,
        "tenant_id": "acme",
        "project_id": "sales",
        "environment_id": "prod",
        "plan_id": "nightly",
        "plan_version": "7",
        "engine_attempt_id": 1,
        "logical_attempt_id": attempt,
    }
    if step is not None:
        members["step_id"] = step
    members |= fields
    if "idempotency_key" not in members:
        members["idempotency_key"] = idempotency_key(
            run_id=members["run_id"],
            step_id=step,
            logical_attempt_id=members["logical_attempt_id"],
            event_type=members["event_type"],
            plan_id=members["plan_id"],
            plan_version=members["plan_version"],
        )
    members.setdefault("event_id", stable_uuid(members["idempotency_key"]))
    return RunEventWrite(**members)


def make_record(seq: int, event_type: str = "RunStarted", *args: Any, **fields: Any) -> RunEventRecord:
    persisted_at = fields.pop("persisted_at", "2026-11-15T09:30:00.500Z")
    write = make_write(event_type, *args, **fields)
    members = {name: getattr(write, name) for name in RunEventWrite.__struct_fields__}
    return RunEventRecord(run_seq=seq, persisted_at=persisted_at, **members)


def make_v1(event_type: str = "RunStarted", run: str = "r-1", **fields: Any) -> CanonicalEngineEvent:
    """A valid event of contract v1."""
    members: dict[str, Any] = {
        "run_id": run,
        "event_type": event_type,
        "event_data": {},
        "idempotency_key": f"{event_type}-{fields.get('step_id', 'RUN')}-{fields.get('logical_attempt_id', '1')}",
        "emitted_at": "2026-11-15T10:30:00.000+01:00",
    } | fields
    members.setdefault("event_id", stable_uuid(members["idempotency_key"]))
    return CanonicalEngineEvent(**members)


@pytest.fixture(scope="session")
def write() -> Callable[..., RunEventWrite]:
    """`write(event_type, step, attempt, run, **fields)`: an event as a producer of contract v2 sends it."""
    return make_write


@pytest.fixture(scope="session")
def record() -> Callable[..., RunEventRecord]:
    """`record(seq, event_type, step, attempt, run, **fields)`: an event as a store of contract v2 gives it back."""
    return make_record


@pytest.fixture(scope="session")
def v1() -> Callable[..., CanonicalEngineEvent]:
    """`v1(event_type, run, **fields)`: an event of contract v1."""
    return make_v1


@pytest.fixture(scope="session")
def line() -> Callable[..., bytes]:
    """`line(seq, event_type, step, attempt, run, **fields)`: a stored line of contract v2."""
    return lambda *args, **fields: members_json(make_record(*args, **fields))


@pytest.fixture(scope="session")
def line_v1() -> Callable[..., bytes]:
    """`line_v1(seq, event_type, run, **fields)`: a stored line of contract v1."""

    def made(seq: int, *args: Any, **fields: Any) -> bytes:
        return members_json(make_v1(*args, run_seq=seq, persisted_at="2026-11-15T09:30:00.500Z", **fields))

    return made


@pytest.fixture(scope="session")
def schemas() -> Callable[[str], dict[str, Any]]:
    """`schemas("engine.snapshot")`: a schema as it stands in specs/schemas."""

    def read(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((root / f"specs/schemas/{name}.schema.json").read_text())
        return found

    return read


@pytest.fixture(scope="session")
def golden() -> Path:
    return root / "tests/golden"


# --- stores ----------------------------------------------------------------------------------------------


def url_of(scheme: str, directory: Path) -> str:
    return url_at(scheme, directory / "log")


@pytest.fixture(params=[scheme for scheme in installed_schemes() if scheme not in take_no_events])
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a new log, once for each kind of log that is installed."""
    return url_of(request.param, tmp_path)


@pytest.fixture(params=["memory", "sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., EngineStore]]:
    """`open_store(**options)`: a store over a new log, in memory and in SQLite; closed when the test ends."""
    with ExitStack() as opened:

        def opener(**options: Any) -> EngineStore:
            store: EngineStore = runstate.open(url_of(request.param, tmp_path), "engine", **options)
            return opened.enter_context(store)

        yield opener


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`set_clock(time)`: the append authority's clock stands at that time, whatever the log."""
    shown = ["2026-11-15T09:30:00.000Z"]
    monkeypatch.setattr("runstate.logs.memory.log.now", lambda: shown[0])
    monkeypatch.setattr("runstate.logs.sqlite.writer.now", lambda: shown[0])

    def set_to(at: str) -> None:
        shown[0] = at

    return set_to


# --- histories -------------------------------------------------------------------------------------------

_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none() | st.booleans() | _numbers | st.sampled_from([1e17, 1e21, 1e-7, 0.1, 1.0, -0.0]) | _names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=6,
)
_payloads: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {},
        {"artifacts": []},
        {"artifacts": "no list"},
        {"artifacts": ["a", {"b": [1, None, True], "a": "é"}]},
        {"artifacts": [0.5, 1e17, 2.0**68, -0.0, 1.0, 2**53 - 1]},
        {"artifacts": [{"\ufb33": 1e21, "\U0001f600": 1e-7, "\r": 0.1}]},
        {"artifacts": ["\u2028\0\x7f"], "error": {"code": "E", "message": "m", "retryable": True}},
        {"artifacts": {"not": "a list"}, "error": "no object"},
        {"error": {"code": 7, "message": None, "retryable": "yes"}},
        {"error": {}, "other": [[]]},
        {"artifactRefs": ["a", 0.5], "reason": "not due", "engineRunRef": {"workflowId": "w", "n": 1e17}},
        {"artifactRefs": "no list", "reason": 7, "engineRunRef": None},
    ]
)
_times = st.sampled_from(
    [
        "2026-11-15T09:30:00Z",
        "2026-11-15T09:30:01.250Z",
        "2026-11-15T09:29:00+00:00",
        "2026-11-15T09:31:00.123456789Z",
        "2026-11-15t09:30:02.5z",
    ]
)
_run_types = ["RunQueued", "RunApproved", "RunStarted", "RunPaused", "RunResumed", "RunCompleted"]
_run_types += ["RunFailed", "RunCancelled", "SignalAccepted", "SignalRejected", "StepCorrected"]
_step_types = ["StepStarted", "StepStarted", "StepCompleted", "StepFailed", "StepSkipped"]


@st.composite
def _history(draw: st.DrawFn) -> list[bytes]:
    lines, seq = [], 0
    for _ in range(draw(st.integers(0, 12))):
        seq += draw(st.sampled_from([1, 1, 1, 2, 5]))
        fields: dict[str, Any] = {"emitted_at": draw(_times), "event_id": stable_uuid(str(seq))}
        attempt = draw(st.integers(1, 3))
        step = draw(st.sampled_from(["extract", "load", "préparer"]) | st.none())
        event_type = draw(st.sampled_from(_run_types if step is None else _step_types))
        payload = draw(_payloads)
        if draw(st.integers(0, 3)) == 0:
            old = {"logical_attempt_id": str(attempt)} | ({} if step is None else {"step_id": step}) | fields
            made = make_v1(event_type, event_data=payload, **old)
            made = msgspec.structs.replace(made, run_seq=seq, persisted_at="2026-11-15T09:30:00.500Z")
            lines.append(members_json(made))
        else:
            lines.append(members_json(make_record(seq, event_type, step, attempt, payload=payload, **fields)))
    return lines


@pytest.fixture(scope="session")
def histories() -> st.SearchStrategy[list[bytes]]:
    """Stored lines of one run: possible and impossible, of both contracts, with gaps and odd payloads."""
    return _history()


@pytest.fixture(scope="session")
def json_values() -> st.SearchStrategy[Any]:
    """Any JSON value that RFC 7493 allows."""
    return _json
