"""OpenLineage events about work items: what they hold, where they go, and that they never hold a run up."""

from __future__ import annotations

import builtins
import json
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.lineage import check_event, receiving

from runstate.adapters.openlineage import OpenLineageTelemetry, open_client
from runstate.errors import InvalidUrl, LogFailed, Unsupported
from runstate.models.rundir.events import RunEvent
from runstate.runtimes.telemetry.datasets import Dataset


class Shop:
    """The datasets of a graph with the worker `count`."""

    def __init__(self, rows: int | None = 7) -> None:
        self.rows, self.starts = rows, list[str]()

    def start(self, worker: str, scope: str) -> None:
        self.starts.append(f"{worker} {scope}")

    def reads(self, worker: str, scope: str) -> list[Dataset]:
        return [Dataset("postgres://db:5432", "shop.runstate.events", "postgresql://db/shop")]

    def writes(self, worker: str, scope: str) -> list[Dataset]:
        return [Dataset("file", "/fleet/events", "file:///fleet/events")]

    def written(self, worker: str, scope: str) -> list[Dataset]:
        if self.rows is None:
            raise OSError("the table is gone")
        return [Dataset("file", "/fleet/events", "file:///fleet/events", "3", self.rows, 512, 1)]


def event(kind: str, number: int = 1, **payload: Any) -> RunEvent:
    ids = {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"}
    known = {"work_item_id": f"r:count:{number}:engine", **payload}
    if kind == "QUEUED":
        known |= {"worker": "count", "scope_key": "engine", "attempt": number}
    ts = f"2026-11-15T09:30:0{number}.000Z"
    return RunEvent(event_id=f"{kind}-{number}", run_id="r", ts=ts, type=f"WORK_ITEM_{kind}", payload=known, **ids)


def lines(path: Path) -> list[dict[str, Any]]:
    return [check_event(json.loads(line)) for line in path.read_text().split("\n")[:-1]]


def tell(target: str, *events: RunEvent, recalled: tuple[RunEvent, ...] = (), shop: Shop | None = None) -> list[str]:
    """What was warned of."""
    warnings: list[str] = []
    telling = OpenLineageTelemetry(open_client(target), job="fleet", datasets=shop or Shop(), warn=warnings.append)
    telling.recall(recalled)
    for each in events:
        telling.emit(each)
    telling.close()
    return warnings


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:

    for name in list(os.environ):
        if name.startswith("OPENLINEAGE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


finished: dict[str, Any] = {"status": "finished", "error": None}


def test_a_work_item_is_a_start_and_a_complete_with_the_rows_that_it_wrote(tmp_path: Path) -> None:
    path, shop = tmp_path / "lineage.ndjson", Shop()
    assert tell(str(path), event("QUEUED"), event("STARTED"), event("FINISHED", **finished), shop=shop) == []
    start, complete = lines(path)
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert shop.starts == ["count engine"]
    for each in (start, complete):
        assert (each["job"]["namespace"], each["job"]["name"]) == ("runstate", "fleet.count.engine")
        assert each["inputs"][0]["facets"]["dataSource"]["uri"] == "postgresql://db/shop"
        assert (each["outputs"][0]["namespace"], each["outputs"][0]["name"]) == ("file", "/fleet/events")
    assert start["outputs"][0]["outputFacets"] == {}
    counts = complete["outputs"][0]["outputFacets"]["outputStatistics"]
    assert (counts["rowCount"], counts["size"], counts["fileCount"]) == (7, 512, 1)
    assert complete["outputs"][0]["facets"]["version"]["datasetVersion"] == "3"
    assert UUID(start["run"]["runId"]).version == 7


def test_the_file_is_for_its_owner_alone_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "lineage.ndjson"
    for _ in range(2):
        tell(str(path), event("QUEUED"), event("STARTED"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(lines(path)) == 2


def test_a_line_that_was_cut_off_does_not_spoil_the_next_event(tmp_path: Path) -> None:
    path = tmp_path / "lineage.ndjson"
    path.write_text('{"eventTime": "20')
    tell(str(path), event("QUEUED"), event("STARTED"))
    torn, whole, end = path.read_text().split("\n")
    assert (torn, end) == ('{"eventTime": "20', "")
    check_event(json.loads(whole))


def test_a_resumed_attempt_has_the_same_run_id_and_the_next_attempt_another(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    tell(str(first), event("QUEUED"), event("STARTED"))
    later = (event("FINISHED", status="failed", error={}), event("QUEUED", 2), event("STARTED", 2))
    tell(str(second), event("STARTED"), *later, recalled=(event("QUEUED"),))
    (before,), (again, failed, other) = lines(first), lines(second)
    assert before["run"]["runId"] == again["run"]["runId"] == failed["run"]["runId"] != other["run"]["runId"]


@pytest.mark.parametrize(
    ("code", "state"), [("PIPELINE_FAILED", "FAIL"), ("CANCELLED", "ABORT")], ids=["failed", "cancelled"]
)
def test_an_end_without_success_says_why_without_secrets(tmp_path: Path, code: str, state: str) -> None:
    path = tmp_path / "lineage.ndjson"
    error = {"code": code, "message": "postgresql://me:hush-1@db/shop is away, password=hush-2"}
    tell(str(path), event("QUEUED"), event("STARTED"), event("FINISHED", status="failed", error=error))
    end = lines(path)[-1]
    assert end["eventType"] == state
    facet = end["run"]["facets"]["errorMessage"]
    assert facet["message"].startswith(f"{code}: postgresql://me@db/shop is away")
    assert "hush" not in path.read_text()


def test_what_cannot_be_counted_is_told_without_counts(tmp_path: Path) -> None:
    path = tmp_path / "lineage.ndjson"
    tell(str(path), event("QUEUED"), event("STARTED"), event("FINISHED", **finished), shop=Shop(rows=None))
    assert lines(path)[-1]["eventType"] == "COMPLETE"
    assert lines(path)[-1]["outputs"][0]["outputFacets"] == {}


def test_events_are_posted_with_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "key-1")
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "team")
    monkeypatch.setenv("OPENLINEAGE_PARENT_ID", "airflow/nightly.pipeline/01a1eb65-0cfe-7cf9-a336-4a06051fb2cc")
    with receiving() as received:
        assert tell(received.url, event("QUEUED"), event("STARTED"), event("FINISHED", **finished)) == []
    start, complete = map(check_event, received.events)
    assert [start["eventType"], complete["eventType"]] == ["START", "COMPLETE"]
    assert received.paths == ["/api/v1/lineage"] * 2
    assert received.headers[0]["Authorization"] == "Bearer key-1"
    assert start["job"]["namespace"] == "team"
    parent = start["run"]["facets"]["parent"]
    assert (parent["job"]["namespace"], parent["job"]["name"]) == ("airflow", "nightly.pipeline")


@pytest.mark.parametrize(
    ("path", "variable", "expected"),
    [("", "ingest/here", "/ingest/here"), ("/api/v2/lineage", "ingest/here", "/api/v2/lineage")],
    ids=["from the environment", "from the address"],
)
def test_the_endpoint_may_have_another_path(
    monkeypatch: pytest.MonkeyPatch, path: str, variable: str, expected: str
) -> None:
    monkeypatch.setenv("OPENLINEAGE_ENDPOINT", variable)
    with receiving() as received:
        tell(received.url + path, event("QUEUED"), event("STARTED"))
    assert received.paths == [expected]


def test_disabled_by_the_environment_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    with receiving() as received:
        assert tell(received.url, event("QUEUED"), event("STARTED")) == []
    assert received.events == []


def test_a_backend_that_is_down_is_warned_of_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Nobody listens.
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        (warning,) = tell(url, event("QUEUED"), event("STARTED"), event("FINISHED", **finished))
    assert "lineage is not delivered" in warning


def test_a_backend_that_refuses_is_warned_of_once() -> None:
    with receiving(status=403) as received:
        (warning,) = tell(received.url, event("QUEUED"), event("STARTED"), event("FINISHED", **finished))
    assert "403" in warning
    assert len(received.events) == 2


def test_a_backend_that_never_answers_delays_nothing_for_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        warnings: list[str] = []
        client = open_client(f"http://127.0.0.1:{silent.getsockname()[1]}")
        telling = OpenLineageTelemetry(client, job="fleet", datasets=Shop(), warn=warnings.append)
        begun = time.monotonic()
        for each in (event("QUEUED"), event("STARTED"), event("FINISHED", **finished)):
            telling.emit(each)
        assert time.monotonic() - begun < 1.0
        telling.close(timeout_s=0.3)
        assert time.monotonic() - begun < 2.0
    assert warnings == ["lineage is not delivered; the pipeline goes on without it: no answer in time"]


@pytest.mark.parametrize("target", ["kafka://broker/topic", "http://", "http://me:hush@host/", "https://host:port/"])
def test_other_targets_are_refused_without_their_secrets(target: str) -> None:
    with pytest.raises(InvalidUrl) as refused:
        open_client(target)
    assert "hush" not in str(refused.value)


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(LogFailed, match="No such file or directory"):
        open_client(str(tmp_path / "missing" / "lineage.ndjson"))


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def lacking(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("openlineage"):
            raise ImportError("No module named 'openlineage'")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(Unsupported, match=r"pip install 'runstate\[openlineage\]'"):
        open_client("lineage.ndjson")
