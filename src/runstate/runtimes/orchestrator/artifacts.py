"""The files of a run: where they are, what is in them, and what has become stale.

An artifact is known by its sha256. Whether it is up to date is decided by bytes alone: a file that was touched but not
changed is not stale.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from runstate.logs.disk import RealDisk, replace_durably
from runstate.models.rundir.state import RunDirectory, WorkItem

_chunk_bytes = 1 << 20


def sha256_of(path: Path) -> str | None:
    """The digest of a file's bytes, None where there is no file."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_chunk_bytes):
                found.update(chunk)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    return found.hexdigest()


class ArtifactFiles:
    """The artifacts of one run directory."""

    def __init__(self, directory: Path) -> None:
        self._root = directory / "artifacts"
        self._staging = directory / ".staging"

    def relative_path(self, name: str) -> str:
        return f"artifacts/{name}"

    def path(self, name: str) -> Path:
        return self._root / name

    def stage(self, work_item_id: str) -> Path:
        """An empty directory for the outputs of a work item, whatever an earlier life has left there."""
        staging = self.staging(work_item_id)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        return staging

    def staging(self, work_item_id: str) -> Path:
        return self._staging / hashlib.sha256(work_item_id.encode()).hexdigest()[:32]

    def publish(self, name: str, data: bytes) -> str:
        """Make staged bytes the artifact, durably and at once. Returns their digest."""
        target = self.path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_durably(RealDisk(), target, data)
        return hashlib.sha256(data).hexdigest()

    def drop_staging(self) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)


def newest_items(state: RunDirectory) -> dict[tuple[str, str], WorkItem]:
    """The newest attempt of each worker at each scope."""
    return {(item.worker, item.scope_key): item for item in sorted(state.work_items, key=lambda item: item.attempt)}


def downstream(state: RunDirectory, changed: Iterable[str]) -> dict[str, str]:
    """Every artifact that depends on a changed one, with the artifact because of which; in the order they were made.

    What depends on what is told by the work items: what each has read, and what it has written.
    """
    edges = [(item.inputs, item.outputs) for item in newest_items(state).values() if item.status == "finished"]
    because = dict.fromkeys(changed, "")
    found: dict[str, str] = {}
    grown = True
    while grown:
        grown = False
        for inputs, outputs in edges:
            cause = next((name for name in inputs if name in because), None)
            for output in outputs if cause is not None else ():
                if output not in because and output not in inputs:
                    found[output] = because[output] = str(cause)
                    grown = True
    return found
