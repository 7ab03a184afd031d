"""Errors as data: what an operation on sessions gives back instead of raising.

Inside, a refusal is an exception like everywhere else, so that it cannot be overlooked on its way up. At the boundary
`answered` turns it into a `Failed`. Whatever an argument holds, even a value of a wrong type, is refused as data too:
it may have come from outside. Only a call that Python itself refuses, such as one without an argument, is raised.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints

import msgspec

from runstate.errors import RunstateError
from runstate.runtimes.session.refusals import InvalidRequest

P = ParamSpec("P")
T = TypeVar("T")

_made_up = {"run_id": "run", "output_id": "out", "gap_id": "gap", "attempt_id": "attempt"}
"""Arguments that an operation is given an id for, if its caller names none; and what such an id begins with."""


class Ok(msgspec.Struct, Generic[T], frozen=True, tag="ok", tag_field="result"):
    """It was done, or was done before; `value` is the outcome."""

    value: T


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed", tag_field="result"):
    """It was refused, and nothing was written. Only in two cases something may have been.

    With `log.outcome_unknown` the log itself cannot tell. With `keyring.…` and `blob.…`, and with `log.busy` of a
    keyring, the tokens of a new place may have become impossible to make at the very moment when it was stored. In
    either case the same request with the ids that `details` names is the same operation, and is done once.
    """

    code: str
    message: str
    retryable: bool
    """Whether the same request, with the ids in `details`, may succeed later."""
    details: dict[str, Any] = {}
    """With every id that was made up for the operation, under the name of its argument."""


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
    """The same operation, its refusals as data.

    Its arguments are read as their annotations say. An id that it can do without is made up if it is not given, and a
    failure tells it: whoever tries again with it does the same thing again.
    """
    called, shapes = signature(operation), get_type_hints(operation, include_extras=True)
    optional = [n for n, parameter in called.parameters.items() if n in _made_up and parameter.default is None]

    @wraps(operation)
    def answer(*args: P.args, **kwargs: P.kwargs) -> Ok[T] | Failed:
        given = called.bind(*args, **kwargs)
        made = {name: fresh_id(_made_up[name]) for name in optional if given.arguments.get(name) is None}
        try:
            for name, value in given.arguments.items():
                if name in shapes:
                    given.arguments[name] = taken(name, value, shapes[name])
            given.arguments.update(made)
            with telling(**made):
                return Ok(operation(*given.args, **given.kwargs))
        except RunstateError as error:
            return failed(error)

    return answer


def taken(name: str, value: Any, shape: Any) -> Any:
    """An argument, if it is of the type that it should be. What a struct holds is for others to look at.

    Raises:
        InvalidRequest: it is of another.
    """
    try:
        return msgspec.convert(value, shape, builtin_types=(bytes,))
    except (msgspec.ValidationError, UnicodeError) as error:
        raise InvalidRequest(f"{name} is refused: {error}", argument=name) from error


@contextmanager
def telling(**made: str) -> Iterator[None]:
    """A refusal in this block tells the ids that were made up before it."""
    try:
        yield
    except RunstateError as error:
        error.details.update(made)
        raise


def fresh_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


def unwrap(result: Ok[T] | Failed) -> T:
    """The outcome, for scripts and commands that have nothing better to do with a refusal than to stop.

    Raises:
        Refused: it failed, with the code and the details of the failure.
    """
    if isinstance(result, Failed):
        raise Refused(result)
    return result.value
