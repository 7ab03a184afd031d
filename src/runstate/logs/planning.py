"""The append rule that all logs share: which drafts are new, which are retries, and which are refused.

While a log holds the lock on a stream, it reads the last seq, tenant and model, plans the append here, and writes what
is new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from runstate.errors import LogFailed, RunstateError, TenantMismatch
from runstate.logs.log import AppendResult, Record, check_expected
from runstate.logs.stream_models import model_after, shared_model
from runstate.logs.tombstones import Tombstone, check_not_deleted
from runstate.models.model import Draft


class Stored(Protocol):
    """The event that a key stands for: a record, or the part of one that a retry is answered with."""

    @property
    def event_id(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def persisted_at(self) -> str: ...
    @property
    def body(self) -> bytes:
        """Empty where the content is gone, and a retry cannot be compared with it."""
        ...


Find = Callable[[str], Stored | None]
Render = Callable[[str, int, str, Draft, bytes | None], Record]
"""Makes the record of a draft, given its stream, seq, time and the line before it."""


class StreamPlan:
    """Where a stream stands, and what a group of appends adds to it."""

    __slots__ = ("find", "last_seq", "model", "new", "previous", "stream", "tenant", "tombstone")

    def __init__(
        self,
        stream: str,
        last_seq: int = 0,
        tenant: str = "",
        model: str = "",
        *,
        find: Find,
        previous: bytes | None = None,
        tombstone: Tombstone | None = None,
    ) -> None:
        self.stream, self.last_seq, self.tenant, self.model = stream, last_seq, tenant, model
        self.find = find
        """Finds what the stream holds under a key, before this group."""
        self.previous = previous
        """The last line, where a draft is chained to it."""
        self.tombstone = tombstone
        self.new: dict[str, Record] = {}
        """By key, in order: what is to be written."""

    def add(
        self, drafts: Sequence[Draft], expected_seq: int | None, persisted_at: str, render: Render | None = None
    ) -> list[AppendResult]:
        """Plan an append after those planned before it, all of it or nothing.

        Raises:
            ModelMismatch, StreamDeleted, TenantMismatch, SequenceConflict: as `EventLog.append`.
            LogFailed: a draft cannot be rendered.
        """
        model = model_after(self.stream, self.model, shared_model(self.stream, drafts), self.last_seq)
        check_not_deleted(self.tombstone, self.last_seq, drafts)
        render = render or render_record
        new: dict[str, Record] = {}
        results: list[AppendResult] = []
        seq, previous = self.last_seq, self.previous
        tenant = self.tenant if seq or not drafts else drafts[0].tenant
        for draft in drafts:
            first = new.get(draft.key) or self.new.get(draft.key) or self.find(draft.key)
            if first is not None:
                results.append(first_result(draft, first))
                continue
            if not new:
                check_expected(self.stream, seq, expected_seq)
            if draft.tenant != tenant:
                check_tenant(self.stream, tenant, draft)
            seq += 1
            try:
                record = render(self.stream, seq, persisted_at, draft, previous)
            except RunstateError:
                raise
            except Exception as error:
                # A draft that cannot be rendered fails its own append, not the group.
                raise LogFailed(f"It cannot be written: {error!r}") from error
            new[draft.key], previous = record, record.body
            results.append(AppendResult(record.event_id, seq, record.persisted_at))
        if new:
            self.last_seq, self.previous, self.tenant, self.model = seq, previous, tenant, model
            self.new.update(new)
        return results


def render_record(stream: str, seq: int, persisted_at: str, draft: Draft, previous: bytes | None) -> Record:
    body = draft.render(seq, persisted_at, previous)
    return Record(
        stream, seq, draft.event_id, draft.type, draft.key, draft.tenant, draft.emitted_at, persisted_at, body
    )


def first_result(draft: Draft, first: Stored) -> AppendResult:
    """The answer to a retry."""
    is_other = bool(first.body) and not draft.same_content(first.body)
    return AppendResult(first.event_id, first.seq, first.persisted_at, True, False, is_other)


def check_tenant(stream: str, tenant: str, draft: Draft) -> None:
    """A stream belongs to the tenant of its first event. If that has none, as in contract v1, any tenant may append.

    Raises:
        TenantMismatch: the draft is of another tenant.
    """
    if tenant and draft.tenant and draft.tenant != tenant:
        raise TenantMismatch(
            f"The stream {stream[:80]!r} belongs to the tenant {tenant[:80]!r}, not to {draft.tenant[:80]!r}. Use "
            "another stream id: they are shared by all tenants of a log",
            stream=stream,
            given=draft.tenant,
        )
