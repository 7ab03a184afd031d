"""The files of a run: where they are, what is in them, and what has become stale.

An artifact is known by its sha256. Whether it is up to date is decided by bytes alone: a file that was touched but not
changed is not stale.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from runstate.models.canonical import digest
from runstate.models.rundir.state import RunDirectory, WorkItem
from runstate.storage.directories import make_directories
from runstate.storage.disk import Lock, LockBusy, RealDisk, refuse_links, replace_durably, write_new

_chunk_bytes = 1 << 20
_staged = re.compile(r"[0-9a-f]{16}|undo-[0-9a-f]{64}")
own_files = re.compile(r"\.orchestrator\.lock|\.staging/.*")
"""What a run directory may hold before the run has any event or artifact."""
_lock_tries = 3
_lock_pause_s = 0.02


def sha256_of(path: Path) -> str | None:
    """The digest of a file's bytes, None where there is no file."""
    found, offset = hashlib.sha256(), 0
    try:
        with RealDisk().open(path, read_only=True) as file:
            while chunk := file.read_at(offset, _chunk_bytes):
                found.update(chunk)
                offset += len(chunk)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    return found.hexdigest()


class ArtifactFiles:
    """The artifacts of one run directory. Only one orchestrator at a time works on them: it holds `lock`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._root = directory / "artifacts"
        self._staging = directory / ".staging"
        self._lock_file = directory / ".orchestrator.lock"
        self._disk = RealDisk()

    def lock(self) -> Lock:
        """
        Raises:
            LockBusy: somebody else holds it.
            OSError: the directory cannot be made, or not be written to; or it holds a link where files are written.
        """
        refuse_links(self._disk, self._directory, self._root, self._staging)
        make_directories(self._disk, self._directory)
        for _ in range(_lock_tries):
            with suppress(LockBusy):
                return self._disk.lock(self._lock_file)
            time.sleep(_lock_pause_s)  # Perhaps somebody only looks, with `is_abandoned`.
        return self._disk.lock(self._lock_file)

    def is_abandoned(self) -> bool:
        """Whether an orchestrator was at work here and none is now, as the kernel knows it: it frees a dead one's lock.

        False also where no orchestrator ever was, and where nobody can tell.
        """
        try:
            file = os.open(self._lock_file, os.O_RDONLY)
        except OSError:
            return False
        try:
            # Shared and for an instant, so that two who look do not take each other for an orchestrator.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def relative_path(self, name: str) -> str:
        return f"artifacts/{name}"

    def path(self, name: str) -> Path:
        return self._root / name

    def stage(self) -> Path:
        """A new directory for the outputs of one job, of which nobody else knows."""
        staging = self._staging / secrets.token_hex(8)
        make_directories(self._disk, self._staging)
        self._disk.make_directory(staging)
        return staging

    def publish(self, work_item_id: str, outputs: dict[str, bytes], rewritten: Iterable[str] = ()) -> None:
        """Make these bytes artifacts, durably. All of them are on disk before the first of them can be seen.

        What is `rewritten` is also an input of the same work item: if it is killed before the trail says that it has
        finished, `recover` brings back what it has read.

        Raises:
            OSError: the disk has refused; what is rewritten is as it was.
        """
        ready = self.stage()
        for number, (name, data) in enumerate(outputs.items()):
            write_new(self._disk, ready / str(number), data)
            self._refuse_links_to(self.path(name))
            make_directories(self._disk, self.path(name).parent)
        for name in rewritten:
            kept = self._undo(work_item_id) / digest(outputs[name]) / name
            make_directories(self._disk, kept.parent)
            replace_durably(self._disk, kept, self.path(name).read_bytes())
        try:
            for number, name in enumerate(outputs):
                os.replace(ready / str(number), self.path(name))
                self._disk.sync_directory(self.path(name).parent)
        except OSError:
            with suppress(OSError):
                self._bring_back(work_item_id)
            raise

    def recover(self, interrupted: Iterable[str]) -> None:
        """Clean up after an orchestrator that was killed: bring back what interrupted work items have rewritten."""
        for work_item_id in interrupted:
            self._bring_back(work_item_id)
        self.drop_staging()

    def drop_staging(self) -> None:
        """Remove what jobs have staged. What others put there, or behind a symlink, stays."""
        if not self._staging.is_symlink():
            for path in self._staging.glob("*"):
                if _staged.fullmatch(path.name):
                    shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                self._staging.rmdir()

    def _refuse_links_to(self, artifact: Path) -> None:
        refuse_links(self._disk, *(path for path in artifact.parents if path.is_relative_to(self._root)))

    def _undo(self, work_item_id: str) -> Path:
        """Where the bytes that a work item replaces are kept, under the digest of those that replace them."""
        return self._staging / f"undo-{digest(work_item_id.encode())}"

    def _bring_back(self, work_item_id: str) -> None:
        kept = self._undo(work_item_id)
        for path in sorted(path for path in kept.rglob("*") if path.is_file()):
            replacement, *name = path.relative_to(kept).parts
            target = self._root.joinpath(*name)
            # Anything else that stands there now was put there by somebody else, and is theirs.
            if sha256_of(target) == replacement:
                self._refuse_links_to(target)
                replace_durably(self._disk, target, path.read_bytes())


def newest_items(state: RunDirectory) -> dict[tuple[str, str], WorkItem]:
    """The newest attempt of each worker at each scope."""
    return {(item.worker, item.scope_key): item for item in sorted(state.work_items, key=lambda item: item.attempt)}


def downstream(state: RunDirectory, changed: Iterable[str]) -> dict[str, str]:
    """Every artifact that depends on a changed one, with the artifact because of which; in the order they were made.

    What depends on what is told by the work items: what each has read, and what it has written.
    """
    edges = [(item.inputs, item.outputs) for item in newest_items(state).values() if item.status == "finished"]
    reached, found = set(changed), dict[str, str]()
    grown = True
    while grown:
        grown = False
        for inputs, outputs in edges:
            cause = next((name for name in inputs if name in reached), None)
            for output in outputs if cause is not None else ():
                if output not in found and output not in inputs:
                    found[output] = str(cause)
                    reached.add(output)
                    grown = True
    return found
