"""The outbox: records on their way out, kept in a file until the endpoint has taken them.

One line of JSON for each record, in the order of their arrival, and between them marks `{"settled":OFFSET}`: every
line before that byte of the file was delivered or set aside. Lines are flushed before they count as saved. Marks are
not: a lost mark has records sent again, and a receiver knows them by their `event_id`. A file of which everything is
settled is emptied. Beside it:

- `NAME.lock`: held for the moment of a change, so that several processes can append to one outbox.
- `NAME.sender`: held by the one process that delivers. When it ends, however it ends, the next one takes over.
- `NAME.rejected`: what the endpoint refused for good, each line with the reason.

The size has a bound. A full outbox keeps what it has, which is the oldest, and refuses what comes. What the disk
refuses is kept in memory, so an outbox that can't be written still delivers for as long as its process lives.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePath

import msgspec

from runstate.models.canonical import undecodable
from runstate.runtimes.telemetry.trouble import logger
from runstate.storage.disk import Disk, File, Lock, LockBusy, RealDisk, replace_durably, temp_target

_mark = b'{"settled":'
_read_bytes = 64 * 1024
_compact_bytes = 1024 * 1024
_lock_wait_s = 2.0


class Outbox:
    """Lines in a file, first in, first out. Threads may share it; no method raises because of the disk."""

    def __init__(
        self,
        path: PurePath,
        *,
        bytes_max: int = 64 * 1024 * 1024,
        unsaved_max: int = 10_000,
        disk: Disk | None = None,
    ) -> None:
        self._disk = disk or RealDisk()
        self._path = path
        self._bytes_max = bytes_max
        self._unsaved_max = unsaved_max
        self._unsaved: deque[bytes] = deque()
        self._mutex = threading.Lock()
        self._sender: Lock | None = None
        self._offset = 0
        self._ahead = b""  # What was read from `_offset` on.
        self._named: set[PurePath] = set()
        self._troubled = False

    def append(self, lines: Sequence[bytes]) -> int:
        """Save lines, or keep them in memory while the disk refuses; returns how many there was no room for."""
        with self._mutex:
            room = max(0, self._unsaved_max - len(self._unsaved))
            self._unsaved.extend(lines[:room])
            return len(lines[room:]) + self._save()

    def head(self) -> bytes | None:
        """The next line to deliver; None when there is none, or when they are another process's to deliver."""
        with self._mutex:
            try:
                line = self._next_saved() if self._sends() else None
            except OSError as error:
                self._report("can't be read", error)
                line = None
            return line if line is not None else (self._unsaved[0] if self._unsaved else None)

    def settle(self, line: bytes) -> None:
        """The head was delivered or set aside: the next one is the head now."""
        with self._mutex:
            if self._ahead.startswith(line + b"\n"):
                self._advance(len(line) + 1)
                try:
                    with self._changing():
                        self._forget()
                except OSError as error:
                    self._report("can't be marked, so that records will be sent again", error)
            elif self._unsaved and self._unsaved[0] == line:
                self._unsaved.popleft()

    def set_aside(self, line: bytes, reason: str) -> bool:
        """Keep a line that can't be delivered, with the reason; False when there is no room for it."""
        try:
            record = msgspec.json.decode(line)
        except undecodable:
            record = line.decode(errors="replace")
        entry = msgspec.json.encode({"reason": reason, "record": record}) + b"\n"
        try:
            with self._mutex, self._changing(), self._opened(self._path_of(".rejected")) as file:
                return self._write(file, entry)
        except OSError as error:
            self._report("can't set a record aside", error)
            return False

    def release(self) -> None:
        """Try to save what is in memory, and let another process deliver."""
        with self._mutex:
            self._save()
            sender, self._sender = self._sender, None
            if sender is not None:
                with suppress(OSError):
                    sender.release()

    # --- saving ------------------------------------------------------------------------------------------------------

    def _save(self) -> int:
        """Move lines from memory to the file; returns how many were refused because it is full."""
        if not self._unsaved:
            return 0
        try:
            with self._changing(), self._opened(self._path) as file:
                taken, room = [], self._bytes_max - file.size()
                for line in self._unsaved:
                    room -= len(line) + 1
                    if room < 0:
                        break
                    taken.append(line + b"\n")
                if taken:
                    self._write(file, b"".join(taken), bounded=False)
        except OSError as error:
            self._report("can't be written; records wait in memory", error)
            return 0
        refused = len(self._unsaved) - len(taken)
        self._unsaved.clear()
        self._troubled = False
        return refused

    def _write(self, file: File, data: bytes, *, bounded: bool = True) -> bool:
        size = file.size()
        if bounded and size + len(data) > self._bytes_max:
            return False
        # Whoever died while appending left half a line: it ends here, and becomes one that nobody can read.
        torn = size > 0 and file.read_at(size - 1, 1) != b"\n"
        try:
            file.append(b"\n" * torn + data)
            file.sync()
        except OSError:
            with suppress(OSError):
                file.truncate(size)
            raise
        return True

    @contextmanager
    def _opened(self, path: PurePath) -> Iterator[File]:
        # Each process makes the names durable for itself: whoever made them may have died before doing so.
        is_named = path in self._named and self._disk.exists(path)
        with self._disk.open(path, create=True) as file:
            yield file
        if not is_named:
            self._disk.sync_directory(path.parent)
            self._disk.sync_directory(path.parent.parent)
            self._named.add(path)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the file against other processes; they hold it for moments only, so waiting for it is short."""
        if not self._disk.exists(self._path.parent):
            with suppress(FileExistsError):
                self._disk.make_directory(self._path.parent)
        give_up_at = time.monotonic() + _lock_wait_s
        while True:
            try:
                lock = self._disk.lock(self._path_of(".lock"))
                break
            except LockBusy:
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(0.002)
        try:
            yield
        finally:
            lock.release()

    # --- delivering --------------------------------------------------------------------------------------------------

    def _sends(self) -> bool:
        """Whether this process delivers what is in the file; tries to become the one that does."""
        if self._sender is None and self._disk.exists(self._path):
            try:
                self._sender = self._disk.lock(self._path_of(".sender"))
            except LockBusy:
                return False
            self._remove_leftovers()
            self._offset, self._ahead = _settled(self._disk.read(self._path)), b""
        return self._sender is not None

    def _next_saved(self) -> bytes | None:
        while True:
            while (end := self._ahead.find(b"\n")) < 0:
                if not (more := self._read_on()):
                    return None
                self._ahead += more
            line = self._ahead[:end]
            if line and not line.startswith(_mark):
                return line
            self._advance(end + 1)

    def _read_on(self) -> bytes:
        if not self._disk.exists(self._path):
            self._offset, self._ahead = 0, b""
            return b""
        with self._disk.open(self._path) as file:
            if file.size() < self._offset + len(self._ahead):  # Somebody emptied the file behind our back.
                self._offset, self._ahead = 0, b""
            return file.read_at(self._offset + len(self._ahead), _read_bytes)

    def _advance(self, size: int) -> None:
        self._offset += size
        self._ahead = self._ahead[size:]

    def _forget(self) -> None:
        """Make what is settled known to the process that comes after this one, and give its space back."""
        self._next_saved()  # Steps over marks, so that the end of the file is seen where nothing else follows.
        with self._disk.open(self._path) as file:
            size = file.size()
            if self._offset < size:
                if self._offset < max(_compact_bytes, size / 2):
                    file.append(_mark + str(self._offset).encode() + b"}\n")
                    return
                rest = file.read_at(self._offset, size - self._offset)
                lines = [line for line in rest.split(b"\n") if not line.startswith(_mark)]
                replace_durably(self._disk, self._path, b"\n".join(lines))
            else:
                file.truncate(0)
            self._offset, self._ahead = 0, b""

    def _remove_leftovers(self) -> None:
        """Files that a process left behind when it died while giving space back."""
        for name in self._disk.names(self._path.parent):
            if temp_target(name) == self._path.name:
                self._disk.remove(self._path.with_name(name))

    def _path_of(self, suffix: str) -> PurePath:
        return self._path.with_name(self._path.name + suffix)

    def _report(self, what: str, error: OSError) -> None:
        if not self._troubled:  # Once for each time of trouble: a full disk must not fill with complaints about it.
            logger.warning("The telemetry outbox %s %s: %s", self._path, what, error)
        self._troubled = True


def _settled(data: bytes) -> int:
    """The offset in the last whole mark of a file; 0 when it has none."""
    end = len(data)
    while (start := data.rfind(b"\n" + _mark, 0, end)) >= 0:
        number, close, _ = data[start + 1 + len(_mark) : min(end, start + 1 + len(_mark) + 24)].partition(b"}\n")
        if close and number.isdigit() and int(number) <= start + 1:
            return int(number)
        end = start + 1
    return 0
