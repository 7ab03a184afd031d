"""How much of the machine this process may use: a container's limits count, not what the host has."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

_cgroup = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Processors that this process may keep busy, at least 1."""
    pinned = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, period = _quota()
    return max(1, min(pinned, math.ceil(quota / period)) if quota and period else pinned)


def usable_memory_bytes() -> int:
    """Memory that this process and its children may fill."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_number(_cgroup / "memory.max"), _number(_cgroup / "memory" / "memory.limit_in_bytes"))
    return min([physical, *(limit for limit in limits if limit)])


def _quota() -> tuple[int, int]:
    """Processor time in each period, as cgroups of version 2 or 1 put it; zeros where there is no limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_cgroup / "cpu.max").read_text().split()
        return int(quota), int(period)
    return _number(_cgroup / "cpu" / "cpu.cfs_quota_us"), _number(_cgroup / "cpu" / "cpu.cfs_period_us")


def _number(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return max(0, int(path.read_text()))
    return 0
