"""DynamoDB's errors in our words, and which of them a second try may mend."""

from __future__ import annotations

from enum import Enum
from typing import Any

from botocore import exceptions as driver

from runstate.errors import EventTooLarge, LogFailed, LogNotFound, RunstateError

_busy_codes = {
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "ReplicatedWriteConflictException",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "TransactionConflictException",
    "TransactionInProgressException",
}
_busy_reasons = {"None", "ProvisionedThroughputExceeded", "ThrottlingError", "TransactionConflict"}
_denied_codes = {
    "AccessDeniedException",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "UnrecognizedClientException",
}
_no_credentials = (
    driver.NoCredentialsError,
    driver.PartialCredentialsError,
    driver.CredentialRetrievalError,
    driver.TokenRetrievalError,
    driver.ProfileNotFound,
)


class Trouble(Enum):
    """What is to be thought of a request that failed."""

    BUSY = "nothing was done; later it may be"
    UNREACHED = "it was never sent"
    LOST = "it was sent, and may have been done"
    REFUSED = "a condition did not hold; nothing was done"
    FAILED = "nothing was done, and a second try would not help"


class Refused(Exception):
    """A condition did not hold. `failed` says for each action whether it was its own; `was_lost` whether an earlier
    try of the same request may have gone through."""

    def __init__(self, failed: list[bool], was_lost: bool) -> None:
        super().__init__(failed)
        self.failed, self.was_lost = failed, was_lost


def trouble(error: Exception) -> Trouble:
    if isinstance(error, driver.ClientError):
        return _answered(error)
    if isinstance(error, driver.SSLError):
        return Trouble.FAILED
    if isinstance(error, driver.EndpointConnectionError | driver.ConnectTimeoutError | driver.ProxyConnectionError):
        return Trouble.UNREACHED
    if isinstance(error, driver.HTTPClientError) or type(error).__module__ == "botocore.parsers":
        return Trouble.LOST
    return Trouble.FAILED


def _answered(error: driver.ClientError) -> Trouble:
    code = code_of(error)
    if code == "ConditionalCheckFailedException":
        return Trouble.REFUSED
    if code == "TransactionCanceledException":
        reasons = {reason.get("Code") or "None" for reason in reasons_of(error)}
        if "ConditionalCheckFailed" in reasons:
            return Trouble.REFUSED
        return Trouble.BUSY if reasons <= _busy_reasons else Trouble.FAILED
    if code in _busy_codes:
        return Trouble.BUSY
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return Trouble.LOST if status >= 500 else Trouble.FAILED


def code_of(error: BaseException | None) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, driver.ClientError) else ""


def reasons_of(error: Exception) -> list[dict[str, Any]]:
    """Why a transaction was cancelled: one reason for each of its actions, in their order."""
    found: list[dict[str, Any]] = getattr(error, "response", {}).get("CancellationReasons", [])
    return found


def translate(error: Exception, table: str) -> RunstateError:
    """An error that no second try would mend."""
    code, words = code_of(error), str(error)
    if isinstance(error, _no_credentials):
        return LogFailed(
            f"There are no usable AWS credentials ({words}); set a profile, AWS_ACCESS_KEY_ID …, or a role"
        )
    if code in _denied_codes:
        return LogFailed(
            f"AWS does not let us in ({words}); docs/formats/dynamodb.md lists the privileges that a log needs"
        )
    if code == "ResourceNotFoundException":
        return LogNotFound(f"The table {table} is not there, or not yet", table=table)
    if "size" in words and (code == "ValidationException" or "ValidationError" in words):
        return EventTooLarge(f"DynamoDB cannot keep that much at once: {words}")
    return LogFailed(f"DynamoDB refused: {words}")
