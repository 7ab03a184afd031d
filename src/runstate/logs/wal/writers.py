"""The streams that a log has open for writing, and what its readers may see of them."""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePath
from threading import Lock
from typing import NamedTuple, TypeVar

from runstate.errors import LogClosed
from runstate.logs.log import Finding
from runstate.logs.wal.entries import Damage
from runstate.logs.wal.files import StreamFiles
from runstate.logs.wal.findings import damaged
from runstate.logs.wal.held import Held
from runstate.logs.wal.ledger import read_ledger
from runstate.logs.wal.lines import last_entry
from runstate.logs.wal.options import WalOptions
from runstate.logs.wal.reading import extent
from runstate.logs.wal.writer import Gone, Writer
from runstate.models.model import Draft, check_file_stream
from runstate.storage.directories import lock_in
from runstate.storage.disk import Disk, File
from runstate.storage.disk_errors import translate, translated

T = TypeVar("T")
Act = Callable[[Writer, Sequence[Draft], int | None], T]
writers_max = 128
"""Streams that are open for writing at once; beyond it, the one that was used longest ago is let go of."""


class OpenedWal(NamedTuple):
    """A WAL to read from."""

    file: File
    end: int
    size: int
    """Of the file when it was opened; what stands behind `end` is no whole append."""
    known_seq: int
    """Entries up to this one were durable; 0: this process writes to the stream, and has reported what is missing."""
    token: tuple[Writer, int] | None
    """Who writes to it, and to which of the files that it has had; None: somebody else may."""


def _check_own(files: StreamFiles, file: File, held: Held) -> None:
    """Check that a file is the one that this process writes to, as far as it was written.

    Raises:
        LogDamaged: it was replaced, or cut short.
    """
    is_own = held.file is None or file.identity() == held.file.identity()
    if is_own and file.size() >= held.end:
        return
    what = f"has {file.size()} bytes, less than were written to it" if is_own else "was replaced by another file"
    file.close()
    message = f"{files.wal.name} {what}, while this process writes to it"
    raise damaged(files.stream, Damage("log.file_changed", message), held.tail_seq, 0)


class EndedDescriptor:
    """A WAL to read, with a newline behind its last byte."""

    def __init__(self, file: File, size: int) -> None:
        self._file, self._size = file, size
        self.identity, self.close = file.identity, file.close

    def read(self, offset: int, size: int) -> bytes:
        data = self._file.read_at(offset, max(0, min(size, self._size - offset)))
        return data + b"\n" if offset <= self._size < offset + size else data

    def size(self) -> int:
        return self._size + 1

    def write(self, data: memoryview) -> int:
        raise OSError(errno.EBADF, "this file is only read")

    def truncate(self, size: int) -> None:
        raise OSError(errno.EINVAL, "this file is only read")

    def flush(self) -> None: ...

    def lock(self) -> None: ...


