"""daemon: serve a daemon's directory, look at its state and its events, keep its log small and whole."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import msgspec
import typer

from runstate.cli import integrity
from runstate.cli.event_rows import record_writer
from runstate.cli.options import AsJson, Limit
from runstate.cli.output import words, write_json, write_line
from runstate.cli.tables import write_table
from runstate.errors import AppendOutcomeUnknown, LogNotFound, RunstateError, Truncated, shown_url
from runstate.logs.log import Record
from runstate.logs.registry import open_log
from runstate.models.daemon import DAEMON, MaterializedState, scoped
from runstate.models.daemon.events import default_daemon
from runstate.runtimes.daemon import Client, Daemon, Server, socket_name
from runstate.runtimes.daemon.daemon import (
    checkpoint_every_s_default,
    failures_max_default,
    lease_s_default,
    url_of,
)
from runstate.runtimes.daemon.journal import load_state
from runstate.runtimes.daemon.wire import Event as ToldEvent
from runstate.runtimes.daemon.wire import told
from runstate.runtimes.daemon.work import stats_of

app = typer.Typer(name="daemon", help="A daemon: state in memory, every change durable first.", no_args_is_help=True)

Place = Annotated[
    str, typer.Argument(help="The daemon's directory, or the URL of its log.", show_default=False, metavar="DIR")
]
Name = Annotated[str, typer.Option("--name", help="Which daemon of the directory.")]


@app.command("serve")
def serve(
    place: Place,
    socket: Annotated[
        Path | None,
        typer.Option(
            "--socket",
            help="Where to listen. Default: in the directory, or beside the SQLite file.",
            show_default=False,
        ),
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option("--checkpoint-every", min=0.001, help="Seconds between checkpoints.")
    ] = checkpoint_every_s_default,
    failures_max: Annotated[
        int, typer.Option("--failures-max", min=1, help="An item that has failed so often is dead.")
    ] = failures_max_default,
    lease: Annotated[
        float, typer.Option("--lease", min=0.001, help="Seconds that a worker without a connection may be silent.")
    ] = lease_s_default,
    name: Name = default_daemon,
) -> None:
    """Run a daemon that other processes share through a socket, until it is interrupted or terminated."""
    over, lost = Event(), list[RunstateError]()

    def give_up(error: RunstateError) -> None:
        lost.append(error)
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    options: dict[str, Any] = {"checkpoint_every_s": checkpoint_every, "failures_max": failures_max, "lease_s": lease}
    path = socket or socket_of(place, name)
    if path is None:
        raise typer.BadParameter("the log is in no directory of its own; say where to listen, with --socket")
    with Daemon.open(place, name=name, on_lost=give_up, **options) as daemon:
        with Server(daemon, path) as server:
            words.print(f"serving {shown_url(place)} at seq {daemon.seq}, listening at {server.path}")
            over.wait()
            if not lost:
                words.print("closing: workers are stopped, and what they hold is given back")
        if not lost:
            daemon.dismiss()  # Only now: nobody can start another one.
    if lost:
        # To go on would be to refuse everything. Whoever starts it again gets it recovered.
        raise AppendOutcomeUnknown(f"The log takes nothing more: {lost[0]}. Start the daemon again") from lost[0]


@app.command("state")
def state(place: Place, name: Name = default_daemon, as_json: AsJson = False) -> None:
    """Show everything the daemon knows. --json prints the state's exact bytes."""
    found, _ = seen(place, name)
    if as_json:
        write_line(DAEMON.dump(found))
        return
    _show(found)


@app.command("tail")
def tail(
    place: Place,
    after: Annotated[
        int | None, typer.Option("--after", min=0, help="Events behind this seq. Default: the last ones.")
    ] = None,
    limit: Limit = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until interrupted.")] = False,
    name: Name = default_daemon,
    as_json: AsJson = False,
) -> None:
    """Print the daemon's events in order, as rows on a terminal, else as JSON records."""
    write_records = record_writer(lambda stream: DAEMON, as_json, with_stream=False)
    with _log_of(place, name) as read, _ended_by_interrupt() if follow else nullcontext():
        seq = max(0, read.seq - limit) if after is None else after
        left: int | None = None if follow else limit
        while left is None or left > 0:
            try:
                page = read.events(after_seq=seq, limit=min(1000, left or 1000))
            except Truncated as truncated:
                seq = int(truncated.details["first_seq"]) - 1
                continue
            if page:
                write_records([_record(name, event) for event in page])
                seq = page[-1].seq
            left = None if left is None else left - len(page)
            if not page and left is not None:
                return
            if not page:
                sys.stdout.flush()
                time.sleep(0.1)


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Ctrl-C is the normal end of the block. What the terminal shows for it gets a line of its own."""
    try:
        yield
    except KeyboardInterrupt:
        words.print()


@app.command("checkpoint")
def checkpoint(place: Place, name: Name = default_daemon, as_json: AsJson = False) -> None:
    """Keep the state on file, and drop the events that are no longer needed. Writers go on meanwhile."""
    with reached(place, name) as daemon:
        _done(daemon.checkpoint(), "the state is kept as of seq", as_json)


@app.command("compact")
def compact(place: Place, name: Name = default_daemon, as_json: AsJson = False) -> None:
    """Drop the events that the last checkpoint made needless, without a new one."""
    with reached(place, name) as daemon:
        _done(daemon.compact(), "the log begins with the checkpoint at seq", as_json)


@app.command("verify")
def verify(place: Place, as_json: AsJson = False) -> None:
    """Look for damage in the daemon's log and snapshots. Exit code 1 when there is some."""
    integrity.verify(url_of(place), None, DAEMON.name, as_json)


