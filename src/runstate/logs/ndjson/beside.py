"""What else stands in a run's directory: artifacts, and whatever anybody has put there. Deleting the run deletes it."""

from __future__ import annotations

from runstate.logs.directories import translated
from runstate.logs.disk import TEMP_SUFFIX
from runstate.logs.ndjson.files import EVENTS, INDEX, PENDING, run_files
from runstate.logs.ndjson.log import NdjsonLog

_own = {EVENTS, PENDING, INDEX, ".orchestrator.lock"}


def files_beside(log: NdjsonLog, stream: str) -> list[str]:
    """The names in a run's directory that are neither the log's nor empty directories."""
    disk, home = log._disk, run_files(log.root, stream).home
    found = []
    with translated():
        for name in disk.names(home) if disk.exists(home) else ():
            is_snapshot = name.startswith("snapshot.") and name.endswith(".json")
            if name in _own or is_snapshot or name.endswith(TEMP_SUFFIX):
                continue
            try:
                empty = not disk.names(home / name)
            except NotADirectoryError:
                empty = False
            if not empty:
                found.append(name)
    return found
