"""What a person reads after a run: the machine, the table, the aims; and the same as JSON."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.case import show_seconds
from benchmarks.measure import Result, Spread, Timing

_page = bytes(4096)


def machine_facts(root: Path) -> dict[str, str]:
    """What the figures depend on."""
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "msgspec": msgspec.__version__,
        "file system": _file_system(root),
        "fsync median": show_seconds(_fsync_median_s(root)),
    }


def _fsync_median_s(root: Path) -> float:
    """One page at the end of a file, made durable: the floor under every single append."""
    times = []
    with TemporaryFile(dir=root, buffering=0) as file:
        for _ in range(200):
            start = time.perf_counter()
            file.write(_page)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    return median(times)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()


def _file_system(root: Path) -> str:
    """The type of the innermost mount that holds `root`."""
    mounts = Path("/proc/mounts")
    found = ("", "unknown")
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, point, kind, *_ = line.split(" ")
        if root.resolve().is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found[1]


def print_facts(console: Console, facts: dict[str, str]) -> None:
    console.print("  ".join(f"[bold]{name}[/] {value}" for name, value in facts.items()), soft_wrap=True)


def print_table(console: Console, results: Sequence[Result]) -> None:
    table = Table(caption="ratio: speed per event against the limit beside it, median (p10 to p90) over rounds")
    for heading in ("case", "ours, per call", "events/s", "limit", "limit, per call", "ratio"):
        table.add_column(heading, justify="left" if heading in ("case", "limit") else "right", no_wrap=True)
    for result in results:
        for index, (limit, ratio) in enumerate(zip(result.limits, result.ratios, strict=True)):
            first = index == 0
            table.add_row(
                result.case.name if first else "",
                show_seconds(result.ours.seconds.median) if first else "",
                f"{result.ours.rate:,.0f}" if first else "",
                limit.side,
                show_seconds(limit.seconds.median),
                show_ratio(ratio),
            )
    console.print(table)


def print_aims(console: Console, results: Sequence[Result]) -> None:
    table = Table("case", "aim", "measured", "verdict")
    for result in results:
        if (aim := result.case.aim) is not None:
            verdict = "[red]MISS[/]" if result.missed else "[green]PASS[/]"
            table.add_row(result.case.name, str(aim), aim.show(result.measured), verdict)
    if table.row_count:
        console.print(table)


def print_profile(console: Console, result: Result, spent: Sequence[tuple[str, float, str]]) -> None:
    console.print(f"\n[bold]{result.case.name}[/] missed its aim; own time per call, while profiled:")
    for thread, seconds, name in spent:
        console.print(
            f"  {thread:6}  {show_seconds(seconds):>8}  {name}", highlight=False, markup=False, soft_wrap=True
        )


def show_ratio(ratio: Spread) -> str:
    return f"{ratio.median:.2f}x ({ratio.p10:.2f} to {ratio.p90:.2f})"


def as_data(facts: dict[str, str], results: Sequence[Result]) -> dict[str, Any]:
    """The run as JSON can say it. Seconds are per call, ratios per event."""
    return {"machine": facts, "cases": [_result_data(result) for result in results]}


def _result_data(result: Result) -> dict[str, Any]:
    aim = result.case.aim
    return {
        "name": result.case.name,
        "ours": _timing_data(result.ours),
        "limits": [
            {**_timing_data(limit), "ratio": asdict(ratio)}
            for limit, ratio in zip(result.limits, result.ratios, strict=True)
        ],
        "aim": None if aim is None else {"kind": aim.kind, "bound": aim.bound, "measured": result.measured},
        "missed": result.missed,
    }


def _timing_data(timing: Timing) -> dict[str, Any]:
    return {"name": timing.side, "eventsPerCall": timing.events, "seconds": asdict(timing.seconds), "rate": timing.rate}
