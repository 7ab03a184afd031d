"""run, resume, status: orchestrated runs in run directories."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Annotated, Any

import msgspec
import typer

from runstate.cli.interrupts import stop_on_signals
from runstate.cli.options import AsJson
from runstate.cli.output import counted, words, write_json
from runstate.cli.progress_display import Display, Progress, Watch
from runstate.cli.tables import write_table
from runstate.errors import LogFailed, LogNotFound, RunstateError, StreamNotFound
from runstate.models.rundir import RUNDIR, RunDirectory, RunEvent
from runstate.runtimes.orchestrator import Orchestrator, RunCancelled, RunExists, RunFailed, load_graph
from runstate.runtimes.orchestrator.artifacts import ArtifactFiles, newest_items
from runstate.runtimes.orchestrator.orchestrator import recorded_start
from runstate.runtimes.orchestrator.pool import ProcessPool
from runstate.runtimes.orchestrator.started_runs import AppNotRecorded, recall_place, record_started_run
from runstate.runtimes.orchestrator.trail import RunStore
from runstate.runtimes.telemetry import OtelTelemetry, Telemetry
from runstate.runtimes.telemetry import from_url as telemetry_from_url
from runstate.store import open as open_store

_terminal = ("COMPLETED", "FAILED", "CANCELLED")
_watch_s = 1.0
_place_chars_max = 200

RunsDirectory = Annotated[
    Path, typer.Option("--runs", help="The directory of the run directories: new, empty, or used for runs before.")
]
RunName = Annotated[str, typer.Argument(help="The run: its id, or the path of its directory.", show_default=False)]
TelemetryUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--telemetry", help="Also tell an HTTP endpoint (http://…) or OpenTelemetry (otel:). May be repeated."
    ),
]
Place = Annotated[str, typer.Argument(help="The application's graph: FILE.py:NAME.", show_default=False)]


def run(
    place: Place,
    runs: RunsDirectory = Path("runs"),
    run_id: Annotated[str | None, typer.Option("--id", help="The id of the new run. Default: a new one.")] = None,
    parameter: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="A parameter, as NAME=VALUE; VALUE may be JSON.")
    ] = None,
    telemetry: TelemetryUrls = None,
    as_json: AsJson = False,
) -> None:
    """Start a run of an application's graph, and bring it to its end. Interrupted, it is cancelled in good order."""
    run_id = run_id or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    parameters = dict(_parameter(each) for each in parameter or [])
    with ExitStack() as stack:
        orchestrator = _orchestrator(stack, place, runs, run_id, telemetry)
        words.print(f"run {run_id}")
        if not orchestrator.exists():
            _record(runs / run_id, place)
        with _a_way_on(runs, run_id):
            state = orchestrator.start(parameters)
    _report(state, as_json)


