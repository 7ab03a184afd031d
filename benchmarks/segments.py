"""`python -m benchmarks.segments`: appends to a session beside the same flushes without Runstate, merges, reading.

The limit of an append is its protocol alone: a temporary file, flush, rename, flush of the directory, a line at the end
of another file, flush; and one line and flush more where a plan pins a blob. How many flushes a plan takes is counted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, islice, repeat
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console

from benchmarks.case import Case, Side, Thunk
from benchmarks.measure import measure
from benchmarks.report import as_data, machine_facts, print_facts, print_table
from benchmarks.workload import append_new
from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.logs.log import BlobRef
from runstate.logs.segments import SegmentsLog
from runstate.logs.segments.compaction import Limits
from runstate.models.canonical import digest
from runstate.models.model import Draft
from runstate.models.session import SESSION

session = "bench"
blob = b'{"step":"build","schemaVersion":1}'
ref = BlobRef(f"sha256:{digest(blob)}")
read_events = 100_000
read_events_quick = 5_000
persisted_at = "2026-11-15T09:30:00.000Z"
budget_s, budget_quick_s = 6.0, 0.5


def history() -> Iterator[Draft]:
    """What an agent's session writes: outputs of one node, each a few hundred bytes."""
    for number in count():
        output = {"outputId": f"out-{number}", "notes": f"Step {number} done. " + "x" * 120}
        event: dict[str, object] = {
            "eventId": f"00000000-0000-4000-8000-{number:012d}",
            "sessionId": session,
            "kind": "node_output_appended",
            "dedupeKey": f"node_output_appended:out-{number}",
            "runId": "run-1",
            "nodeId": "node-1",
            "data": {"output": output},
        }
        yield _draft(event)


def _draft(event: dict[str, object]) -> Draft:
    # The model's own draft of one event shows the shape; making 100,000 of them is not what is measured here.
    return type(_shape)(
        event_id=str(event["eventId"]),
        type=str(event["kind"]),
        key=str(event["dedupeKey"]),
        tenant="",
        emitted_at="",
        prefix=_shape.prefix,
        tail=msgspec.json.encode(event)[1:],
        volatile=_shape.volatile,
    )


_created = {"eventId": "00000000-0000-4000-8000-000000000000", "sessionId": session, "kind": "session_created"}
_shape = SESSION.draft(SESSION.parse(msgspec.json.encode(_created | {"dedupeKey": "session_created", "data": {}})))[1]


# --- appends ----------------------------------------------------------------------------------------------------------


@contextmanager
def log_appends(directory: Path, size: int) -> Iterator[Iterator[Thunk]]:
    events = history()
    with SegmentsLog(directory / "log") as log:
        log.append(session, list(islice(events, 1)))
        yield (partial(append_new, log.append, session, plan) for plan in _plans(events, size))


