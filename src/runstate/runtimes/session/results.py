"""Errors as data: what an operation on sessions gives back instead of raising.

Inside, a refusal is an exception like everywhere else, so that it cannot be overlooked on its way up. At the boundary
`answered` turns it into a `Failed`. Only mistakes in a program, such as an argument of a wrong type, are still raised.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar

import msgspec

from runstate.errors import RunstateError

P = ParamSpec("P")
T = TypeVar("T")


class Ok(msgspec.Struct, Generic[T], frozen=True, tag="ok", tag_field="result"):
    """It was done, or was done before; `value` is the outcome."""

    value: T


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed", tag_field="result"):
    """It was refused, and nothing was written."""

    code: str
    message: str
    retryable: bool
    """Whether the same request, unchanged, may succeed later."""
    details: dict[str, Any] = {}


class Refused(RunstateError):
    """The operation was refused."""

    code = "session.refused"

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message, **failed.details)
        # A refusal that came as data keeps the code and the kind that it had.
        self.code, self.retryable = failed.code, failed.retryable  # type: ignore[misc]


def failed(error: RunstateError) -> Failed:
    return Failed(code=error.code, message=str(error), retryable=error.retryable, details=error.details)


def answered(operation: Callable[P, T]) -> Callable[P, Ok[T] | Failed]:
    """The same operation, its refusals as data."""

    @wraps(operation)
    def answer(*args: P.args, **kwargs: P.kwargs) -> Ok[T] | Failed:
        try:
            return Ok(operation(*args, **kwargs))
        except RunstateError as error:
            return failed(error)

    return answer


def unwrap(result: Ok[T] | Failed) -> T:
    """The outcome, for scripts and commands that have nothing better to do with a refusal than to stop.

    Raises:
        Refused: it failed, with the code and the details of the failure.
    """
    if isinstance(result, Failed):
        raise Refused(result)
    return result.value
