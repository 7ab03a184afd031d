"""What all classes of the kit share: the fixtures, and the mark for tests of an optional capability."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ClassVar, TypeVar, cast

import pytest

from runstate.conformance.opener import Opener
from runstate.errors import Unsupported
from runstate.logs.log import Capability, EventLog

F = TypeVar("F", bound=Callable[..., None])


class LogKit:
    """The root of every class in the kit. A log's test class gives it the fixture `opener`."""

    proves: ClassVar[Capability | None] = None
    """The capability that a class of the kit is there for; None: what every log promises."""
    share: ClassVar[float] = 1.0
    """How much of their usual work long tests do, on a log where every append is a journey."""

    def some(self, usual: int) -> int:
        return max(3, round(usual * self.share))

    @pytest.fixture
    def opener(self) -> Opener:
        pytest.fail("Give your test class a fixture `opener` that returns runstate.conformance.Opener(…)")

    @pytest.fixture(autouse=True)
    def _nothing_left_open(self, opener: Opener) -> Iterator[None]:
        yield
        opener.close()

    @pytest.fixture
    def log(self, opener: Opener) -> EventLog:
        return opener()


def needs(*capabilities: Capability) -> Callable[[F], F]:
    """The test needs these capabilities. On a log that declares less, the same test must end in a refusal.

    So nothing is skipped: a log that imitates what it does not declare fails, and so does one whose
    declaration was forgotten on the day the capability came.
    """

    def mark(test: F) -> F:
        @wraps(test)
        def tried(self: Any, log: EventLog, *fixtures: Any, **named: Any) -> None:
            if log.capabilities >= set(capabilities):
                test(self, log, *fixtures, **named)
                return
            with pytest.raises(Unsupported):
                test(self, log, *fixtures, **named)

        return cast(F, tried)

    return mark
