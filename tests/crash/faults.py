"""Work on a simulated disk on which one call fails, or all calls from then on, for every call that the work makes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import TypeVar, get_args

from runstate.conformance.simulated_disk import Operation, SimulatedDisk
from runstate.errors import RunstateError

T = TypeVar("T")
operations: tuple[Operation, ...] = get_args(Operation)


def every_fault(
    start: SimulatedDisk, prepare: Callable[[SimulatedDisk], T], act: Callable[[T], object], *, more_than: int = 40
) -> Iterator[tuple[str, SimulatedDisk, T]]:
    """Each disk on which a call of `act` failed, healed, with what `prepare` made of it before, when nothing failed.

    Writes come in short pieces. There must be more such disks than `more_than`.
    """
    failures = 0
    for operation in operations:
        for error, persistent in ((errno.EIO, False), (errno.ENOSPC, True)):
            for nth in count(1):
                disk = start.killed()
                disk.write_bytes_max = 97
                prepared = prepare(disk)
                before = disk.calls[operation]
                disk.fail(operation, nth=nth, error=error, persistent=persistent)
                with suppress(RunstateError):  # An error of ours, or none.
                    act(prepared)
                if disk.calls[operation] - before < nth:
                    break
                failures += 1
                disk.heal()
                yield f"{operation} {nth} {errno.errorcode[error]}", disk, prepared
    assert failures > more_than
