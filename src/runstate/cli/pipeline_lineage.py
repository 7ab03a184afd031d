"""The option --lineage: OpenLineage events about the stages of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runstate.cli.output import words
from runstate.runtimes.orchestrator.trail import RunStore

if TYPE_CHECKING:
    from runstate.adapters.openlineage import OpenLineageTelemetry

Lineage = Annotated[
    str | None,
    typer.Option(
        "--lineage",
        help="Send OpenLineage events about the stages to a file or to http://…. Needs: 'runstate\\[openlineage]'.",
        show_default=False,
    ),
]


def lineage_client(target: str | None) -> Any:
    """The client that OpenLineage events are sent with. None: there is no target.

    Raises:
        Unsupported, InvalidUrl, LogFailed: before anything is begun.
    """
    from runstate.adapters.openlineage import open_client

    return None if target is None else open_client(target)


def lineage_of(client: Any, to: Path, store: RunStore, run_id: str) -> OpenLineageTelemetry:
    """What tells the client about the pipeline in a directory."""
    from runstate.adapters.openlineage import OpenLineageTelemetry
    from runstate.cli.runs import all_events
    from runstate.pipeline.stage_datasets import StageDatasets

    found = OpenLineageTelemetry(client, job=to.absolute().name, datasets=StageDatasets(to), warn=words.print)
    found.recall(all_events(store, run_id))
    return found