class Writers:
    def __init__(
        self, disk: Disk, root: PurePath, options: WalOptions, report: list[Finding], *, is_settled: bool
    ) -> None:
        self._disk, self._root, self._options, self._report = disk, root, options, report
        self._is_settled = is_settled
        self._open: OrderedDict[str, Writer] = OrderedDict()
        self._gate = Lock()
        self._closed = False

    def get(self, stream: str) -> Writer | None:
        return self._open.get(stream)

    def all(self) -> list[Writer]:
        with self._gate:
            return list(self._open.values())

    def close(self) -> None:
        with self._gate:
            self._closed = True
            writers, self._open = list(self._open.values()), OrderedDict()
        for writer in writers:
            with writer.upkeep:
                writer.close()

    # --- writing -------------------------------------------------------------------------------------------

    def on(self, stream: str, act: Act[T], drafts: Sequence[Draft], expected_seq: int | None) -> T:
        """Let a stream's writer act, having opened the stream if it is not.

        Raises:
            LogBusy, LogClosed, and what the act raises, but `Gone` and `OSError`.
        """
        while True:
            # A stream that is open already was checked, and is used as it is: if it is let go of meanwhile, it says so.
            writer = self._open.get(stream)
            try:
                if writer is None or writer.held is None:
                    check_file_stream(stream)
                    with self.writing(stream) as writer:
                        return act(writer, drafts, expected_seq)
                return act(writer, drafts, expected_seq)
            except Gone:
                continue
            except OSError as error:
                raise translate(error) from error

    @contextmanager
    def writing(self, stream: str) -> Iterator[Writer]:
        """A stream whose lock this process holds, for as long as the block runs and perhaps longer.

        Raises:
            LogBusy: another process, or another handle, holds it.
        """
        with translated():
            with self._gate:
                if self._closed:
                    raise LogClosed()
                writer = self._open.get(stream)
                if writer is None or writer.closed:
                    writer = self._locked(stream)
                self._open[stream] = writer
                self._open.move_to_end(stream)
                writer.users += 1
            try:
                yield writer
            finally:
                with self._gate:
                    writer.users -= 1
                    if writer.held is None and not writer.users:
                        # It could not be opened, or was deleted. It is closed with the gate held: otherwise the next
                        # thread to open the stream could find the lock still taken.
                        self._remove(writer)
                        writer.close()
                    idle = self._take_idle()
                if idle is not None:
                    idle.close()

    @contextmanager
    def keeping(self, stream: str) -> Iterator[Writer]:
        """Like `writing`, and nobody else writes snapshots or compacts meanwhile."""
        while True:
            with self.writing(stream) as writer, writer.upkeep:
                if not writer.closed:  # Else it was deleted while we waited.
                    yield writer
                    return

    @contextmanager
    def leading(self, stream: str) -> Iterator[Writer]:
        """Like `keeping`, and nobody else flushes meanwhile."""
        with self.keeping(stream) as writer, writer.claimed():
            yield writer

    def _locked(self, stream: str) -> Writer:
        files = StreamFiles(self._root, stream)
        if not self._is_settled:
            # Whoever made this directory may have been killed before its name was sure.
            with suppress(PermissionError):
                self._disk.sync_directory(self._root.parent)
            self._is_settled = True
        lock = lock_in(self._disk, files.lock, writes_to=[files.home, files.archive])
        return Writer(self._disk, files, lock, self._options, self._report)

    def _take_idle(self) -> Writer | None:
        """Remove a writer to close if there are more than the bound: the one that was used longest ago."""
        if len(self._open) <= writers_max:
            return None
        idle = next((other for other in self._open.values() if not other.users), None)
        if idle is not None:
            self._remove(idle)
        return idle

    def _remove(self, writer: Writer) -> None:
        if self._open.get(writer.files.stream) is writer:
            del self._open[writer.files.stream]

    # --- reading -------------------------------------------------------------------------------------------

    def opened(self, stream: str) -> OpenedWal | None:
        """A stream's WAL, up to where it is durable; None where there is none."""
        files = StreamFiles(self._root, stream)
        # Before the WAL: what the ledger knows is in it by then.
        known_seq = 0 if stream in self._open else self._known_seq(files)
        try:
            while True:
                writer = self._open.get(stream)
                if writer is not None:
                    with writer.gate:
                        if writer.held is not None:
                            file = self._disk.open(files.wal, read_only=True)
                            _check_own(files, file, writer.held)
                            return OpenedWal(file, writer.held.end, writer.held.end, 0, (writer, writer.generation))
                file = self._disk.open(files.wal, read_only=True)
                writer = self._open.get(stream)
                if writer is None or writer.held is None:
                    break
                file.close()  # Somebody has begun to write to it meanwhile, and knows how much of it is durable.
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            size = file.size()
            if size and file.read_at(size - 1, 1) != b"\n":
                for end in (size, size - 1):
                    if last_entry(stream, file, end) is not None and file.read_at(end - 1, 1) != b"\n":
                        # The last entry has no newline, or something else in its place. It is read as if it had one.
                        file, size = File(EndedDescriptor(file, end), files.wal), end
                        break
            return OpenedWal(file, extent(stream, file, file.size(), lambda: known_seq), size, known_seq, None)
        except BaseException:
            file.close()
            raise

    def _known_seq(self, files: StreamFiles) -> int:
        ledger = read_ledger(self._disk, files)
        return 0 if ledger is None else ledger.last_seq

    def end_of(self, stream: str, token: object) -> int | None:
        """Where a WAL that was opened before ends now; None where it must be opened again."""
        writer = self._open.get(stream)
        if writer is None or token is None:
            return None
        with writer.gate:
            if writer.held is None or token != (writer, writer.generation):
                return None
            return writer.held.end
