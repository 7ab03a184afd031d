"""pipeline: a whole fleet on Spark, as one run that can be killed and resumed, or stage by stage."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from runstate.cli.interrupts import stop_on_signals
from runstate.cli.options import AsJson, ModelName
from runstate.cli.output import counted, words, write_json
from runstate.cli.pipeline_listeners import Lineage, Listeners, MetricsFile, open_listeners
from runstate.cli.progress_display import Display, showing
from runstate.cli.tables import write_table
from runstate.errors import LogFailed, RunstateError, Unsupported
from runstate.models.rundir import RUNDIR, RunDirectory
from runstate.runtimes.orchestrator import Orchestrator
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


AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of", help="Tables as they were: a version, or a time like 2026-11-15T09:30:00Z.", show_default=False
    ),
]


@app.command("run")
def run(
    urls: Urls,
    to: To,
    model: ModelName = None,
    force: Annotated[list[str] | None, typer.Option("--force", help="Do this stage again. May be repeated.")] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    lineage: Lineage = None,
    metrics_file: MetricsFile = None,
    as_json: AsJson = False,
) -> None:
    """Ingest, replay, audit and report, as one run. What is finished and up to date is not done again."""
    check_spark()
    from runstate.pipeline.pipeline_directory import alone_in
    from runstate.pipeline.stages import grouped, write_inputs

    settings, groups = spark_settings(master, remote, conf), grouped(urls, model)
    listeners = open_listeners(lineage, metrics_file)
    with alone_in(to):
        models = write_inputs(to, groups, {})
        _go(to, models, model, set(force or []), settings, listeners, as_json)


@app.command("resume")
def resume(
    to: Annotated[Path, typer.Argument(help="The pipeline's directory.", show_default=False)],
    model: ModelName = None,
    force: Annotated[list[str] | None, typer.Option("--force", help="Do this stage again. May be repeated.")] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    lineage: Lineage = None,
    metrics_file: MetricsFile = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a pipeline that was interrupted, or bring a finished one up to date with its logs.

    Passwords of URLs are not stored: set PGPASSWORD, use ~/.pgpass, or repeat `pipeline run` with the URLs.
    """
    check_spark()
    from runstate.pipeline.pipeline_directory import alone_in
    from runstate.pipeline.stages import read_inputs, write_inputs

    inputs, settings = read_inputs(to, model), spark_settings(master, remote, conf)
    listeners = open_listeners(lineage, metrics_file)
    groups = {name: each.urls for name, each in inputs.items()}
    with alone_in(to):
        try:
            models = write_inputs(to, groups, next(iter(inputs.values())).settings)
        except LogFailed as error:
            if not any(url.startswith("postgresql:") for urls in groups.values() for url in urls):
                raise
            raise LogFailed(
                f"{error}. Passwords are not stored in {to}: set PGPASSWORD, add the server to ~/.pgpass, or give the "
                f"URLs again: runstate pipeline run URL --to {to}"
            ) from error
        _go(to, models, model, set(force or []), settings, listeners, as_json)


