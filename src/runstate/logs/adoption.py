"""What every log asks of records that it is to adopt: that they are a stretch of one stream, and fit what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runstate.errors import SequenceConflict
from runstate.logs.log import Record


def check_records(stream: str, records: Sequence[Record]) -> None:
    """
    Raises:
        ValueError: they are not of that one stream, ascending, from seq 1 on.
    """
    last = 0
    for record in records:
        if record.stream != stream:
            raise ValueError(f"a record of the stream {record.stream[:80]!r} cannot be adopted into {stream!r}")
        if record.seq <= last:
            raise ValueError(f"records must ascend by seq, from 1 on; seq {record.seq} stands after {last}")
        last = record.seq


def new_records(stream: str, records: Sequence[Record], last_seq: int, held: Iterable[Record]) -> list[Record]:
    """The records that a stream at `last_seq` does not hold yet. `held` is what it holds, at their places at least.

    That none of their keys is in the stream is left to the log: it knows best how to look them up.

    Raises:
        SequenceConflict: it holds something else at one of these places, or two of the new ones have one key.
    """
    at = {record.seq: record for record in held}
    for record in records:
        if record.seq <= last_seq and at.get(record.seq) != record:
            there = "another event" if record.seq in at else "no event"
            raise _conflict(f"The stream {stream!r} holds {there} at seq {record.seq}", record, last_seq)
    new = [record for record in records if record.seq > last_seq]
    keys: set[str] = set()
    for record in new:
        if record.key in keys:
            raise key_taken(record, last_seq)
        keys.add(record.key)
    return new


def key_taken(record: Record, last_seq: int) -> SequenceConflict:
    """The error for a record whose key the stream holds at another place."""
    return _conflict(
        f"The stream {record.stream!r} holds another event under the key {record.key[:80]!r} of seq {record.seq}",
        record,
        last_seq,
    )


def _conflict(message: str, record: Record, last_seq: int) -> SequenceConflict:
    return SequenceConflict(
        f"{message}; nothing was adopted", stream=record.stream, seq=record.seq, actual_seq=last_seq
    )
