"""Every error that Runstate raises: a stable code, whether a retry can help, details as data.

A class's docstring is its default message, so the words that a user reads stand in one place. What to do
about it is part of the message. Only surfaces (the command line, HTTP) turn a code into a number of theirs.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class RunstateError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "runstate.error"
    retryable: ClassVar[bool] = False
    """Whether the same request, unchanged, may succeed later."""

    def __init__(self, message: str | None = None, **details: Any) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        self.details = details

    def again(self) -> Self:
        """The same error, to be raised a second time: one object must not be raised in two threads."""
        return type(self)(str(self), **self.details)

    def as_data(self) -> dict[str, Any]:
        """The error as JSON would carry it."""
        return {
            "code": self.code,
            "message": str(self),
            "retryable": self.retryable,
            "details": self.details,
        }


# --- what a caller handed over -------------------------------------------------------------------------


class InvalidJson(RunstateError):
    """The text is not JSON that every reader understands alike (RFC 7493)."""

    code = "json.invalid"


class InvalidEvent(RunstateError):
    """The event breaks its schema."""

    code = "event.invalid"


class EventTooLarge(RunstateError):
    """The event is larger than the store takes; keep the payload as a blob and append its reference."""

    code = "event.too_large"


class KeyMismatch(RunstateError):
    """The idempotency key is not the one that its fields give; derive it with the producer's helper."""

    code = "event.key_mismatch"


class InvalidTransition(RunstateError):
    """The event is not possible in the state that the run is in; nothing was written."""

    code = "event.invalid_transition"


class InvalidStream(RunstateError):
    """The stream id is refused."""

    code = "stream.invalid"


class StreamNotFound(RunstateError):
    """There is no such stream in this log."""

    code = "stream.not_found"


class InvalidUrl(RunstateError):
    """The URL names no log that is installed."""

    code = "url.invalid"


class UnknownModel(RunstateError):
    """The name belongs to no model that is installed."""

    code = "model.unknown"


class ModelFailed(RunstateError):
    """The model cannot fold a stream; mend the model, or read the stream through the one that wrote it."""

    code = "model.failed"


class InvalidArgument(RunstateError, ValueError):
    """An argument has the wrong type or is out of range."""

    code = "argument.invalid"


# --- what a log answers --------------------------------------------------------------------------------


class InvalidPosition(RunstateError):
    """The position is none that this log has handed out."""

    code = "log.invalid_position"


class SequenceConflict(RunstateError):
    """The stream is not where the caller thought it was; read it again and decide again."""

    code = "log.sequence_conflict"


class AppendOutcomeUnknown(RunstateError):
    """The append may or may not be stored; send the same keys again to find out."""

    code = "log.outcome_unknown"
    retryable = True


class LogBusy(RunstateError):
    """Another writer holds the log; try again."""

    code = "log.busy"
    retryable = True


class LogFull(RunstateError):
    """The disk is full; nothing was written. Free some space and append again."""

    code = "log.full"
    retryable = True


class LogClosed(RunstateError):
    """The log was closed, or a failed write made it unusable; open it again."""

    code = "log.closed"


class LogFailed(RunstateError):
    """The log's storage refused the operation."""

    code = "log.failed"


class LogDamaged(RunstateError):
    """The log holds something that no append wrote; `runstate verify` says what and where."""

    code = "log.damaged"


class LogNotFound(RunstateError):
    """There is no log at that place."""

    code = "log.not_found"


class NotALog(RunstateError):
    """The file is there, but it is no log of this kind; it was left untouched."""

    code = "log.not_a_log"


class LogTooNew(RunstateError):
    """A newer Runstate wrote this log; upgrade Runstate to open it. It was left untouched."""

    code = "log.too_new"


class SnapshotTooNew(RunstateError):
    """A newer Runstate wrote this snapshot; upgrade Runstate to go on with it. It was left untouched."""

    code = "snapshot.too_new"


class Truncated(RunstateError):
    """The log no longer holds events that far back; start from its snapshot."""

    code = "log.truncated"


class Unsupported(RunstateError):
    """This log does not offer the operation."""

    code = "log.unsupported"


class BlobNotFound(RunstateError):
    """The log holds no blob of that digest."""

    code = "blob.not_found"
