"""What a command of ours answers, prints and says, for tests that run it in their own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.out.split("\n") if line]


Cli = Callable[..., Outcome]
