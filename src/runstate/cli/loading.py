"""Commands that are loaded when they are asked for: to load all of them takes longer than most of them run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.main import get_command, get_group

places = {
    "append": "runstate.cli.events:append",
    "fetch": "runstate.cli.events:fetch",
    "tail": "runstate.cli.events:tail",
    "validate": "runstate.cli.events:validate",
    "streams": "runstate.cli.states:streams",
    "snapshot": "runstate.cli.states:snapshot",
    "diff": "runstate.cli.states:diff",
    "replay": "runstate.cli.states:replay",
    "verify": "runstate.cli.integrity:verify",
    "repair": "runstate.cli.integrity:repair",
    "seal": "runstate.cli.seals:seal",
    "project": "runstate.cli.projection:project",
    "lag": "runstate.cli.projection:lag",
    "archive": "runstate.cli.retention:archive",
    "restore": "runstate.cli.retention:restore",
    "copy": "runstate.cli.copying:copy",
    "gc": "runstate.cli.collection:gc",
    "run": "runstate.cli.runs:run",
    "resume": "runstate.cli.runs:resume",
    "status": "runstate.cli.runs:status",
    "demo": "runstate.cli.demo:demo",
    "pipeline": "runstate.cli.pipeline_group:app",
    "session": "runstate.cli.session:app",
    "daemon": "runstate.cli.daemon:app",
    "queue": "runstate.cli.queue:app",
}
"""Where each command is, as MODULE:NAME, in the order of the help."""


class LoadedCommands(Mapping[str, Any]):
    """All commands by their names; each is loaded once, when it is looked up."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, places[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(places)

    def __len__(self) -> int:
        return len(places)


def _load(name: str, place: str) -> Any:
    module, _, member = place.partition(":")
    found = getattr(import_module(module), member)
    if isinstance(found, typer.Typer):
        return get_group(found)
    alone = typer.Typer(add_completion=False)
    alone.command(name)(found)
    return get_command(alone)
