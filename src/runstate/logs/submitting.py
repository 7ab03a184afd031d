"""An optional ability of a log: to take an append and return at once. Many share one flush, without a thread each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from runstate.errors import RunstateError
from runstate.logs.bulk import Answer, Batch
from runstate.logs.group_commit import GroupCommit
from runstate.logs.handle import Handle
from runstate.logs.log import AppendResult, EventLog
from runstate.models.model import Draft, check_file_stream


@runtime_checkable
class SubmittingLog(Protocol):
    """A log that shares flushes among appends that no thread waits for."""

    def submit(
        self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None
    ) -> Future[list[AppendResult]]:
        """Append without waiting. The future gets what `append` would return or raise, once the append is durable.

        Appends under way at once are ordered by nothing but `expected_seq`, like those of several threads. A future
        that is cancelled before its flush begins is not written. `close` writes what was submitted before. Callbacks
        run in a thread of the log, and must not wait for another future.

        Raises:
            LogClosed, and whatever `append` raises before it looks at the stream: nothing was submitted.
        """
        ...


def submit(
    log: EventLog, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None
) -> Future[list[AppendResult]]:
    """Append without waiting. To a log that cannot do that, append now: its future is done on return."""
    if isinstance(log, SubmittingLog):
        return log.submit(stream, drafts, expected_seq=expected_seq)
    future: Future[list[AppendResult]] = Future()
    try:
        future.set_result(log.append(stream, drafts, expected_seq=expected_seq))
    except RunstateError as error:
        future.set_exception(error)
    return future


class Append:
    """One caller's append: what it asks for, and what came of it."""

    __slots__ = ("answer", "drafts", "expected_seq", "stream")

    def __init__(self, stream: str, drafts: Sequence[Draft], expected_seq: int | None) -> None:
        self.stream, self.drafts, self.expected_seq = stream, drafts, expected_seq
        self.answer: Answer = []

    def result(self) -> list[AppendResult]:
        if isinstance(self.answer, RunstateError):
            raise self.answer
        return self.answer


class StreamwiseLog(Handle, ABC):
    """A log whose streams are flushed each by itself. Appends that are submitted share the flushes of their streams."""

    def __init__(self) -> None:
        super().__init__()
        self._submitted = GroupCommit(self._append_submitted, Append.result, name=f"runstate-{type(self).__name__}")

    def append(self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None) -> list[AppendResult]:
        check_file_stream(stream)
        self._check_open()
        append = Append(stream, drafts, expected_seq)
        if drafts:
            (append.answer,) = self._append_to(stream, [append])
        return append.result()

    def append_many(self, batches: Sequence[Batch]) -> list[Answer]:
        self._check_open()
        return self._submitted.run_all([Append(stream, drafts, None) for stream, drafts in batches])

    def submit(
        self, stream: str, drafts: Sequence[Draft], *, expected_seq: int | None = None
    ) -> Future[list[AppendResult]]:
        check_file_stream(stream)
        self._check_open()
        return self._submitted.submit(Append(stream, tuple(drafts), expected_seq))

    @abstractmethod
    def _append_to(self, stream: str, appends: list[Append]) -> Sequence[Answer]:
        """Append to one stream, in one flush if possible. What it raises is the answer to all of these appends."""

    def _append_submitted(self, appends: list[Append]) -> None:
        streams: dict[str, list[Append]] = {}
        for append in appends:
            if append.drafts:
                streams.setdefault(append.stream, []).append(append)
        for stream, group in streams.items():
            try:
                check_file_stream(stream)
                answers = self._append_to(stream, group)
            except RunstateError as error:
                answers = [error.again() for _ in group]
            for append, answer in zip(group, answers, strict=True):
                append.answer = answer

    def _finish(self) -> None:
        self._submitted.close()
