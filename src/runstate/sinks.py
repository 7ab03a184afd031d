"""Where projected snapshots go. A sink keeps the newest row of every stream, and never takes one back.

A row says how far its stream was projected, so that whoever projects it next goes on from there: after a restart, in
another process, or in a task of Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from runstate.logs.log import Capability, EventLog, StoredSnapshot
from runstate.logs.saving import save_snapshots
from runstate.models.canonical import digest


class Projected(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A snapshot, and what its projector knows about it."""

    stream: str
    model: str
    version: int
    last_event_seq: int
    """The watermark: the last sequence number in the state."""
    applied: int
    """How many events are in the state. Fewer than the watermark: there are gaps below it."""
    observed: int
    """The highest sequence number seen."""
    born: str
    """When the stream's first event was stored: another one is another stream, begun after a deletion."""
    status: str
    """The model's word for the state."""
    stale: bool = False
    projected_at: str = ""
    body: bytes = b""

    @property
    def rank(self) -> tuple[int, int]:
        """Of two rows by one version of a model, of one stream, the one that knows more is the newer."""
        return self.last_event_seq, self.applied


class Sink(Protocol):
    def load(self, stream: str) -> Projected | None:
        """The row of a stream, by whichever version of the model."""
        ...

    def keep(self, rows: Sequence[Projected]) -> None:
        """Put rows in place of what is there. Once this returns they are as durable as the sink can be.

        A row that is older than the one that is there is passed over, and so is one of a stream that is gone.
        """
        ...

    def drop(self, stream: str) -> None:
        """Forget a stream that was deleted."""
        ...

    def switch(self) -> None:
        """Make what was projected aside what readers see, and go on there. May be done again if it was interrupted."""
        ...


class StoreSink:
    """The snapshots of the log itself, where `Store.get_snapshot` finds them.

    What the projector knows stands beside each, as the snapshot of a model of its own: `<model>.projection`. A
    sink that is `aside` keeps both under other names until it is switched over.
    """

    def __init__(self, log: EventLog, model: str, *, aside: str = "") -> None:
        self._log, self._name, self._aside = log, model, aside

    @property
    def _model(self) -> str:
        return f"{self._name}.{self._aside}" if self._aside else self._name

    def load(self, stream: str) -> Projected | None:
        state = self._log.load_snapshot(stream, self._model)
        if state is None or not state.is_intact:
            return None
        known = self._log.load_snapshot(stream, self._beside)
        if known is not None and known.is_intact and (known.version, known.seq) == (state.version, state.seq):
            with suppress(msgspec.MsgspecError):
                return msgspec.structs.replace(_rows.decode(known.body), body=state.body)
        # Somebody else has kept the state. How many events are in it nobody wrote down: none is the safe guess.
        info = self._log.stream(stream)
        return Projected(
            stream=stream,
            model=self._name,
            version=state.version,
            last_event_seq=state.seq,
            applied=0,
            observed=state.seq,
            born="" if info is None else info.first_persisted_at,
            status="",
            body=state.body,
        )

    def keep(self, rows: Sequence[Projected]) -> None:
        save_snapshots(self._log, [snapshot for row in rows for snapshot in self._snapshots(row)])

    def drop(self, stream: str) -> None:
        """The log has dropped its snapshots with the stream."""

    def switch(self) -> None:
        seen = StoreSink(self._log, self._name)
        for head in self._log.heads(versions=False):
            if (row := self.load(head.stream)) is not None:
                seen.keep([row])
        self._aside = ""

    @property
    def _beside(self) -> str:
        return f"{self._model}.projection"

    def _snapshots(self, row: Projected) -> Iterable[tuple[str, StoredSnapshot]]:
        known = msgspec.json.encode(msgspec.structs.replace(row, body=b""))
        for model, body in ((self._model, row.body), (self._beside, known)):
            yield row.stream, StoredSnapshot(model, row.version, row.last_event_seq, digest(body), body, row.born)


def is_stale(log: EventLog, model: str, stream: str) -> bool:
    """Whether the projector that keeps its rows in this log has marked a stream STALE, and not yet resynced it."""
    if Capability.SNAPSHOTS not in log.capabilities:
        return False
    known = log.load_snapshot(stream, f"{model}.projection")
    if known is None or not known.is_intact:
        return False
    with suppress(msgspec.MsgspecError):
        return _rows.decode(known.body).stale
    return False


class TellingSink:
    """Tells every new row to somebody, and remembers the newest while the process lives."""

    def __init__(self, tell: Callable[[Projected], None]) -> None:
        self._tell = tell
        self._newest: dict[str, Projected] = {}

    def load(self, stream: str) -> Projected | None:
        return self._newest.get(stream)

    def keep(self, rows: Sequence[Projected]) -> None:
        for row in rows:
            before = self._newest.get(row.stream)
            if before is not None and before.born == row.born and row.rank < before.rank:
                continue
            self._newest[row.stream] = row
            self._tell(row)

    def drop(self, stream: str) -> None:
        self._newest.pop(stream, None)

    def switch(self) -> None:
        """There is nothing to switch: it tells rows as they come."""


_rows = msgspec.json.Decoder(Projected)
