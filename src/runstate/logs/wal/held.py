"""What a writer knows of its stream, and what reading its WAL has found."""

from __future__ import annotations

from typing import NamedTuple

from runstate.logs.log import StreamInfo
from runstate.logs.wal.entries import Damage, Envelope
from runstate.logs.wal.ledger import Ledger, OldKey
from runstate.storage.disk import File


class Held:
    """What a writer knows of its stream. All of it is durable, but keys may also stand for what is on its way."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.file: File | None = None
        self.end = 0
        self.tail_seq = 0
        """Of the last entry in the WAL, or else of the archive; 0 where there is none."""
        self.events = 0 if ledger.removed is None else ledger.removed.events
        self.tenant = self.first_at = self.last_at = ""
        if (gone := ledger.removed) is not None:
            self.tenant, self.first_at, self.last_at = gone.tenant, gone.first_persisted_at, gone.last_persisted_at
        self.keys: dict[str, int] = {}
        self.old_keys: dict[str, OldKey] = {}
        self.previous: bytes | None = None
        """The last event's line."""

    @property
    def last_seq(self) -> int:
        """The last seq that was given out; the next append goes on from it."""
        return max(self.tail_seq, self.ledger.last_seq, self.ledger.floor_seq)

    @property
    def model(self) -> str:
        """The model that the stream records. The ledger may name one before the first append is stored."""
        return (self.ledger.model or "") if self.last_seq else ""

    @property
    def lost_seq(self) -> int:
        """The last seq that was given out to an entry which is gone, for the ledger."""
        return self.last_seq if self.last_seq > self.tail_seq else self.ledger.floor_seq

    def add(self, events: int, last_seq: int, ends: tuple[Envelope, Envelope], size: int) -> None:
        """Take note of entries that stand in the WAL now; `ends` are what the first and the last of them tell."""
        self.events += events
        first, last = ends
        if not self.first_at:
            self.tenant, self.first_at = first.tenant, first.persisted_at
        self.last_at, self.tail_seq = last.persisted_at, last_seq
        self.end += size

    def info(self, stream: str) -> StreamInfo | None:
        if not self.last_seq:
            return None
        return StreamInfo(stream, self.tenant, self.last_seq, self.events, self.first_at, self.last_at, self.model)


class Scan(NamedTuple):
    """What reading a WAL from its beginning has found."""

    held: Held
    seq: int
    """Of the last intact entry; 0: there is none."""
    end: int
    """Where that ends. Behind `held.end` where its append is not whole."""
    damage: Damage | None
    """What is wrong with the whole line behind it."""
