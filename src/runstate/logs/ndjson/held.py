"""What a writer knows of its run: every key, and where every line begins. All of it is durable."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from zlib import crc32

from runstate.logs.log import StreamInfo
from runstate.logs.ndjson.keys import KeyFile
from runstate.logs.ndjson.lines import Envelope, model_of
from runstate.logs.ndjson.reading import Mark
from runstate.storage.disk import File


class Held:
    """A run as its writer has read it: all of its lines, or those behind what a key file tells of."""

    __slots__ = ("base", "bounds", "crc", "file", "first_at", "keys", "last_at", "model", "previous", "tenant")

    def __init__(self, base: KeyFile | None = None, file: File | None = None) -> None:
        self.base, self.file = base, file
        self.crc = 0 if base is None else base.crc
        self.bounds = array("q", [0 if base is None else base.end.offset])
        """Where each line behind `base` begins, and where the last one ends. It alone tells readers how far to read."""
        self.keys: dict[str, int] = {}
        """Those of the lines behind `base`."""
        self.previous: bytes | None = None
        self.tenant = self.first_at = self.last_at = self.model = ""

    @property
    def known(self) -> int:
        """How many lines the key file tells of."""
        return 0 if self.base is None else self.base.end.seq

    @property
    def seq(self) -> int:
        return self.known + len(self.bounds) - 1

    @property
    def end(self) -> int:
        return self.bounds[-1]

    def add(self, *lines: tuple[bytes, bytes, Envelope]) -> None:
        """Take note of lines, each with the model's line in it. A reader sees all of them at once, or none."""
        seq, end, bounds = self.seq, self.end, array("q")
        for line, body, envelope in lines:
            seq, end = seq + 1, end + len(line) + 1
            bounds.append(end)
            self.keys.setdefault(envelope.key, seq)
            if seq == 1:
                self.tenant, self.first_at, self.model = envelope.tenant, envelope.persisted_at, model_of(line)
            self.last_at, self.previous = envelope.persisted_at, body
            self.crc = crc32(b"\n", crc32(line, self.crc))
        self.bounds.extend(bounds)

    def seqs_of(self, key: str) -> Iterator[int]:
        """Where the key may stand: only the event at that seq tells."""
        if (seq := self.keys.get(key)) is not None:
            yield seq
        elif self.base is not None:
            yield from self.base.seqs_of(key)

    def span(self, seq: int) -> tuple[int, int]:
        """Where a line begins, and where the next one does.

        Raises:
            LookupError: the file has changed since it was read.
        """
        if self.base is not None and self.file is not None and seq <= self.known:
            return self.base.span(self.file, seq)
        return self.bounds[seq - 1 - self.known], self.bounds[seq - self.known]

    def line(self, seq: int) -> bytes:
        start, stop = self.span(seq)
        return b"" if self.file is None else self.file.read_at(start, stop - start - 1)

    def mark(self, seq: int, file: File) -> Mark | None:
        """The mark after a line of the run's file; None where there is no such line, or the file has changed since."""
        if not 0 < seq <= self.seq:
            return None
        try:
            start, stop = self.span(seq)
        except LookupError:
            return None
        return Mark(seq, stop, start, crc32(file.read_at(start, stop - start)))

    def info(self, stream: str) -> StreamInfo | None:
        if not self.seq:
            return None
        return StreamInfo(stream, self.tenant, self.seq, self.seq, self.first_at, self.last_at, self.model)
