"""Numbered pieces of JSON, out of which the snapshots of many runs are put together by one gather."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runstate.models.engine.column_events import (
    Bools,
    Events,
    Ints,
    closes,
    failed,
    kinds,
    run_failed,
    run_started,
    skipped,
)
from runstate.models.engine.column_payloads import read_payloads

between = b'],"artifacts":['
"""What stands between the items of `artifactRefs` and those of `artifacts`."""

_looks: Bools = closes | (np.arange(len(kinds) + 1) == run_started)
"""By kind: whether the fold looks at the payload."""


class Texts:
    """The events' times, the ids of their steps, what their payloads say, and what is added. Each is in here once."""

    def __init__(self, events: Events) -> None:
        self._times = events.time.cast(pa.large_binary())
        self._step_ids = pc.binary_join_element_wise(events.step_ids, '"}', "").cast(pa.large_binary())
        self.step_base = len(self._times)
        self._base = self.step_base + len(self._step_ids)
        self._added: list[bytes] = []
        self.empty, self.nothing = self.add(b""), self.add(between)
        self.artifacts: Ints = np.full(len(self._times), self.empty)
        """Per row, the number of its artifacts, without their brackets."""
        self.refs: Ints = np.full(len(self._times), self.empty)
        """Per row, the number of its artifact references, without their brackets."""
        self.both: Ints = np.full(len(self._times), self.nothing)
        """Per row, the number of its references and artifacts, with what stands between them."""
        self.note: Ints = np.zeros(len(self._times), np.int64)
        """Per row, the number among `notes` of its error, skip reason or engine's reference; the first is none."""
        self.notes = [b"null"]
        self._read_payloads(events)

    def add(self, text: bytes) -> int:
        """A new piece's number."""
        self._added.append(text)
        return self._base + len(self._added) - 1

    def added(self, number: int) -> bytes:
        return self._added[number - self._base]

    def gather(self, numbers: Ints) -> tuple[memoryview, Ints]:
        """The pieces one after the other, and where each of them begins."""
        pool = pa.concat_arrays([self._times, self._step_ids, pa.array(self._added, pa.large_binary())])
        taken = pc.take(pool, pa.array(numbers.ravel()), boundscheck=False)
        _, places, data = taken.buffers()
        return memoryview(data or b""), np.frombuffer(places, np.int64)[: len(taken) + 1]

    def _read_payloads(self, events: Events) -> None:
        present = events.payload.is_valid().to_numpy(zero_copy_only=False)
        rows = events.ordinary(np.flatnonzero(present & _looks[events.kind]))
        coded = events.payload.take(pa.array(rows)).dictionary_encode()
        codes = coded.indices.to_numpy()
        pieces, notes, refused = list[tuple[int, int, int]](), list[tuple[int, int, int]](), list[int]()
        known: dict[bytes | None, int] = {None: 0}
        for code, said in enumerate(read_payloads(coded.dictionary.to_pylist())):
            if said is None:
                refused.append(code)
                pieces.append((self.empty, self.empty, self.nothing))
                notes.append((0, 0, 0))
                continue
            pieces.append(self._add_items(said.refs, said.artifacts))
            error, reason, run_ref = (known.setdefault(x, len(known)) for x in (said.error, said.reason, said.run_ref))
            notes.append((error, reason, run_ref))
        events.refuse(rows[np.isin(codes, refused)])
        self.notes = [note or b"null" for note in known]
        kind, taken = events.kind[rows], np.array(notes, np.int64).reshape(-1, 3)[codes]
        chosen = [(kind == failed) | (kind == run_failed), kind == skipped, kind == run_started]
        self.note[rows] = np.select(chosen, list(taken.T), 0)
        ends = closes[kind]
        items = np.array(pieces, np.int64).reshape(-1, 3)[codes[ends]]
        self.refs[rows[ends]], self.artifacts[rows[ends]], self.both[rows[ends]] = items.T

    def _add_items(self, refs: bytes, artifacts: bytes) -> tuple[int, int, int]:
        if not refs and not artifacts:
            return self.empty, self.empty, self.nothing
        return (
            self.add(refs) if refs else self.empty,
            self.add(artifacts) if artifacts else self.empty,
            self.add(refs + between + artifacts),
        )
