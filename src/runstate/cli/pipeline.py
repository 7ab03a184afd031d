"""pipeline: a whole fleet on Spark, as one run that can be killed and resumed, or stage by stage."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from runstate.cli.options import AsJson, ModelName
from runstate.cli.output import counted, words, write_json, write_table
from runstate.errors import RunstateError, Unsupported
from runstate.logs.target_directory import writing_to
from runstate.models.rundir import RUNDIR, RunDirectory
from runstate.runtimes.orchestrator import Orchestrator
from runstate.runtimes.orchestrator.context import Progress
from runstate.runtimes.orchestrator.pool import ProcessPool
from runstate.store import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(
    name="pipeline",
    help="Replay, audit and report on a whole fleet, on Spark. Needs: pip install 'runstate\\[spark]'.",
    no_args_is_help=True,
)

Urls = Annotated[
    list[str],
    typer.Argument(help="Where the logs are: sqlite:PATH, postgresql://…, table:DIR, files:PATH.", show_default=False),
]
To = Annotated[
    Path,
    typer.Option(
        "--to", help="The directory to write to: new, empty, or written by this command before.", show_default=False
    ),
]
Master = Annotated[
    str | None, typer.Option("--master", help="Spark's master: local[4], spark://HOST:7077, yarn. Default: local[*].")
]
Remote = Annotated[str | None, typer.Option("--remote", help="A Spark Connect server: sc://HOST:15002.")]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", help="A setting of Spark: NAME=VALUE. May be repeated.", show_default=False),
]
Format = Annotated[str, typer.Option("--format", help="Of the event table's files: parquet or arrow.")]


@app.command("run")
def run(
    urls: Urls,
    to: To,
    model: ModelName = None,
    force: Annotated[list[str] | None, typer.Option("--force", help="Do this stage again. May be repeated.")] = None,
    file_format: Format = "parquet",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Ingest, replay, audit and report, as one run. What is finished and up to date is not done again."""
    check_spark()
    from runstate.pipeline.pipeline_directory import alone_in
    from runstate.pipeline.stages import grouped, model_names, write_inputs

    _check_format(file_format)
    settings, groups = _settings(master, remote, conf), grouped(urls, model)
    models = model_names(groups)
    with alone_in(to):
        write_inputs(to, groups, {"format": file_format})
        _go(to, models, set(force or []), settings, as_json)


