"""A reader that goes through a stream entry by entry, as the seed's does: what is corrupt it skips, with a warning."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from runstate.logs.log import Record
from runstate.logs.wal.entries import NOT_UTF8, Damage, read_entry
from runstate.logs.wal.findings import damaged, logger
from runstate.logs.wal.lines import entry_before, numbered_lines
from runstate.storage.disk import File

_telling_bytes = 64
"""By so many bytes at its beginning, which tell the seq of its first entry, a WAL is known again."""
Opening = Callable[[], tuple[File, int, int, int, object] | None]
"""Opens a stream's WAL: the file, where it ends for a reader, and something that changes with another file."""
Looking = Callable[[object], int | None]
"""Where a file ends now; None where it is no longer the stream's WAL."""


class WalReader:
    """Entries in order, each given once. How far they were processed, the caller says and a snapshot keeps.

    For one thread. Unlike `read`, it goes on behind a corrupt line; what is no UTF-8 ends it there.
    """

    def __init__(self, stream: str, processed_seq: int, opening: Opening, looking: Looking) -> None:
        self.stream, self.processed_seq = stream, processed_seq
        self._opening, self._looking = opening, looking
        self._seq = processed_seq
        self._file: File | None = None
        self._lines: Iterator[tuple[int, bytes]] = iter(())
        self._offset = 0
        """Where the next line begins."""
        self._beginning = b""
        self._token: object = None

    def next_unprocessed(self) -> Record | None:
        """The next entry that is flushed and not marked as processed; None where there is none yet."""
        has_looked = False
        while True:
            found = next(self._lines, None)
            if found is None:
                # Once: what was passed over already may be met again.
                if has_looked or not self._go_on():
                    return None
                has_looked = True
                continue
            try:
                entry = read_entry(self.stream, found[1], None)
            except Damage as damage:
                if damage.code == NOT_UTF8:
                    self._lines = iter(())
                    return None
                logger.warning("Skipped: %s", damaged(self.stream, damage, self._seq + 1, self._offset))
                self._offset = found[0] + len(found[1]) + 1
                continue
            self._offset = found[0] + len(found[1]) + 1
            if entry.seq > max(self._seq, self.processed_seq):
                self._seq = entry.seq
                return entry.record(self.stream)

    def mark_processed(self, seq: int) -> None:
        """Everything up to `seq` is processed and not given again. To go back changes nothing."""
        self.processed_seq = max(self.processed_seq, seq)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file, self._lines = None, iter(())

    def _go_on(self) -> bool:
        """Look whether the file has grown, or another one has taken its place."""
        if self._file is not None and (end := self._looking(self._token)) is not None:
            self._lines = numbered_lines(self._file, self._offset, end)
            return True
        self.close()
        opened = self._opening()
        if opened is None:
            return False
        self._file, end, _, _, self._token = opened
        beginning = self._file.read_at(0, _telling_bytes)
        if beginning != self._beginning or end < self._offset:
            self._beginning, self._offset = beginning, entry_before(self.stream, self._file, end, self._seq)
        self._lines = numbered_lines(self._file, self._offset, end)
        return True
