"""Where everything lives: the names of a run's directory and of the files in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import PurePath
from urllib.parse import quote

from runstate.logs.log import Head
from runstate.logs.set_aside import pattern as set_aside
from runstate.logs.stream_directories import LOCKS, directory_name
from runstate.storage.directories import names_in
from runstate.storage.disk import TEMP, Disk
from runstate.storage.target_directory import remove_own

EVENTS = "events.ndjson"
PENDING = "events.pending"
INDEX = "index.json"
KEYS = "keys.idx"
ORCHESTRATOR_LOCK = ".orchestrator.lock"
_file = r"(events\.ndjson|index\.json|keys\.idx|snapshot(\.[^/]+)?\.json)"
own_files = re.compile(rf"{_file}({TEMP})?|events\.pending|\.orchestrator\.lock")
"""The files of a run's directory that an archive need not keep: the log's, and the orchestrator's lock."""
_snapshot = re.compile(r"snapshot(\.[^/]+)?\.json")
_temporary = re.compile(_file + TEMP)
evidence_files = re.compile(rf"{_file}({set_aside})?|events\.pending")
"""The files of a run's directory that may refer to blobs."""
event_bytes_guessed = 500
_events_guessed = 50
"""In a run whose file nobody has looked at."""


@dataclass(frozen=True)
class RunFiles:
    """The places of one run. Each is made once: a fleet has many runs, and a path costs more than looking it up."""

    stream: str
    root: PurePath
    name: str

    @cached_property
    def home(self) -> PurePath:
        return self.root / self.name

    @cached_property
    def events(self) -> PurePath:
        return self.root.joinpath(self.name, EVENTS)

    @cached_property
    def pending(self) -> PurePath:
        return self.root.joinpath(self.name, PENDING)

    @cached_property
    def index(self) -> PurePath:
        return self.home / INDEX

    @cached_property
    def keys(self) -> PurePath:
        return self.home / KEYS

    @property
    def lock(self) -> PurePath:
        return self.root / LOCKS / self.name

    def snapshot(self, model: str) -> PurePath:
        return self.home / ("snapshot.json" if model == "rundir" else f"snapshot.{quote(model, safe='')}.json")


@lru_cache(maxsize=16)  # Whoever goes through a fleet asks several times for one run before the next.
def run_files(root: PurePath, stream: str) -> RunFiles:
    return RunFiles(stream, root, directory_name(stream))


def snapshot_names(disk: Disk, files: RunFiles) -> list[str]:
    return [name for name in names_in(disk, files.home) if _snapshot.fullmatch(name)]


def guessed(stream: str) -> Head:
    return Head(stream, _events_guessed, "")


def remove_leftovers(disk: Disk, files: RunFiles) -> None:
    """Remove the temporary files of a writer that was killed. The caller holds the run's lock."""
    remove_own(files.home, _temporary, disk=disk)