@app.command("repair")
def repair(
    place: Place,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    salvage: integrity.Salvage = False,
    as_json: AsJson = False,
) -> None:
    """Make a damaged log writable again: what is intact stays, and the damaged file is kept beside it."""
    integrity.repair(url_of(place), None, dry_run, salvage, DAEMON.name, as_json)


# --- who answers -----------------------------------------------------------------------------------------------------


def socket_of(place: str, name: str) -> Path | None:
    """Where the daemon of a place listens: in its directory, or beside its file. None: its log has neither."""
    scheme, _, rest = url_of(place).partition(":")
    path = rest.removeprefix("//").partition("?")[0]
    if scheme == "sqlite":
        return Path(path + socket_name(name))
    return Path(path) / socket_name(name) if scheme == "wal" else None


@contextmanager
def reached(place: str, name: str, *, create: bool = False) -> Iterator[Daemon | Client]:
    """The daemon at a place: the one that serves it, or one of our own for the moment. If it was made, that is said."""
    client = _connected(place, name)
    if client is not None:
        with client:
            yield client
    else:
        with _opened(place, name, create) as daemon:
            yield daemon


def _opened(place: str, name: str, create: bool) -> Daemon:
    is_new = create and not _has_log(place)
    daemon = Daemon.open(place, create=create, name=name, checkpoint_every_s=None)
    if is_new:
        words.print(f"made {shown_url(place)}: nothing was there")  # It may be a slip of the pen.
    return daemon


def _has_log(place: str) -> bool:
    try:
        open_log(url_of(place), create=False).close()
    except LogNotFound:
        return False
    return True


def seen(place: str, name: str) -> tuple[MaterializedState, int]:
    """The state at a place and its seq: as its daemon tells it, or as the log does. Nothing is locked or changed."""
    with _log_of(place, name) as read:
        return read.state, read.seq


class _Read:
    """What can be read of a daemon that is not there, from its log alone."""

    def __init__(self, place: str, name: str) -> None:
        self._name = name
        self._log = open_log(url_of(place), create=False)
        info = self._log.stream(name)
        self.seq = 0 if info is None else info.last_seq

    @property
    def state(self) -> MaterializedState:
        """Loaded when it is asked for, which sets `seq` to its own: events can be read where there is no state."""
        state, self.seq = load_state(self._log, self._name)
        return state

    def events(self, *, after_seq: int, limit: int) -> list[ToldEvent]:
        return [told(record) for record in self._log.read(self._name, after_seq=after_seq, limit=limit)]

    def close(self) -> None:
        self._log.close()


@contextmanager
def _log_of(place: str, name: str) -> Iterator[Client | _Read]:
    read = _connected(place, name) or _Read(place, name)
    try:
        yield read
    finally:
        read.close()


def _connected(place: str, name: str) -> Client | None:
    path = socket_of(place, name)
    if path is None or not os.path.exists(path):  # False too where the directory cannot be read.
        return None
    try:
        return Client(path)
    except LogNotFound:
        return None  # Left behind by a daemon that was killed.


# --- how it is shown -------------------------------------------------------------------------------------------------


def _show(found: MaterializedState) -> None:
    if found.pipelines:
        write_table(
            ("pipeline", "kind", "step", "status", "agent", "error"),
            (
                (
                    scoped(p.namespace, p.id),
                    p.kind,
                    p.current.name,
                    p.current.status,
                    p.current.agent_id,
                    p.current.error,
                )
                for p in found.pipelines.values()
            ),
        )
    if found.workers:
        write_table(
            ("worker", "queue", "concurrency", "dispatched"),
            ((key, w.queue_name, w.concurrency, len(w.dispatched)) for key, w in sorted(found.workers.items())),
        )
    show_stats(found)
    words.print(
        f"{len(found.pipelines)} pipelines, {len(found.sessions)} sessions, {len(found.workspaces)} workspaces, "
        f"{len(found.runbooks)} runbooks, {len(found.workers)} workers, {len(found.queue_items)} queues"
    )


def show_stats(found: MaterializedState) -> None:
    rows = stats_of(found)
    if rows:
        write_table(rows[0].__struct_fields__, (msgspec.structs.astuple(row) for row in rows))


def _record(name: str, event: ToldEvent) -> Record:
    return Record(name, event.seq, event.event_id, event.type, event.event_id, "", "", event.persisted_at, event.event)


def _done(seq: int, what: str, as_json: bool) -> None:
    if as_json:
        write_json({"seq": seq})
    else:
        words.print(f"{what} {seq}" if seq else "nothing was done: nothing has happened yet")
