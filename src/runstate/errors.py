"""Every error that Runstate raises: a stable code, whether a retry can help, details as data.

A class's docstring is its default message, so the words that a user reads stand in one place. What to do
about it is part of the message. Only surfaces (the command line, HTTP) turn a code into a number of theirs.

Secrets are removed here, and nowhere else: `redact` for any text, `shown_url` for a URL. Every error passes its message
and its details through `redact`, so no place that raises, logs or stores one has to think of it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, ClassVar, Self
from urllib.parse import unquote

_hidden = "…"
_scheme = r"\b[a-z][a-z0-9+.-]{0,30}://"
# Between quotes a URL may hold spaces; elsewhere a space ends it.
_url = re.compile(
    rf"""(?<='){_scheme}(?:\\.|[^'\\\n])*|(?<="){_scheme}(?:\\.|[^"\\\n])*|{_scheme}\S*""", re.IGNORECASE | re.DOTALL
)
# Up to the last @: a password may hold one. A port is not a password, even where an option holds an @.
_userinfo = re.compile(rf"({_scheme}[^\s/@:?#\[]*):(?!\d{{1,5}}(?:[?#,]|$|/[^@]*[?#])).*@", re.IGNORECASE | re.DOTALL)
# A URL that was cut before its @. HOST:PORT is what our own messages tell people to write.
_cut_userinfo = re.compile(rf"({_scheme}[^\s/@:?#\[]*):(?!\d{{1,5}}(?!\w)|(?-i:PORT)\b)[^/?#]*", re.IGNORECASE)
_secret_option = re.compile(
    # libpq's sslkey and passfile name files.
    r"(?!sslkey$|.*(?:file|path)$).*(?:pass|pwd|secret|token|credential|key|signature).*|sig",
    re.IGNORECASE | re.DOTALL,
)
_quoted = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_assignment = re.compile(
    r"((?:password|passwd|passphrase|pwd|secret|token|credential|(?:access|account|api|private)[._-]?key)"
    rf"(?![\w.-]{{0,64}}(?:file|path)\b)[\w.-]{{0,64}}(?:\s*=\s*|\\?[\"']\s*:\s*))(?:{_quoted}|[^\s&]+)",
    re.IGNORECASE | re.DOTALL,
)
_authorization = re.compile(
    r"""(\bauthorization["']?\s*[:=]\s*["']?(?:(?:basic|bearer|digest|token)\s+)?)[\w.~+/=:-]+"""
    r"|(\bbearer\s+)[\w.~+/=:-]{16,}",
    re.IGNORECASE,
)


@lru_cache(maxsize=256)
def shown_url(url: str) -> str:
    """A URL without its secrets: the password, and options that are named like secrets, such as `?password=`.

    This is what is shown, stored and compared. The same log with another password, or with none because libpq takes it
    from the environment, has the same shown URL. A URL without secrets is returned unchanged.
    """
    found = _userinfo.sub(r"\1@", url)
    if found == url:
        found = _cut_userinfo.sub(rf"\1:{_hidden}", url)
    # Spark Connect separates its options by semicolons; elsewhere one may be part of a password.
    first, *rest = re.split("([?&;])" if url.startswith("sc:") else "([?&])", found)
    options = [(mark, option) for mark, option in zip(rest[::2], rest[1::2], strict=True) if not _is_secret(option)]
    if not options:
        return first if rest else found
    return first + rest[0] + options[0][1] + "".join(mark + option for mark, option in options[1:])


def _is_secret(option: str) -> bool:
    name, equals, _ = option.partition("=")
    return bool(equals) and _secret_option.fullmatch(unquote(name)) is not None


def redact(text: str) -> str:
    """The text without secrets: those of the URLs in it, `password=…` as libpq writes it, and HTTP authorization."""
    found = _url.sub(lambda url: shown_url(url[0]), text)
    found = _assignment.sub(rf"\1{_hidden}", found)
    return _authorization.sub(lambda header: f"{header[1] or header[2]}{_hidden}", found)


def _redact_all(value: Any) -> Any:
    """Details without secrets, whatever they are made of."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {name: _redact_all(each) for name, each in value.items()}
    return type(value)(map(_redact_all, value)) if type(value) in (list, tuple, set) else value


class RunstateError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "runstate.error"
    retryable: ClassVar[bool] = False
    """Whether the same request, unchanged, may succeed later."""

    def __init__(self, message: str | None = None, **details: Any) -> None:
        super().__init__(redact(message or (type(self).__doc__ or "").strip()))
        self.details: dict[str, Any] = _redact_all(details)

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


class EventNotFound(RunstateError):
    """The stream holds no event of that seq."""

    code = "event.not_found"


class StreamDeleted(RunstateError):
    """The stream was deleted by retention, and new events may not begin it again. `archive` says where it is now."""

    code = "stream.deleted"


class InvalidUrl(RunstateError):
    """The URL names no log that is installed."""

    code = "url.invalid"


class UnknownModel(RunstateError):
    """The name belongs to no model that is installed."""

    code = "model.unknown"


class TenantMismatch(RunstateError):
    """The stream belongs to another tenant than the event; nothing was written."""

    code = "tenant.mismatch"


class ModelMismatch(RunstateError):
    """The data holds events of another model than the one that was given."""

    code = "model.mismatch"


class ModelFailed(RunstateError):
    """The model cannot fold a stream; mend the model, or read the stream through the one that wrote it."""

    code = "model.failed"


class InvalidSealKey(RunstateError):
    """The key file cannot be used to seal a log; create one with `runstate seal --new-key FILE`."""

    code = "seal.invalid_key"


class InvalidSeals(RunstateError):
    """The file of seals was changed or cut, or belongs to another key."""

    code = "seal.invalid"


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


class NotWritable(RunstateError):
    """The log cannot be written by this user; nothing was changed. It can still be read."""

    code = "log.not_writable"


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
