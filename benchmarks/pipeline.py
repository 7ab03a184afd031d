"""`python -m benchmarks.pipeline`: replay of one fleet by Spark, by one Python process, and the limits of a scan.

Every figure is taken in one run over the same data, a side's calls in alternation with those of its limits. Spark is
warm: its session is up and each job has run once on a small fleet before anything is timed, since the first one costs
seconds. Nothing was read from a cold disk either: what was written a moment ago is in the page cache, for all sides.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.case import Aim, Case, show_seconds
from benchmarks.fleet import Fleet, check_fleet, made_fleet
from benchmarks.measure import Result, measure_rounds, open_side
from benchmarks.pipeline_growth import (
    Growth,
    full_ingests,
    full_replays,
    grown_ingests,
    grown_replays,
    table_of,
)
from benchmarks.pipeline_memory import Peak, data_per_heap, heap_mib, measure_memory
from benchmarks.pipeline_sides import (
    Bench,
    column_reads,
    counts,
    decodes,
    one_process,
    plain_processes,
    snapshots,
    two_processes,
)
from benchmarks.plot import save_plot
from benchmarks.report import as_data, machine_facts, print_aims, print_facts, print_table, show_ratio
from runstate.pipeline.spark.session import spark_session

events_default = 5_000_000
events_quick = 200_000
events_full = 20_000_000
events_warm = 20_000
rounds_default = 3
plot_default = Path("benchmarks/results/pipeline.png")
sources = {"rundir": ("replay-rundir", 1.8), "framed": ("replay-ndjson", 1.8), "sqlite": ("replay-sqlite", None)}
names = ("replay-rundir", "replay-ndjson", "replay-sqlite", "replay-table", "linear", "incremental", "memory")


class Run:
    """One run of the benchmark: what was asked for, and what has come of it so far."""

    def __init__(self, options: argparse.Namespace, bench: Bench, progress: Console) -> None:
        self.options, self.bench, self.progress = options, bench, progress
        self.results: list[Result] = []
        self.peaks: list[Peak] = []
        self.memory_bytes = 0
        self.keeps = bool(os.environ.get("RUNSTATE_BENCH_DIR"))

    def wants(self, *wanted: str) -> bool:
        only = self.options.only or names
        return any(name in only for name in wanted)

    def say(self, text: str) -> None:
        self.progress.print(text, style="dim", highlight=False, soft_wrap=True)

    def fleet(self, name: str, events: int) -> Fleet:
        start = time.perf_counter()
        made = made_fleet(self.bench.root, name, events)
        took_s = time.perf_counter() - start
        self.say(f"{name}: {made.runs:,} runs, {made.events:,} events, {made.bytes() >> 20:,} MiB in {took_s:.1f} s")
        check_fleet(made)
        return made

    def measure(self, case: Case) -> None:
        self.say(case.name)
        result = measure_rounds(case, self.bench.root, self.options.rounds)
        beside = ", ".join(
            f"{show_ratio(ratio)} {limit.side}" for limit, ratio in zip(result.limits, result.ratios, strict=True)
        )
        self.say(f"  {show_seconds(result.ours.seconds.median)}: {beside}")
        self.results.append(result)

    # --- the cases ---------------------------------------------------------------------------------------------

    def replay_logs(self) -> None:
        for name, (case_name, bound) in sources.items():
            if self.wants(case_name):
                made = self.fleet(name, self.options.events)
                for case in self._log_cases(case_name, made, bound):
                    self.measure(case)
                if name != "sqlite":
                    self.let_go(made)

    def _log_cases(self, name: str, made: Fleet, bound: float | None) -> Iterator[Case]:
        """The view, whose rows cross into the JVM, and the job, whose tasks write them where they are folded."""
        bench, model = self.bench, made.format.model
        plain = one_process(bench, made), two_processes(bench, made)
        limits = (*plain, decodes(bench, made), counts(bench, made.url, made.events, model))
        aim = None if bound is None else Aim("ratio", bound)
        yield Case(name, snapshots(bench, made.url, made.events, model), limits, aim)
        yield Case(f"{name}-job", full_replays(bench, made.url, made.events, model), plain, aim)

    def replay_table(self) -> None:
        bench, made = self.bench, self.fleet("sqlite", self.options.events)
        table = table_of(bench, made)
        url, limits = f"table:{table}", (one_process(bench, made), column_reads(bench, table, made.events))
        ours, scan = snapshots(bench, url, made.events, "engine"), counts(bench, url, made.events, "engine")
        self.measure(Case("replay-table", ours, (*limits, scan), Aim("ratio", 3)))
        self.measure(Case("replay-table-job", full_replays(bench, url, made.events, "engine"), limits, Aim("ratio", 3)))

    def linear(self) -> None:
        """Rates at the sizes beside the rate at the smallest: 1x is linear growth."""
        options = self.options
        sizes = [options.events // 5, options.events, *([events_full] if options.full else [])]
        for small, large in pairwise(sizes):
            fleets = [self.fleet("sqlite", size) for size in (small, large)]
            tables = [table_of(self.bench, made) for made in fleets]
            self.measure(self._linear_case("sqlite", fleets, [made.url for made in fleets]))
            self.measure(self._linear_case("table", fleets, [f"table:{table}" for table in tables]))
            if small != options.events:
                self.let_go(fleets[0], tables[0])

    def _linear_case(self, source: str, fleets: list[Fleet], urls: list[str]) -> Case:
        few, many = (
            snapshots(self.bench, url, made.events, "engine", f"at {made.events:,}")
            for made, url in zip(fleets, urls, strict=True)
        )
        return Case(f"linear-{source}-{fleets[1].events / 1e6:.1f}M", many, (few,), Aim("ratio", 0.8))

    def incremental(self) -> None:
        made = self.fleet("sqlite", self.options.events)
        table, growth = table_of(self.bench, made), Growth(made)
        # The fleet is about to change: no later run may take it for the one that it was.
        made.path.with_name(made.path.name + ".done").unlink()
        whole = full_ingests(self.bench, made, 1)
        self.measure(Case("incremental-ingest", grown_ingests(self.bench, growth, made, table), (whole,)))
        whole = full_replays(self.bench, f"table:{table}", 1, "engine")
        ours = grown_replays(self.bench, growth, made, table)
        self.measure(Case("incremental-replay", ours, (whole,), Aim("ratio", 20)))
        made.remove()
        shutil.rmtree(table)

    def memory(self) -> None:
        """A fleet of ten times the heap, or as much as was asked for in a quick run."""
        events, heap = self.options.events, heap_mib << 20
        made = self.fleet("sqlite", min(events, 1_000_000))
        if not self.options.quick:
            events = max(events, round(1.02 * data_per_heap * heap * made.events / made.bytes()))
        made = self.fleet("sqlite", events)
        self.memory_bytes = made.bytes()
        with TemporaryDirectory(dir=self.bench.root) as directory:
            self.say("memory")
            self.peaks = measure_memory(made.url, Path(directory))
        self.let_go(made)

    def let_go(self, made: Fleet, table: Path | None = None) -> None:
        """Make room on the disk, unless the fleets are kept for the next run."""
        if table is not None:
            shutil.rmtree(table)
        if not self.keeps:
            made.remove()


def warm_up(bench: Bench) -> None:
    """Run each job once on a small fleet."""
    for name in sources:
        made = made_fleet(bench.root, name, events_warm)
        model = made.format.model
        cases = [snapshots(bench, made.url, made.events, model), counts(bench, made.url, made.events, model)]
        cases += [full_replays(bench, made.url, 1, model)]
        if name == "sqlite":
            table = table_of(bench, made)
            url = f"table:{table}"
            cases += [snapshots(bench, url, made.events, model), full_replays(bench, url, 1, model)]
        with ExitStack() as stack:
            for side in cases:
                next(open_side(stack, side, bench.root))()


# --- reporting -------------------------------------------------------------------------------------------------


def baselines(results: Sequence[Result]) -> dict[str, float]:
    """What one Python process does with each source, in events per second."""
    rates: dict[str, list[float]] = {}
    for limit in (limit for result in results for limit in result.limits if limit.side.startswith("one process")):
        rates.setdefault(limit.side, []).append(limit.rate)
    return {side: median(found) for side, found in rates.items()}


def print_fastest(console: Console, results: Sequence[Result]) -> None:
    found = baselines(results)
    if not found:
        return
    fastest = max(found, key=lambda side: found[side])
    table = Table("case", "against", "ratio", caption="the fastest single process, whatever it reads from")
    for result in results:
        if result.case.name.startswith("replay-"):
            table.add_row(result.case.name, fastest, f"{result.ours.rate / found[fastest]:.2f}x")
    console.print(table)


def print_memory(console: Console, run: Run) -> None:
    if not run.peaks:
        return
    share = run.memory_bytes / (heap_mib << 20)
    table = Table("job", "seconds", "JVM", "largest worker", "all workers")
    table.caption = f"peak RSS; {run.memory_bytes >> 20:,} MiB of events, {share:.1f} times the heap of {heap_mib} MiB"
    for peak in run.peaks:
        sizes = (peak.jvm_bytes, peak.worker_bytes, peak.workers_bytes)
        table.add_row(peak.job, show_seconds(peak.seconds), *(f"{size >> 20:,} MiB" for size in sizes))
    console.print(table)


def report(console: Console, run: Run, facts: dict[str, str]) -> None:
    options = run.options
    if run.results:
        print_table(console, run.results)
        print_fastest(console, run.results)
        print_aims(console, run.results)
    print_memory(console, run)
    if options.json:
        data: dict[str, Any] = as_data(facts, run.results)
        data |= {"baselines": baselines(run.results), "dataBytes": run.memory_bytes, "heapMib": heap_mib}
        data["memory"] = msgspec.to_builtins(run.peaks)
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")
    if run.results and (plot := options.plot or (None if options.only else plot_default)):
        save_plot(run.results, facts, plot)
        run.say(f"plot: {plot}")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    options.events = options.events or (events_quick if options.quick else events_default)
    console = Console() if sys.stdout.isatty() else Console(width=140, no_color=True, highlight=False)
    with ExitStack() as stack:
        kept = os.environ.get("RUNSTATE_BENCH_DIR")
        root = Path(kept or stack.enter_context(TemporaryDirectory(prefix=".benchmarks-", dir=Path.cwd()))).absolute()
        root.mkdir(exist_ok=True)
        facts = machine_facts(root) | {"spark": version("pyspark"), "pyarrow": version("pyarrow")}
        facts |= {"events": f"{options.events:,}"}
        print_facts(console, facts)
        tables = Path(stack.enter_context(TemporaryDirectory(prefix="tables-", dir=root)))
        spark = stack.enter_context(spark_session(master="local[2]"))
        bench = Bench(spark, stack.enter_context(plain_processes()), root, tables)
        run = Run(options, bench, Console(stderr=True))
        try:
            warm_up(bench)
            for step in _steps(run):
                step()
        finally:
            # Also if a case has failed: those before it may have taken an hour.
            report(console, run, facts)
    return 0


def _steps(run: Run) -> Iterator[Callable[[], None]]:
    """In the order that needs least room: what only reads the SQLite fleet comes before what changes it."""
    if run.wants("replay-rundir", "replay-ndjson", "replay-sqlite"):
        yield run.replay_logs
    if run.wants("replay-table"):
        yield run.replay_table
    if run.wants("linear"):
        yield run.linear
    if run.wants("incremental"):
        yield run.incremental
    if run.wants("memory"):
        yield run.memory


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--events", type=int, metavar="N", help=f"about so many in the fleet; {events_default:,}")
    parser.add_argument("--quick", action="store_true", help=f"{events_quick:,} events: whether it works, no more")
    parser.add_argument("--full", action="store_true", help=f"linearity up to {events_full:,} events, too")
    parser.add_argument("--only", action="append", choices=names, help="some of the cases; may be repeated")
    parser.add_argument("--rounds", type=int, default=rounds_default, metavar="N", help="calls of each side")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help=f"default: {plot_default}, without --only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
