"""Which records of another log are new to a WAL, and whether they fit what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from itertools import takewhile

from runstate.errors import Truncated
from runstate.logs.adoption import key_taken, new_records
from runstate.logs.log import Record
from runstate.logs.wal.files import StreamFiles
from runstate.logs.wal.held import Held
from runstate.logs.wal.reading import View
from runstate.storage.disk import Disk


def records_to_adopt(disk: Disk, files: StreamFiles, held: Held, records: Sequence[Record]) -> list[Record]:
    """
    Raises:
        SequenceConflict: the stream holds something else at one of their places, or under one of their keys.
    """
    stored: list[Record] = []
    if held.file is not None and records[0].seq <= held.last_seq:
        with closing(disk.open(files.wal, read_only=True)) as file, suppress(Truncated):
            view = View(disk, files, file, held.end)
            stored = list(takewhile(lambda r: r.seq <= records[-1].seq, view.records(records[0].seq - 1)))
    new = new_records(files.stream, records, held.last_seq, stored)
    for record in new:
        if record.key in held.keys or record.key in held.old_keys:
            raise key_taken(record, held.last_seq)
    return new
