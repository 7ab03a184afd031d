"""What a whole pipeline tells others: OpenLineage events, over HTTP and in a file, and metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.lineage import check_event, receiving
from tests.metrics import samples
from tests.pipeline.fleet_logs import filled
from tests.pipeline.test_stages import pipeline, quick

from runstate.pipeline.stage_datasets import dataset_of
from runstate.store import open as open_store


@pytest.mark.parametrize(
    ("url", "namespace", "name"),
    [
        ("sqlite:/data/shop.db", "file", "/data/shop.db"),
        ("table:/data/events?version=3", "file", "/data/events/events"),
        ("files:/data/*.ndjson", "file", "/data/*.ndjson"),
        ("postgresql://me:hush@db/shop", "postgres://db:5432", "shop.runstate.events"),
        ("postgresql://me@db:6432/shop?schema=prod&password=hush", "postgres://db:6432", "shop.prod.events"),
        ("dynamodb://runs?region=eu-west-1", "dynamodb://runs", "runs"),
    ],
)
def test_a_log_has_the_name_that_others_give_it_and_no_secret(url: str, namespace: str, name: str) -> None:
    found = dataset_of(url)
    assert (found.namespace, found.name) == (namespace, name)
    assert "hush" not in found.uri


def test_a_relative_log_is_named_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert dataset_of("ndjson:runs").name == str(tmp_path / "runs")


def test_the_default_schema_is_that_of_the_log() -> None:
    pytest.importorskip("psycopg", reason="pip install 'runstate[postgres]'")
    from runstate.logs.postgres.log import schema_default

    assert dataset_of("postgresql://db/shop").name == f"shop.{schema_default}.events"


def names(datasets: list[dict[str, Any]], to: Path) -> list[str]:
    return [each["name"].removeprefix(f"{to}/") for each in datasets]


def rows(event: dict[str, Any]) -> list[int | None]:
    return [each["outputFacets"]["outputStatistics"].get("rowCount") for each in event["outputs"]]


class Told(NamedTuple):
    """A pipeline that has told others about itself."""

    url: str
    to: Path
    events: int
    lineage: list[dict[str, Any]]
    metrics: Path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    directory = tmp_path_factory.mktemp("told")
    url, to, metrics = filled("sqlite", "engine", directory, runs=5), directory / "out", directory / "out.prom"
    with open_store(url) as store:
        events = sum(info.events for info in store.log.streams())
    with receiving() as received:
        listeners = ["--lineage", received.url, "--metrics-file", str(metrics)]
        code, _, err = pipeline("run", url, "--to", str(to), *listeners, *quick)
    assert code == 0, err
    return Told(url, to, events, [check_event(event) for event in received.events], metrics)


def test_every_stage_is_told_with_what_it_read_and_wrote(told: Told) -> None:
    to, log = told.to, told.url.removeprefix("sqlite:")
    stages = ["out.ingest.engine", "out.replay.engine", "out.audit.engine", "out.report"]
    expected = [(stage, kind) for stage in stages for kind in ("START", "COMPLETE")]
    assert [(event["job"]["name"], event["eventType"]) for event in told.lineage] == expected
    assert len({event["run"]["runId"] for event in told.lineage}) == len(stages)
    ingest, replay, audit, report = told.lineage[1::2]
    assert names(ingest["inputs"], to) == [log]
    assert names(ingest["outputs"], to) == ["events/engine/events", "events/engine/quarantine"]
    assert rows(ingest) == [told.events, 0]
    assert names(replay["inputs"], to) == ["events/engine/events"]
    assert names(replay["outputs"], to) == ["snapshots/engine/snapshots"]
    assert rows(replay) == [5]
    assert names(audit["inputs"], to) == [log, "snapshots/engine/snapshots"]
    assert names(audit["outputs"], to) == names(report["inputs"], to)[2:] == ["findings/engine"]
    assert report["outputs"][0]["outputFacets"]["outputStatistics"]["size"] == (to / "report.html").stat().st_size


def test_the_metrics_have_every_stage_with_its_seconds_and_rows(told: Told) -> None:
    found = samples(told.metrics)
    assert {key[1:] for key in found if key[0] == "runstate_pipeline_stage_ok"} == {
        ("ingest", "engine"),
        ("replay", "engine"),
        ("audit", "engine"),
        ("report", ""),
    }
    assert found["runstate_pipeline_rows", "ingest", "engine", "events"] == told.events
    assert found["runstate_pipeline_rows", "replay", "engine", "snapshots"] == 5
    assert found["runstate_pipeline_rows", "audit", "engine", "damage"] == 0
    assert found["runstate_pipeline_stage_runs_total", "report", "", "finished"] == 1
    assert found["runstate_pipeline_stage_seconds", "ingest", "engine"] > 0


def test_a_stage_that_fails_is_told_with_the_reason(told: Told, tmp_path: Path) -> None:
    """The last test, since it damages a table. Only what a stage wrote itself is counted: here, nothing is new."""
    to, lineage = told.to, tmp_path / "lineage.ndjson"
    commit = min((to / "snapshots" / "engine" / "snapshots" / "_delta_log").glob("*.json"))
    commit.write_bytes(b"{}\n")
    listeners = ["--lineage", str(lineage), "--metrics-file", str(told.metrics)]
    code, _, err = pipeline("resume", str(to), "--force", "ingest", *listeners, *quick)
    assert code == 1, err
    again = [check_event(json.loads(line)) for line in lineage.read_text().split("\n")[:-1]]
    assert [(event["job"]["name"], event["eventType"]) for event in again] == [
        *(("out.ingest.engine", kind) for kind in ("START", "COMPLETE")),
        *(("out.replay.engine", kind) for kind in ("START", "FAIL")),
    ]
    assert rows(again[1]) == [0, 0]
    assert "snapshots" in again[-1]["run"]["facets"]["errorMessage"]["message"]
    assert not {event["run"]["runId"] for event in again} & {event["run"]["runId"] for event in told.lineage}
    found = samples(told.metrics)
    assert found["runstate_pipeline_stage_runs_total", "ingest", "engine", "finished"] == 2
    assert found["runstate_pipeline_stage_runs_total", "replay", "engine", "failed"] == 1
    assert found["runstate_pipeline_stage_ok", "replay", "engine"] == 0
    assert found["runstate_pipeline_stage_ok", "audit", "engine"] == 1
