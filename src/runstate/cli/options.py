"""Arguments and options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from runstate.models.registry import installed_models
from runstate.store import Store, event_bytes_default
from runstate.store import open as open_store

Url = Annotated[
    str, typer.Argument(help="Where the log is: sqlite:PATH, ndjson:DIR, postgresql://…", show_default=False)
]
Stream = Annotated[str, typer.Argument(help="The stream: a run's id.", show_default=False)]
ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="What the events mean: an installed model, or one of your own as FILE.py:CLASS. "
        "Default: the one that goes with the log.",
        show_default=False,
        autocompletion=installed_models,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one value a line, for programs.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")]
BytesMax = Annotated[int, typer.Option("--event-bytes-max", min=1, help="Refuse a line longer than this many bytes.")]
bytes_max_default = event_bytes_default


def existing(url: str, model: str | None) -> Store[Any, Any, Any]:
    """A store for reading: a log that is not there is an error, not a new file."""
    return open_store(url, model, create=False)
