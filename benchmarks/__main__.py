"""`python -m benchmarks`: measure, print ratios and aims, explain what was missed, draw it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console

from benchmarks import append, checked_reads, growth, replay, rundir, sessions
from benchmarks.case import Case
from benchmarks.measure import Result, measure
from benchmarks.plot import save_plot
from benchmarks.profiles import profile
from benchmarks.report import as_data, machine_facts, print_aims, print_facts, print_profile, print_table

budget_s = 6.0
budget_quick_s = 1.0
plot_default = Path("benchmarks/results/benchmarks.png")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    quick = options.quick
    every = [*append.cases(), *replay.cases(), *checked_reads.cases(), *growth.cases(quick), *rundir.cases(quick)]
    every += sessions.cases(quick)
    chosen = [case for case in every if _wanted(case.name, options.only, {case.name for case in every})]
    if not chosen:
        print("No case is called so. There are: " + ", ".join(case.name for case in every), file=sys.stderr)
        return 2
    # In the current directory, because /tmp is in memory on many machines, where an fsync costs nothing.
    with TemporaryDirectory(prefix=".benchmarks-", dir=Path.cwd()) as directory:
        _run(chosen, options, Path(directory))
    return 0


def _wanted(name: str, only: Sequence[str] | None, names: set[str]) -> bool:
    """A whole name means that case alone; a part of names means all that hold it."""
    return not only or any(name == part if part in names else part in name for part in only)


def _run(chosen: Sequence[Case], options: argparse.Namespace, root: Path) -> None:
    # Off a terminal nothing says how wide the reader's is; a table that is cut off would be no table.
    console = Console() if sys.stdout.isatty() else Console(width=140, no_color=True, highlight=False)
    progress = Console(stderr=True)
    facts = machine_facts(root)
    print_facts(console, facts)
    results: list[Result] = []
    for number, case in enumerate(chosen, 1):
        progress.print(f"{number}/{len(chosen)} {case.name}", style="dim", highlight=False)
        results.append(measure(case, root, options.seconds or (budget_quick_s if options.quick else budget_s)))
    print_table(console, results)
    print_aims(console, results)
    for result in results:
        if result.missed:
            print_profile(console, result, profile(result.case.ours, root))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(as_data(facts, results)), indent=2) + b"\n")
    # A part of the cases does not replace the picture of all of them, unless somebody asks for it.
    if plot := options.plot or (None if options.only else plot_default):
        save_plot(results, facts, plot)
        progress.print(f"plot: {plot}", highlight=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="less time per case, a small store instead of the full one"
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="one case, or all whose names hold this; may be repeated"
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="time for each case, instead of the mode's own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help=f"default: {plot_default}, without --only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
