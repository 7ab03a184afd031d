"""demo: a small fleet of runs, its producer killed in the middle, and the proof that nothing was lost or doubled."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from runstate.cli.demo_directory import database, demo_directory
from runstate.cli.demo_pipeline import damage, orchestrated_fleet, run_pipeline
from runstate.cli.demo_processes import kill, start_python
from runstate.cli.demo_runtimes import build_queue, session_fleet
from runstate.cli.output import words
from runstate.cli.tables import write_table
from runstate.contracts import EngineStore
from runstate.logs.log import AppendResult
from runstate.models.engine.events import CanonicalEngineEvent
from runstate.models.model import Alert, stable_uuid
from runstate.producer import RunProducer
from runstate.projector import Projector
from runstate.store import open as open_store

_runs = 60
_steps = ("extract", "clean", "join", "train", "publish")


def demo(
    to: Annotated[
        Path, typer.Option("--to", help="The directory for the demo's files: new, empty, or of an earlier demo.")
    ] = Path("demo"),
) -> None:
    """Run the whole system on embedded defaults: fleets of runs, kills, resumes, the proof, and a report."""
    with demo_directory(to):
        _run(to)


def _run(to: Path) -> None:
    url = f"sqlite:{to / database}"

    _head("1 of 7: a producer appends the events of 60 runs, and is killed in the middle")
    acknowledged = _killed_producer(url)
    words.print(f"killed (SIGKILL) after {acknowledged} acknowledged events")

    _head("2 of 7: the producer starts again, and sends every event from the beginning")
    alerts: list[Alert] = []
    with open_store(url, on_alert=alerts.append) as store:
        stored = sum(info.events for info in store.log.streams())
        results = list(_fleet(store))
        known, new = sum(r.idempotent for r in results), sum(r.persisted for r in results)
        words.print(f"{stored} events were stored before the kill: {known} of those sent were known, {new} new")
        _faults(store)

        _head("3 of 7: a projector follows the feed; every snapshot is compared with a replay of its log")
        projector = Projector(store)
        while projector.poll():
            pass
        differ = _differing(store)
        found = list(store.log.verify())
        words.print(f"lag {projector.lag_s:.1f} s; {differ} snapshots differ from a replay; {len(found)} damaged")
        _show(store, alerts)

    _head("4 of 7: an orchestrator builds 12 sites, each as a run in a directory of its own")
    runs_url = orchestrated_fleet(to / "runs", to / "sources")
    damaged = damage(to / "runs")
    words.print(f"one byte in the history of {damaged} was then changed, as a failing disk would")

    _head("5 of 7: an agent reviews changes in sessions: killed, resumed, forked, and moved to another desk")
    sessions_url, reviewed = session_fleet(to / "desk", to / "other-desk")

    _head("6 of 7: a daemon hands builds to three workers, one of which is killed")
    builds_url, built = build_queue(to / "builds")

    _head("7 of 7: a pipeline on Spark ingests, replays, audits and reports on all four logs")
    piped = run_pipeline([url, runs_url, sessions_url, builds_url], to / "pipeline", damaged)

    proof = {
        "nothing acknowledged was lost, and nothing was stored twice": acknowledged <= stored == known,
        "every snapshot equals a replay of its log, and the log is intact": not differ and not found,
        "sessions survived the kill of their agent, and no step was done twice": reviewed,
        "every build was completed exactly once, though a worker was killed": built,
        f"the killed pipeline repeated no finished stage, and its audit found the damage in {damaged}": piped,
    }
    _prove({claim: is_true for claim, is_true in proof.items() if is_true is not None})
    _advise(to, url, sessions_url, runs_url)
    if False in proof.values():
        raise typer.Exit(1)


def _head(title: str) -> None:
    words.print(f"\n{title}", style="bold")


def _prove(claims: dict[str, bool]) -> None:
    _head("The proof")
    for claim, is_true in claims.items():
        words.print(f"  {'yes' if is_true else 'NO '}  {claim}", style="green" if is_true else "bold red")


def _advise(to: Path, url: str, sessions_url: str, runs_url: str) -> None:
    """Say what to try next, with commands that work as they stand."""
    report = to / "pipeline" / "report.html"
    if report.exists():
        _head("The report, for a browser")
        words.print(f"  {report.absolute().as_uri()}")
    _head("Try next")
    if not _is_at_hand():
        words.print(f"  . {Path(sys.prefix, 'bin', 'activate')}")
    for command in (
        f"streams {url}",
        f"tail {url}",
        f"verify {url}",
        f"replay {url} --check",
        f"snapshot {url} run-0007",
        f"diff {url} run-0007 --from 2 --to 5",
        f"session tree {sessions_url} review-00",
        f"daemon tail {to / 'builds'} --limit 5",
        f"verify {runs_url}",
        *([f"pipeline audit {runs_url}"] if report.exists() else []),
    ):
        words.print(f"  runstate {command}")


def _is_at_hand() -> bool:
    """Whether a shell finds our own command, or could not be helped by activating our environment."""
    found = shutil.which("runstate")
    is_ours = found is not None and Path(found).parent == Path(sys.prefix, "bin")
    return is_ours or not Path(sys.prefix, "bin", "activate").exists()


def _killed_producer(url: str) -> int:
    """Start a producer, kill it, and return how many events were acknowledged to it."""
    program = "import sys; from runstate.cli.demo import produce; produce(sys.argv[1])"
    acknowledged = 0
    with start_python("-c", program, url, stdout=subprocess.PIPE) as producer:
        if producer.stdout is not None:
            for _ in producer.stdout:
                acknowledged += 1
                if acknowledged == _runs * 4:
                    kill(producer)
                    break
            acknowledged += len(producer.stdout.read().splitlines())
            producer.stdout.close()
    return acknowledged


def _fleet(store: EngineStore) -> Iterator[AppendResult]:
    """Every event of the fleet, appended one by one: the same events each time, whoever was killed before."""
    for number in range(_runs):
        run = store.run(f"run-{number:04d}", tenant=("acme", "globex")[number % 2], plan="nightly")
        yield from _one_run(run, random.Random(number))  # noqa: S311 - a script, not a secret


def _one_run(run: RunProducer, luck: random.Random) -> Iterator[AppendResult]:
    yield run.started()
    for step in _steps:
        yield run.step_started(step, attempt=1)
        attempt = 1
        if luck.random() < 0.15:
            yield run.step_failed(step, attempt=1, code="TIMEOUT", message="no answer in 30 s", retryable=True)
            if luck.random() < 0.3:
                yield run.failed(reason=f"{step} failed")
                return
            attempt = 2
            yield run.step_started(step, attempt=2)
        artifacts = [{"name": f"{step}.parquet", "rows": luck.randrange(10_000)}]
        yield run.step_completed(step, attempt=attempt, artifacts=artifacts)
    yield run.completed()


def _faults(store: EngineStore) -> None:
    """What goes wrong in real fleets: an impossible event, other content under a known key, an old producer."""
    store.append_event(_v1("run-v1", "RunStarted"))
    store.append_event(_v1("run-v1", "RunStarted", data={"changed": True}))
    store.append_event(_v1("run-v1", "StepCompleted", step="never-started"))
    store.append_event(_v1("run-v1", "SomethingNew"))


def _v1(run_id: str, event_type: str, *, step: str | None = None, data: Any = None) -> CanonicalEngineEvent:
    event = CanonicalEngineEvent(
        run_id=run_id,
        event_id=stable_uuid(run_id, event_type),
        event_type=event_type,
        event_data=data or {},
        idempotency_key=f"{run_id}-{event_type}",
        emitted_at="2026-01-01T00:00:00.000Z",
    )
    if step is not None:
        event.step_id = step
    return event


def _differing(store: EngineStore) -> int:
    kept = ((info.stream, store.snapshots.stored(info.stream)) for info in store.log.streams())
    return sum(found is None or found.body != store.fresh_snapshot(stream).body for stream, found in kept)


def _show(store: EngineStore, alerts: list[Alert]) -> None:
    counts = Counter(store.project_snapshot(info.stream).status for info in store.log.streams())
    write_table(("status", "runs"), sorted(counts.items()))
    write_table(("alert", "level", "about"), ((alert.code, alert.level, alert.subject) for alert in alerts))


def produce(url: str) -> None:
    """The producer that gets killed: prints a line for each event that it was told is safe."""
    with open_store(url) as store:
        for result in _fleet(store):
            sys.stdout.write(f"{result.seq}\n")
            sys.stdout.flush()