def resume(
    run_name: RunName,
    runs: RunsDirectory = Path("runs"),
    app: Annotated[
        str | None,
        typer.Option("--app", help="The graph: FILE.py:NAME. Default: the one that you started the run with, here."),
    ] = None,
    force: Annotated[list[str] | None, typer.Option("--force", help="Do this node again. May be repeated.")] = None,
    telemetry: TelemetryUrls = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run: what is finished and up to date is not done again."""
    runs, run_id = _found(run_name, runs)
    place = _recorded_place(runs, run_id) if app is None else app
    with ExitStack() as stack:
        orchestrator = _orchestrator(stack, place, runs, run_id, telemetry)
        if app is not None:
            _record(runs / run_id, app)
        with _store(runs, create=False) as store:
            finished = _finished(store.current_state(run_id))
        with _a_way_on(runs, run_id):
            state = orchestrator.resume(force=set(force or []))
    _report(state, as_json)
    again = len(_finished(state) - finished)
    done_now = f"{counted(again, 'work item')} done now, the others were up to date"
    words.print(done_now if again else "nothing had to be done")


def status(
    run_name: RunName,
    runs: RunsDirectory = Path("runs"),
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it anew until nobody works on it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run: its state, work items, artifacts and issues."""
    runs, run_id = _found(run_name, runs)
    stop = Event()
    with _store(runs, create=False) as store, Watch() as watched, stop_on_signals(stop):
        while True:
            state, interrupted = _look_at(store, runs, run_id)
            if not watch or interrupted or state.run_state in _terminal or stop.is_set():
                break
            with watched.frame():
                _report(state, as_json)
            stop.wait(_watch_s)
    _report(state, as_json, interrupted)
    if interrupted:
        words.print(f"nobody works on it any more; {_way_on(runs, run_id)}")


def _look_at(store: RunStore, runs: Path, run_id: str) -> tuple[RunDirectory, bool]:
    """The state of a run, and whether it was interrupted: nobody works on it, and it has not ended."""
    _check_begun(store, runs, run_id)
    # Asked before the state is read: an orchestrator that has just ended its run was not interrupted.
    abandoned = ArtifactFiles(runs / run_id).is_abandoned()
    state = store.current_state(run_id)
    return state, abandoned and state.run_state not in _terminal


def _orchestrator(
    stack: ExitStack, place: str, runs: Path, run_id: str, telemetry_urls: list[str] | None
) -> Orchestrator:
    graph = load_graph(place)
    store = stack.enter_context(_store(runs, create=True))
    progress = _RunProgress()
    display = stack.enter_context(Display(lambda: progress))
    pool = ProcessPool(place, display.relay())
    stack.callback(pool.close)
    listeners: list[Telemetry] = []
    for url in telemetry_urls or []:
        # One outbox for all runs of a directory: what could not be delivered is sent along with a later run.
        listener = telemetry_from_url(url, outbox=runs / ".telemetry.outbox")
        stack.callback(listener.close)
        if isinstance(listener, OtelTelemetry):
            listener.recall(all_events(store, run_id))
        listeners.append(listener)
    orchestrator = Orchestrator(
        graph,
        store,
        pool,
        run_id,
        runs / run_id,
        telemetry=list(listeners),
        progress=progress.update,
        place=place,
    )
    stack.enter_context(stop_on_signals(orchestrator.cancelled))
    return orchestrator


def _record(directory: Path, place: str) -> None:
    try:
        record_started_run(directory, place)
    except LogFailed as error:
        words.print(f"{error}; to resume this run, pass --app {shlex.quote(place)}")


def _recorded_place(runs: Path, run_id: str) -> str:
    """The application that this user started the run with.

    Raises:
        StreamNotFound: there is no such run.
        AppNotRecorded: with what the run's first event says, which is shown and never loaded, and the command to type.
    """
    with _store(runs, create=False) as store:
        _check_begun(store, runs, run_id)
        try:
            return recall_place(runs / run_id)
        except AppNotRecorded as error:
            named: Any = None
            with suppress(RunstateError, msgspec.MsgspecError):
                named = recorded_start(store, run_id).config.get("place")
            named = named if isinstance(named, str) else ""
            is_usable = ":" in named and len(named) <= _place_chars_max and named.isprintable()
            says = f" Its first event names {named[:_place_chars_max]!r}." if named else ""
            app = shlex.quote(named) if is_usable else "FILE.py:NAME"
            raise AppNotRecorded(
                f"{error}{says} Runstate does not load code that data names. If you trust that code, type: "
                f"runstate resume {_quoted(runs, run_id)} --app {app}"
            ) from error


@contextmanager
def _a_way_on(runs: Path, run_id: str) -> Iterator[None]:
    """Whoever meets a failure is told where to read about it, and how to go on."""
    try:
        yield
    except (RunFailed, RunCancelled, RunExists) as ended:
        if isinstance(ended, RunFailed):
            words.print(f"what happened: {runs / run_id / 'failure.md'}")
        words.print(_way_on(runs, run_id))
        raise


def _way_on(runs: Path, run_id: str) -> str:
    return f"go on with: runstate resume {_quoted(runs, run_id)}"


def _quoted(runs: Path, run_id: str) -> str:
    path = str(runs / run_id)
    return shlex.quote(path if "/" in path else f"./{path}")


def _check_begun(store: RunStore, runs: Path, run_id: str) -> None:
    """
    Raises:
        StreamNotFound: the run has no events; with what is missing, and what to do.
    """
    directory = runs / run_id
    events = directory / "events.ndjson"
    # A run that has lost all its events is listed as well, so that nobody overlooks it.
    if store.log.stream(run_id) is not None and events.exists() and events.stat().st_size:
        return
    if not directory.is_dir():
        message = f"There is no run {run_id!r} in {runs}"
    elif any((directory / name).exists() for name in ("snapshot.json", "index.json", "artifacts")):
        lost = "is empty" if events.exists() else "is gone"
        message = f"{events} {lost}, and only it says what was done; put it back, or begin a new run under another id"
    else:
        message = f"The run {run_id!r} was never begun: {directory} has no events; begin it by runstate run, with --id"
    raise StreamNotFound(message, stream=run_id)


def _finished(state: RunDirectory) -> set[str]:
    return {item.work_item_id for item in state.work_items if item.status == "finished"}


def _store(runs: Path, *, create: bool) -> RunStore:
    # Other programs read the directory during the run: its snapshot.json is current after every event.
    return open_store(f"ndjson:{runs}", RUNDIR, create=create, snapshot_every=1)


def all_events(store: RunStore, run_id: str) -> Iterator[RunEvent]:
    after = 0
    while page := store.log.read(run_id, after_seq=after):
        yield from (store.model.decode(record.body) for record in page)
        after = page[-1].seq


def _found(run_name: str, runs: Path) -> tuple[Path, str]:
    """A run given by its id, or by the path of its directory."""
    path = Path(run_name)
    if "/" in run_name and path.is_dir():
        return path.parent, path.name
    if "/" in run_name:
        raise LogNotFound(f"There is no run directory {run_name}")
    return runs, run_name


def _parameter(given: str) -> tuple[str, Any]:
    name, equals, value = given.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{given!r} is no parameter: write NAME=VALUE")
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


class _RunProgress:
    """How far a run is. The run only leaves its state here; the display's thread counts."""

    def __init__(self) -> None:
        self._state: RunDirectory | None = None
        self._progress = Progress("starting")

    def update(self, state: RunDirectory) -> None:
        self._state = state

    def __rich__(self) -> Progress:
        if self._state is not None:
            items = tuple(self._state.work_items)
            running = ", ".join(f"{item.worker} {item.scope_key}" for item in items if item.status == "running")
            done = sum(item.status in ("finished", "skipped") for item in items)
            self._progress.doing = f"{self._state.run_state}  {done}/{len(items)} done  {running}"
        return self._progress


def _report(state: RunDirectory, as_json: bool, interrupted: bool = False) -> None:
    if as_json:
        write_json(msgspec.to_builtins(state) | {"interrupted": interrupted})
        return
    words.print(f"run {state.run_id}: {state.run_state}{', interrupted' if interrupted else ''}")
    newest = newest_items(state).values()
    write_table(
        ("work item", "status", "attempt", "started", "finished", "error"),
        (
            (f"{i.worker} {i.scope_key}", i.status, i.attempt, i.started_at, i.finished_at, _message(i.error))
            for i in newest
        ),
    )
    artifacts = sorted(state.artifacts_index.items())
    write_table(
        ("artifact", "sha256", "written by", ""),
        ((n, a.sha256[:12], a.writer_worker or "", "stale" if a.stale else "") for n, a in artifacts),
    )
    if state.issues:
        columns = ("issue", "severity", "status", "message")
        write_table(columns, ((i.issue_id, i.severity, i.status, i.message) for i in state.issues))


def _message(error: Any) -> str:
    return str(error.get("message", ""))[:60] if isinstance(error, dict) else ""
