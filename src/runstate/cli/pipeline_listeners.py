"""The options --lineage and --metrics-file: others that are told about the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from runstate.cli.output import words
from runstate.runtimes.orchestrator.trail import RunStore
from runstate.runtimes.telemetry import Telemetry

Lineage = Annotated[
    str | None,
    typer.Option(
        "--lineage",
        help="Send OpenLineage events about the stages to a file or to http://…. Needs: 'runstate\\[openlineage]'.",
        show_default=False,
    ),
]
MetricsFile = Annotated[
    Path | None,
    typer.Option(
        "--metrics-file",
        help="Write Prometheus metrics of the stages to this file, for node_exporter. Needs: 'runstate\\[metrics]'.",
        show_default=False,
    ),
]
Listeners = Callable[[Path, RunStore, str], list[Telemetry]]
"""Those who listen to a run: of the pipeline in a directory, in a store, by its id."""


def open_listeners(lineage: str | None, metrics_file: Path | None) -> Listeners:
    """
    Raises:
        Unsupported, InvalidUrl, LogFailed: one of them cannot be opened; nothing was begun.
    """
    if metrics_file is not None:
        from runstate.metrics import check_metrics_file

        check_metrics_file(metrics_file)
    if lineage is not None:
        from runstate.adapters.openlineage import OpenLineageTelemetry, open_client

        client = open_client(lineage)

    def listeners(to: Path, store: RunStore, run_id: str) -> list[Telemetry]:
        from runstate.cli.runs import all_events
        from runstate.pipeline.stage_datasets import StageDatasets
        from runstate.pipeline.stage_metrics import StageMetrics

        found: list[Telemetry] = []
        if lineage is not None:
            job, datasets = to.absolute().name, StageDatasets(to)
            telling = OpenLineageTelemetry(client, job=job, datasets=datasets, warn=words.print)
            telling.recall(all_events(store, run_id))
            found.append(telling)
        if metrics_file is not None:
            metrics = StageMetrics(to, metrics_file, warn=words.print)
            metrics.recall(all_events(store, run_id))
            found.append(metrics)
        return found

    return listeners
