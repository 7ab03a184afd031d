"""Arguments and options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from runstate.cli.stream_stores import print_alert
from runstate.models.model import AnyModel
from runstate.models.registry import installed_models
from runstate.store import Store
from runstate.store import open as open_store
from runstate.store_options import event_bytes_default

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
        "Default: the one that the stream records, or else the one that goes with the log.",
        show_default=False,
        autocompletion=installed_models,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one value a line, for programs.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")]
BytesMax = Annotated[int, typer.Option("--event-bytes-max", min=1, help="Refuse a line longer than this many bytes.")]
bytes_max_default = event_bytes_default


def existing(url: str, model: str | AnyModel | None) -> Store[Any, Any, Any]:
    """A store for reading: a log that is not there is an error, not a new file, and no snapshot is saved on the way."""
    store: Store[Any, Any, Any] = open_store(url, model, create=False, snapshot_every=0, on_alert=print_alert)
    return store


_unit_s = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_age_max_s = 100 * 365 * 86_400


def parse_age(text: str) -> datetime:
    """The moment that lies a duration back: 30d, 12h, 45m, 90s, 2w."""
    found = re.fullmatch(r"([0-9]{1,12})([smhdw])", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write a number and s, m, h, d or w, like 30d")
    seconds = int(found[1]) * _unit_s[found[2]]
    if seconds > _age_max_s:
        raise typer.BadParameter(f"{text!r} is too long; the longest is 100 years")
    return datetime.now(UTC) - timedelta(seconds=seconds)


def parse_time(text: str) -> datetime:
    """A point in time with its zone: 2026-11-15T09:30:00Z."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a time; write it like 2026-11-15T09:30:00Z") from error
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no time zone; write it like 2026-11-15T09:30:00Z")
    return moment


def parse_since(text: str) -> datetime:
    """A point in time, or the moment that lies a duration back."""
    return parse_age(text) if re.fullmatch(r"[0-9]+[a-z]", text.strip()) else parse_time(text)