@app.command("resume")
def resume(
    to: Annotated[Path, typer.Argument(help="The pipeline's directory.", show_default=False)],
    force: Annotated[list[str] | None, typer.Option("--force", help="Do this stage again. May be repeated.")] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a pipeline that was interrupted, or bring a finished one up to date with its logs."""
    check_spark()
    from runstate.pipeline.pipeline_directory import alone_in
    from runstate.pipeline.stages import model_names, read_inputs, write_inputs

    inputs, settings = read_inputs(to), _settings(master, remote, conf)
    models = model_names(inputs)
    with alone_in(to):
        groups = {place: each.urls for place, each in inputs.items()}
        write_inputs(to, groups, next(iter(inputs.values())).settings)
        _go(to, models, set(force or []), settings, as_json)


@app.command("ingest")
def ingest(
    urls: Urls,
    to: To,
    model: ModelName = None,
    file_format: Format = "parquet",
    compact: Annotated[
        bool, typer.Option("--compact", help="Then write the table's many small files anew, as few large ones.")
    ] = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Bring an event table up to date with logs and NDJSON files: only what is new is read, and nothing twice."""
    check_spark()
    from runstate.pipeline import jobs
    from runstate.pipeline.table import Table

    _check_format(file_format)
    Table.check(to)
    with spark_for(master, remote, conf, "ingest", urls) as spark:
        done = jobs.ingest(spark, urls, to, model=model, file_format=file_format)
        if compact:
            jobs.compact(spark, to)
    tell_counts(done.counts, as_json)
    if done.counts.get("quarantined"):
        words.print(f"set aside, with reasons: runstate pipeline quarantine {to}")


@app.command("quarantine")
def quarantine(
    table: Annotated[Path, typer.Argument(help="The event table's directory.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show what an ingest has set aside: where it stands, and why."""
    check_spark()
    from runstate.pipeline.quarantine import quarantined

    if as_json:
        for row in quarantined(table):
            row["content"] = row["content"].decode("utf-8", "replace")
            write_json(row)
        return
    columns = ("file", "line", "stream", "code", "reason")
    write_table(
        columns, ([r["file"] or r["url"], r["line"], r["stream"], r["code"], r["reason"]] for r in quarantined(table))
    )


@app.command("replay")
def replay(
    urls: Urls,
    to: To,
    model: ModelName = None,
    full: Annotated[bool, typer.Option("--full", help="Fold everything anew, whatever is there.")] = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Bring a table of snapshots up to date: only streams with new events are folded."""
    check_spark()
    from runstate.pipeline import jobs
    from runstate.pipeline.snapshot_table import snapshot_counts
    from runstate.pipeline.table import Table

    Table.check(to)
    with spark_for(master, remote, conf, "replay", urls) as spark:
        done = jobs.replay(spark, urls, to, model=model, full=full)
    streams, failed = snapshot_counts(to)
    tell_counts({"folded": done.counts.get("streams", 0), "streams": streams, "failed": failed}, as_json)
    if failed:
        words.print("some streams could not be folded; the column `finding` of their rows says why")
        raise typer.Exit(1)


@app.command("audit")
def audit(
    urls: Urls,
    model: ModelName = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Keep the findings as Parquet in this new or empty directory.")
    ] = None,
    snapshots: Annotated[
        Path | None, typer.Option("--snapshots", help="A table of snapshots that must equal the replay.")
    ] = None,
    silent_s: Annotated[float, typer.Option("--silent-s", help="An open run is silent after so many seconds.")] = 86400,
    skew_s: Annotated[float, typer.Option("--skew-s", help="Clocks may differ by so many seconds.")] = 60,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Prove a fleet: order, uniqueness, hash chains, transitions, snapshots. Exit code 1 if there is damage."""
    check_spark()
    from runstate.pipeline import audit as audits

    if to is not None:
        audits.check_findings_target(to)
    with spark_for(master, remote, conf, "audit", urls) as spark:
        found = audits.audit(spark, urls, model=model, snapshots=snapshots, silent_s=silent_s, skew_s=skew_s)
        summary = audits.summary(found if to is None else audits.write(found, to))
    if as_json:
        write_json(summary)
    else:
        columns = ("severity", "finding", "how often", "for instance", "")
        write_table(
            columns, ([f.severity, f.code, f.count, f.example["stream"], f.example["message"]] for f in summary.codes)
        )
    verdict = "intact" if summary.ok else "DAMAGED"
    words.print(f"{counted(summary.streams, 'stream')}, {counted(summary.events, 'event')}: {verdict}")
    if not summary.ok:
        raise typer.Exit(1)


@app.command("report")
def report(
    urls: Urls,
    to: To,
    model: ModelName = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Durations, failures, throughput, waits and costs of a fleet, as a page that needs nothing else."""
    check_spark()
    from runstate.pipeline.page import check_report_target, render
    from runstate.pipeline.report import Part
    from runstate.pipeline.report import report as made
    from runstate.pipeline.stages import grouped, publish

    groups = grouped(urls, model)
    check_report_target(to)
    with spark_for(master, remote, conf, "report", urls) as spark:
        found = made(spark, [Part(each, name) for name, each in groups.items()])
    with writing_to(to):
        to.mkdir(parents=True, exist_ok=True)
    publish(to / "report.html", render(found))
    if as_json:
        write_json(found)
    words.print(f"report: {to / 'report.html'}")


def _go(to: Path, models: list[str], forced: set[str], settings: Any, as_json: bool) -> None:
    from runstate.pipeline import stages
    from runstate.pipeline.pipeline_directory import scratch_in

    with ExitStack() as stack:
        # Spark's own files go where the pipeline can remove them, also those of a Spark that was killed.
        scratch = stack.enter_context(scratch_in(to))
        conf = {"spark.local.dir": str(scratch.absolute()), **settings.conf}
        os.environ[stages.spark_variable] = msgspec.json.encode(msgspec.structs.replace(settings, conf=conf)).decode()
        store = stack.enter_context(open_store(f"ndjson:{to / 'runs'}", RUNDIR))
        pool = ProcessPool(stages.place)
        stack.callback(pool.close)
        graph = stages.build(models, to)
        directory = to / "runs" / stages.run_id
        orchestrator = Orchestrator(
            graph, store, pool, stages.run_id, directory, progress=_progress(stack, to), place=stages.place
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            previous = signal.signal(number, lambda *_: orchestrator.cancelled.set())
            stack.callback(signal.signal, number, previous)
        try:
            if store.log.stream(stages.run_id) is None:
                state = orchestrator.start()
            else:
                state = orchestrator.resume(force=forced | stages.missing_tables(to, models))
        except RunstateError:
            words.print(f"what Spark has printed: {to / 'spark.log'}\ngo on with: runstate pipeline resume {to}")
            raise
    _tell_run(to, state, stages.outcome(directory, models), as_json)


def _tell_run(to: Path, state: RunDirectory, outcome: Any, as_json: bool) -> None:
    from runstate.pipeline.stages import publish, run_id

    artifacts = to / "runs" / run_id / "artifacts"
    publish(to / "report.html", (artifacts / "report.html").read_bytes())
    if as_json:
        write_json(outcome)
    else:
        columns = ("model", "events", "quarantined", "runs", "damage", "warnings")
        write_table(columns, (msgspec.structs.astuple(each) for each in outcome))
    words.print(f"pipeline: {state.run_state}; report: {to / 'report.html'}")
    if any(each.damage for each in outcome):
        words.print("the audit has found damage; the report says what")
        raise typer.Exit(1)


def _progress(stack: ExitStack, to: Path) -> Progress | None:
    """A bar of the stage under way; off a terminal one line when a stage begins and when it ends."""
    from runstate.pipeline.progress import read_progress

    seen: dict[str, str] = {}

    def tell(state: RunDirectory) -> None:
        for item in state.work_items:
            if seen.get(item.work_item_id) != item.status and item.status != "queued":
                scope = "" if item.scope_key == "-" else f" {item.scope_key}"
                words.print(f"{item.worker}{scope}: {item.status}")
            seen[item.work_item_id] = item.status

    if not words.is_terminal:
        return tell
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    bar = stack.enter_context(_Watched(lambda: read_progress(to), *columns, console=words, transient=True))
    bar.add_task("starting", total=None)
    return tell


class _Watched(Bar):
    """A bar that looks at the progress of another process each time it is drawn."""

    def __init__(self, look: Any, *columns: Any, **options: Any) -> None:
        self._look = look
        super().__init__(*columns, **options)

    def get_renderables(self) -> Iterator[Any]:
        found = self._look()
        for task in self.tasks:
            if found is not None:
                if task.description != found.stage:
                    self.reset(task.id)
                self.update(task.id, description=found.stage, completed=found.done, total=found.total or None)
        yield from super().get_renderables()


def tell_counts(counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        write_json(counts)
    else:
        write_table(tuple(counts), [tuple(counts.values())])


def _check_format(file_format: str) -> None:
    from runstate.pipeline.sorted_files import formats

    if file_format not in formats:
        raise typer.BadParameter(f"{file_format!r} is no format; there are: {', '.join(formats)}")


def check_spark(what: str = "The pipeline needs Spark") -> None:
    """Say what to install, before a module of the pipeline is imported.

    Raises:
        Unsupported: the extra `spark` is not installed.
    """
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise Unsupported(f"{what}: pip install 'runstate[spark]' ({error})") from error


def _settings(master: str | None, remote: str | None, conf: list[str] | None) -> Any:
    check_spark()
    from runstate.pipeline.stages import SparkSettings

    pairs = [each.partition("=") for each in conf or []]
    for name, equals, _ in pairs:
        if not equals or not name:
            raise typer.BadParameter(f"{name!r} is no setting: write NAME=VALUE")
    return SparkSettings(master, remote, {name: value for name, _, value in pairs})


@contextmanager
def spark_for(
    master: str | None, remote: str | None, conf: list[str] | None, doing: str, urls: list[str]
) -> Iterator[SparkSession]:
    settings = _settings(master, remote, conf)
    from runstate.pipeline.session import spark_session
    from runstate.pipeline.shipping import check_cluster

    with ExitStack() as stack:
        if words.is_terminal:
            stack.enter_context(words.status(f"{doing} on Spark"))
        spark = stack.enter_context(
            spark_session(
                master=settings.master, remote=settings.remote, conf=settings.conf, app_name=f"runstate {doing}"
            )
        )
        check_cluster(spark, doing, urls)
        yield spark
