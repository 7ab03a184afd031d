"""Blobs that nothing refers to any more are collected: mark and sweep, and in any doubt nothing is deleted.

Whoever puts a blob shares a kernel lock on the log until the event that refers to it is stored; whoever stores such an
event shares it meanwhile. The collector takes it alone, so it never runs into the time between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from math import inf
from pathlib import PurePath
from threading import Lock, Thread, current_thread
from time import time

from runstate.errors import LogBusy, LogDamaged
from runstate.logs.blob_collection import Collected, Marked
from runstate.logs.blob_refs import blob_digest, blob_refs
from runstate.logs.blobs import Blobs
from runstate.logs.log import BlobRef
from runstate.logs.segments.damage import damaged
from runstate.logs.segments.files import BLOBS, SESSIONS, SessionFiles
from runstate.logs.segments.verify import examine
from runstate.logs.stream_directories import LOCKS, directory_name, streams_among
from runstate.storage import disk as files_door
from runstate.storage.directories import lock_in
from runstate.storage.disk import Disk, LockBusy
from runstate.storage.removed_directories import is_removed


class Holds:
    """The blobs of a log, and this handle's share of the lock that keeps the collector away from new ones."""

    def __init__(self, disk: Disk, root: PurePath) -> None:
        self.blobs = Blobs(disk, root / BLOBS)
        self._disk, self._root, self._home = disk, root, root / BLOBS / "sha256"
        self._put: dict[BlobRef, set[Thread]] = {}
        """What was put and is not pinned yet, and by which threads: each of them means to refer to it."""
        self._users = 0
        self._lock: files_door.Lock | None = None
        self._gate = Lock()

    def has(self, ref: BlobRef) -> bool:
        name = blob_digest(ref)
        return name is not None and self._disk.exists(self._home / name)

    def put(self, data: bytes) -> BlobRef:
        """Keep a blob, and keep the collector away until this thread's next append, or one that refers to it, is over.

        Raises:
            LogBusy: the collector is at work.
        """
        with self._sharing():
            ref = self.blobs.put(data)
            with self._gate:
                self._put.setdefault(ref, set()).add(current_thread())
        return ref

    @contextmanager
    def during(self, refs: Iterable[BlobRef]) -> Iterator[None]:
        """Store events that refer to these; once that is done, they need no hold any more.

        Raises:
            LogBusy: the collector is at work.
        """
        stored = list(refs)
        if not stored:
            yield
            return
        with self._sharing():
            yield
            with self._gate:
                for ref in stored:
                    self._put.pop(ref, None)

    def appended(self) -> None:
        """This thread's append is over: what it has put before is referred to by now, or by nothing."""
        if self._put:
            self._drop({current_thread()})

    def forget_ended(self) -> None:
        """A thread that has ended refers to nothing any more."""
        self._drop(set())

    def release(self) -> None:
        with self._gate:
            self._put.clear()
            self._let_go()

    def _drop(self, threads: set[Thread]) -> None:
        with self._gate:
            held = {ref: {thread for thread in by - threads if thread.is_alive()} for ref, by in self._put.items()}
            self._put = {ref: by for ref, by in held.items() if by}
            self._let_go()

    @contextmanager
    def _sharing(self) -> Iterator[None]:
        with self._gate:
            if self._lock is None:
                self._lock = _lock(self._disk, self._root, shared=True)
            self._users += 1
        try:
            yield
        finally:
            with self._gate:
                self._users -= 1
                self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None and not self._users and not self._put:
            lock, self._lock = self._lock, None
            lock.release()


def collect(disk: Disk, root: PurePath, *, dry_run: bool, grace_s: float | None) -> Collected:
    """Remove the blobs that no session refers to: by a pin, by a line, by anything in its directory.

    The lock tells what is in use, so there is no grace period unless one is asked for.

    Raises:
        LogBusy: somebody is putting blobs, or storing events that refer to some; nothing was removed.
        LogDamaged, OSError: a session cannot be read whole, or the blobs stand behind a link; nothing was removed.
    """
    lock = _lock(disk, root, shared=False)
    try:
        streams = _streams(disk, root)
        marked = {ref for stream in streams for ref in _referred(disk, SessionFiles(stream, root))}
        put_before = inf if grace_s is None else time() - grace_s
        return Blobs(disk, root / BLOBS).collect(Marked(marked, len(streams), put_before), dry_run=dry_run)
    finally:
        lock.release()


def _streams(disk: Disk, root: PurePath) -> list[str]:
    """All sessions.

    Raises:
        LogDamaged: something else stands among them, which may be one that was moved aside.
    """
    names: list[str] = []
    with _unless_gone(disk, root / SESSIONS):
        names = [name for name in disk.names(root / SESSIONS) if not is_removed(name)]
    streams = streams_among(names, "", None)
    if odd := sorted({*names} - {directory_name(stream) for stream in streams}):
        message = f"{SESSIONS}/{odd[0]} is no session of this log, and may refer to blobs; move it out, or delete it"
        raise LogDamaged(message, path=str(root / SESSIONS / odd[0]))
    return streams


def _referred(disk: Disk, files: SessionFiles) -> set[BlobRef]:
    """What a session refers to, its evidence of damage and its unfinished appends included.

    Raises:
        LogDamaged, LogBusy, OSError: it cannot be read whole.
    """
    found: set[BlobRef] = set()
    with _unless_gone(disk, files.home):
        for directory in (files.home, files.events):
            with _unless_gone(disk, directory):
                for name in disk.names(directory):
                    if directory / name != files.events:
                        with _unless_gone(disk, directory / name):  # Such as a segment that was merged meanwhile.
                            found.update(blob_refs(disk.read(directory / name)))
    manifest, spot = examine(disk, files, lambda _, __, lines: found.update(chain.from_iterable(map(blob_refs, lines))))
    if spot is not None:
        raise damaged(files.stream, spot)
    return found | manifest.pins.keys()


@contextmanager
def _unless_gone(disk: Disk, path: PurePath) -> Iterator[None]:
    """What goes while it is looked at refers to nothing. What is listed and cannot be found is a doubt: a link to
    a place that is not mounted now."""
    try:
        yield
    except FileNotFoundError:
        if path.name in disk.names(path.parent):
            raise


def _lock(disk: Disk, root: PurePath, *, shared: bool) -> files_door.Lock:
    try:
        return lock_in(disk, root / LOCKS / ".blobs", shared=shared)
    except LockBusy as busy:
        message = "Blobs are being collected; try again" if shared else "Blobs are being put to use; try again"
        raise LogBusy(message, path=str(root)) from busy