@app.command("ingest")
def ingest(
    urls: Urls,
    to: To,
    model: ModelName = None,
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
    from runstate.pipeline.source.origins import model_of
    from runstate.pipeline.tables.table import Table

    model_of(urls, model)  # Refused before Spark is started.
    Table.check(to)
    with spark_for(master, remote, conf, "ingest", urls) as spark:
        done = jobs.ingest(spark, urls, to, model=model)
        if compact:
            jobs.compact(spark, to, model=model)
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
    from runstate.pipeline.tables.quarantine import quarantined

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
    as_of: AsOf = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Bring a table of snapshots up to date: only streams with new events are folded."""
    check_spark()
    from runstate.pipeline import jobs
    from runstate.pipeline.replay.snapshot_table import snapshot_counts
    from runstate.pipeline.source.origins import model_of
    from runstate.pipeline.tables.table import Table

    urls = tables_as_of(urls, as_of)
    model_of(urls, model)  # Refused before Spark is started.
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
        Path | None, typer.Option("--to", help="Keep the findings as a Delta table in this new or empty directory.")
    ] = None,
    snapshots: Annotated[
        Path | None, typer.Option("--snapshots", help="A table of snapshots that must equal the replay.")
    ] = None,
    silent_s: Annotated[float, typer.Option("--silent-s", help="An open run is silent after so many seconds.")] = 86400,
    skew_s: Annotated[float, typer.Option("--skew-s", help="Clocks may differ by so many seconds.")] = 60,
    as_of: AsOf = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Prove a fleet: order, uniqueness, hash chains, transitions, snapshots. Exit code 1 if there is damage."""
    check_spark()
    from runstate.pipeline.audit import job as audits
    from runstate.pipeline.audit.findings_table import check_findings_target, write_findings
    from runstate.pipeline.source.origins import model_of

    urls = tables_as_of(urls, as_of)
    model_of(urls, model)  # Refused before Spark is started.
    if to is not None:
        check_findings_target(to)
    with spark_for(master, remote, conf, "audit", urls) as spark:
        found = audits.audit(spark, urls, model=model, snapshots=snapshots, silent_s=silent_s, skew_s=skew_s)
        summary = audits.summary(found if to is None else write_findings(found, to))
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


def _go(
    to: Path,
    models: list[str],
    given: str | None,
    forced: set[str],
    settings: Any,
    listeners: Listeners,
    as_json: bool,
) -> None:
    """Run the stages. `models` are names; `given` is the model that the caller named, which is not recorded."""
    from runstate.cli.pipeline_progress import PipelineProgress
    from runstate.pipeline import stages
    from runstate.pipeline.pipeline_directory import scratch_in
    from runstate.pipeline.spark.progress import forget_progress

    os.environ.pop(stages.model_variable, None)
    if given is not None:
        os.environ[stages.model_variable] = stages.absolute_place(given)
    with ExitStack() as stack:
        # Spark's own files go where the pipeline can remove them, also those of a Spark that was killed.
        scratch = stack.enter_context(scratch_in(to))
        conf = {"spark.local.dir": str(scratch.absolute()), **settings.conf}
        os.environ[stages.spark_variable] = msgspec.json.encode(msgspec.structs.replace(settings, conf=conf)).decode()
        store = stack.enter_context(open_store(f"ndjson:{to / 'runs'}", RUNDIR, snapshot_every=1))
        forget_progress(to)
        progress = PipelineProgress(to)
        display = stack.enter_context(Display(lambda: progress))
        pool = ProcessPool(stages.place, display.relay())
        stack.callback(pool.close)
        graph = stages.build(models, to)
        directory = to / "runs" / stages.run_id
        telemetry = listeners(to, store, stages.run_id)
        for listener in telemetry:
            stack.callback(listener.close)
        orchestrator = Orchestrator(
            *(graph, store, pool, stages.run_id, directory),
            telemetry=telemetry,
            progress=progress.update,
            place=stages.place,
        )
        stack.enter_context(stop_on_signals(orchestrator.cancelled))
        try:
            if store.log.stream(stages.run_id) is None:
                state = orchestrator.start()
            else:
                state = orchestrator.resume(force=forced | stages.missing_tables(to, models))
        except RunstateError:
            again = f"runstate pipeline resume {to}" + ("" if given is None else f" --model {shlex.quote(given)}")
            words.print(f"what Spark has printed: {to / 'spark.log'}\ngo on with: {again}")
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


def tell_counts(counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        write_json(counts)
    else:
        write_table(tuple(counts), [tuple(counts.values())])


def tables_as_of(urls: list[str], version: str | None) -> list[str]:
    from runstate.pipeline.tables.versions import at_version

    return urls if version is None else [at_version(url, version) for url in urls]


def check_spark(what: str = "The pipeline needs Spark") -> None:
    """Say what to install, before a module of the pipeline is imported.

    Raises:
        Unsupported: the extra `spark` is not installed.
    """
    try:
        import deltalake  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise Unsupported(f"{what}: pip install 'runstate[spark]' ({error})") from error


def spark_settings(master: str | None, remote: str | None, conf: list[str] | None) -> Any:
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
    """A Spark session for one job, with a display of the job's tasks."""
    settings = spark_settings(master, remote, conf)
    from runstate.cli.spark_interrupts import cancel_on_interrupt
    from runstate.pipeline.spark.progress import StageProgress, tracked

    with showing(f"{doing}: starting Spark", unit="tasks") as progress:

        def update(found: StageProgress) -> None:
            progress.doing, progress.done, progress.total = found.stage, found.done, found.total

        with start_spark(settings, doing, urls) as spark, cancel_on_interrupt(spark), tracked(spark, doing, update):
            yield spark


@contextmanager
def start_spark(settings: Any, doing: str, urls: list[str]) -> Iterator[SparkSession]:
    """A Spark session for one job. Ctrl-C is the caller's: Spark's own handler for it prints tracebacks."""
    from runstate.cli.spark_interrupts import quiet_py4j
    from runstate.pipeline.spark.session import spark_session
    from runstate.pipeline.spark.shipping import check_cluster

    master, remote, conf = settings.master, settings.remote, settings.conf
    with quiet_py4j(), spark_session(master=master, remote=remote, conf=conf, app_name=f"runstate {doing}") as spark:
        check_cluster(spark, doing, urls)
        yield spark