@contextmanager
def raw_appends(directory: Path, size: int) -> Iterator[Iterator[Thunk]]:
    """The same files and flushes, and nothing else."""
    (directory / "events").mkdir()
    manifest = os.open(directory / "manifest.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    folder = os.open(directory / "events", os.O_RDONLY | os.O_DIRECTORY)
    try:
        numbered = enumerate(_plans(history(), size))
        yield (partial(_raw_append, directory, manifest, folder, number, _text(plan)) for number, plan in numbered)
    finally:
        os.close(manifest)
        os.close(folder)


def _raw_append(directory: Path, manifest: int, folder: int, number: int, data: bytes) -> None:
    temp = directory / f"events/{number}.tmp"
    file = os.open(temp, os.O_CREAT | os.O_WRONLY | os.O_EXCL)
    os.write(file, data)
    os.fdatasync(file)
    os.close(file)
    os.rename(temp, directory / f"events/{number}")
    os.fsync(folder)
    os.write(manifest, b"x" * 220 + b"\n")
    os.fdatasync(manifest)


@contextmanager
def one_flush(directory: Path, size: int) -> Iterator[Iterator[Thunk]]:
    """The same lines at the end of one file: what the protocol costs beside a plain log."""
    file = os.open(directory / "raw.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        yield (partial(_write, file, _text(plan)) for plan in _plans(history(), size))
    finally:
        os.close(file)


def _write(file: int, data: bytes) -> None:
    os.write(file, data)
    os.fdatasync(file)


def _plans(events: Iterator[Draft], size: int) -> Iterator[list[Draft]]:
    while True:
        yield list(islice(events, size))


def _text(plan: Sequence[Draft]) -> bytes:
    return b"".join([draft.render(1, persisted_at) + b"\n" for draft in plan])


# --- merging and reading ---------------------------------------------------------------------------------------------


@contextmanager
def merges(directory: Path, segments: int) -> Iterator[Iterator[Thunk]]:
    """Merge so many segments of one event each into one."""
    events = history()
    with SegmentsLog(directory / "log", limits=Limits(segment_events_max=segments)) as log:

        def thunks() -> Iterator[Thunk]:
            while True:
                for _ in range(segments):
                    log.append(session, list(islice(events, 1)))
                yield partial(log.compact, session)
                log.delete_stream(session)

        yield thunks()


@contextmanager
def raw_merges(directory: Path, segments: int) -> Iterator[Iterator[Thunk]]:
    """One file with the same lines, one line in a manifest, and the old files removed."""
    (directory / "events").mkdir()
    manifest = os.open(directory / "manifest.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    folder = os.open(directory / "events", os.O_RDONLY | os.O_DIRECTORY)

    def merge(old: list[Path], number: int) -> None:
        _raw_append(directory, manifest, folder, number, b"".join([path.read_bytes() for path in old]))
        for path in old:
            path.unlink()

    def thunks() -> Iterator[Thunk]:
        for number in count():
            old = [directory / f"events/old-{n}" for n in range(segments)]
            for path, plan in zip(old, _plans(history(), 1), strict=False):
                path.write_bytes(_text(plan))
            yield partial(merge, old, number)

    try:
        yield thunks()
    finally:
        os.close(manifest)
        os.close(folder)


@contextmanager
def reads(directory: Path, events: int, way: str) -> Iterator[Iterator[Thunk]]:
    """A whole session from a log that was just opened."""
    root = _filled(directory, events)

    def read() -> int:
        with SegmentsLog(root) as log:
            if way == "lines":
                return sum(1 for _ in log.lines(session))
            return sum(len(log.read(session, after_seq=after, limit=1000)) for after in range(0, events, 1000))

    if read() != events:
        raise RuntimeError("The benchmark does not read what it wrote")
    yield repeat(read)


@contextmanager
def raw_reads(directory: Path, events: int) -> Iterator[Iterator[Thunk]]:
    """The same files, read and split into lines."""
    folder = _filled(directory, events) / "sessions" / session / "events"
    yield repeat(lambda: sum(len(path.read_bytes().split(b"\n")) - 1 for path in folder.iterdir()))


def _filled(directory: Path, events: int) -> Path:
    """A session in plans of a hundred events, merged; built once, and only read after that."""
    root = directory.parent / f"segments-{events}"
    if not root.exists():
        with SegmentsLog(root) as log:
            for plan in islice(_plans(history(), 100), events // 100):
                log.append(session, plan)
            log.compact(session)
    return root


def cases(quick: bool) -> list[Case]:
    events = read_events_quick if quick else read_events
    appends = [
        Case(
            f"segments-append-{size}",
            Side(f"log.append of {size}", partial(log_appends, size=size), size),
            (
                Side("the same files and flushes", partial(raw_appends, size=size), size),
                Side("one file, one flush", partial(one_flush, size=size), size),
            ),
        )
        for size in (1, 10, 100, 1000)
    ]
    batching = Case(
        "segments-plan-of-100",
        Side("100 events in one plan", partial(log_appends, size=100), 100),
        (Side("100 plans of one", partial(log_appends, size=1), 1),),
    )
    return [
        *appends,
        batching,
        Case(
            "segments-merge-64",
            Side("compact of 64", partial(merges, segments=64), 64),
            (Side("the same files", partial(raw_merges, segments=64), 64),),
        ),
        Case(
            "segments-lines",
            Side(f"lines of {events:,}", partial(reads, events=events, way="lines"), events),
            (Side("read and split", partial(raw_reads, events=events), events),),
        ),
        Case(
            "segments-read",
            Side(f"read of {events:,}", partial(reads, events=events, way="read"), events),
            (Side("read and split", partial(raw_reads, events=events), events),),
        ),
    ]


# --- flushes ---------------------------------------------------------------------------------------------------------


def flushes() -> dict[str, int]:
    """How many flushes one append takes, counted on a disk in memory: of files and of directories together."""
    disk = SimulatedDisk()
    log = SegmentsLog(PurePosixPath("/log"), disk=disk)
    events = history()
    found: dict[str, int] = {}

    def counted(name: str, thunk: Thunk) -> None:
        before = Counter(disk.calls)
        thunk()
        found[name] = sum(disk.calls[call] - before[call] for call in ("sync", "sync_directory"))

    counted("the first plan of a session", lambda: log.append(session, [next(events)]))
    counted("a plan of 1 event", lambda: log.append(session, [next(events)]))
    counted("a plan of 1,000 events", lambda: log.append(session, list(islice(events, 1000))))
    log.put_blob(blob)
    counted("a plan that pins a blob", lambda: log.append(session, [_referring(next(events))]))
    counted("a merge", lambda: log.compact(session))
    return found


def _referring(draft: Draft) -> Draft:
    return msgspec.structs.replace(draft, tail=draft.tail.replace(b"Step", ref.encode() + b'","x":"', 1))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.segments", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less time per case, a small session to read")
    parser.add_argument("--only", metavar="NAME", help="all cases whose names hold this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    chosen = [case for case in cases(options.quick) if not options.only or options.only in case.name]
    if not chosen:
        print("No case is called so. There are: " + ", ".join(c.name for c in cases(True)), file=sys.stderr)
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=140, no_color=True, highlight=False)
    with TemporaryDirectory(prefix=".benchmarks-", dir=Path.cwd()) as directory:
        facts = machine_facts(Path(directory))
        print_facts(console, facts)
        counted = flushes()
        console.print(
            "flushes: " + ", ".join(f"{number} for {name}" for name, number in counted.items()), soft_wrap=True
        )
        results = []
        for number, case in enumerate(chosen, 1):
            print(f"{number}/{len(chosen)} {case.name}", file=sys.stderr)
            results.append(measure(case, Path(directory), budget_quick_s if options.quick else budget_s))
        print_table(console, results)
    if options.json:
        options.json.write_bytes(
            msgspec.json.format(msgspec.json.encode(as_data(facts, results) | {"flushes": counted}), indent=2) + b"\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
