"""The pipeline as a run of our own orchestrator: ingest → replay → audit → report.

    DIR/inputs/MODEL.json     which logs of a model there are, and what tells whether they have changed: the marker
                              of the directory
    DIR/events/MODEL          the event table
    DIR/snapshots/MODEL       the snapshot table
    DIR/findings/MODEL/NAME   what the audit found, a Delta table
    DIR/report.html           the report
    DIR/spark.log             what Spark and its workers have printed
    DIR/runs/pipeline         the run itself: its events, and what each stage says it has done

MODEL is the name of a model, wherever its code is. Each stage is a work item with artifacts, one for each model. A
pipeline that is killed goes on without redoing finished stages; a log that has changed makes exactly those stages stale
that depend on it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from runstate.errors import LogNotFound, NotALog, UnknownModel, shown_url
from runstate.models.canonical import digest, undecodable
from runstate.models.registry import find_model, resolve_model
from runstate.pipeline.report.page import render
from runstate.pipeline.report.page_report import FindingRow, Quarantine, Report
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.source.origins import model_of, open_origin
from runstate.pipeline.source.plain_files import find_files
from runstate.pipeline.spark.progress import told_to, tracked
from runstate.runtimes.orchestrator import Graph, Job
from runstate.storage.directories import make_directories
from runstate.storage.disk import RealDisk, replace_durably
from runstate.storage.target_directory import writing_to

place = "runstate.pipeline.stages:graph"
spark_variable = "RUNSTATE_PIPELINE_SPARK"
"""How the processes of the run learn which Spark to use: JSON of `SparkSettings`. It changes no result."""
_urls_variable = "RUNSTATE_PIPELINE_URLS"
"""How they learn the secrets of URLs, which no file or command line holds: JSON, the whole URL by the stored one."""
model_variable = "RUNSTATE_PIPELINE_MODEL"
"""How the processes of the run learn which model the caller gave. Unset: the recorded one must be installed."""
run_id = "pipeline"
_stage_max_s = 7 * 86_400.0
_directory_name = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Inputs(msgspec.Struct, frozen=True):
    """`inputs/MODEL.json`: everything that a model's stages depend on."""

    model: str
    """Its name. Where it is loaded from is not recorded."""
    urls: list[str]
    """Without their secrets, in files of the present version."""
    directory: str
    """The pipeline's own, absolute."""
    versions: dict[str, str]
    """For each URL a digest over its streams and their versions: it changes when anything is appended."""
    settings: dict[str, Any] = {}
    """Those of the stages that change what comes out."""


class SparkSettings(msgspec.Struct, frozen=True):
    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = {}


class IngestResult(msgspec.Struct):
    commit: int
    events: int
    quarantined: int
    reasons: dict[str, int]


class ReplayResult(msgspec.Struct):
    commit: int
    streams: int
    failed: int


class AuditOutcome(msgspec.Struct):
    streams: int
    events: int
    kept_in: str
    """The directory with all findings."""
    findings: list[FindingRow]


def grouped(urls: Sequence[str], model: str | None) -> dict[str, list[str]]:
    """The URLs by the name of the model that each is read with.

    Raises:
        InvalidUrl, UnknownModel, ModelMismatch, LogNotFound: before anything is begun.
    """
    groups: dict[str, list[str]] = {}
    for url in urls:
        groups.setdefault(_directory_name_of(find_model(model_of([url], model)).name), []).append(url)
    return groups


def absolute_place(model: str) -> str:
    """A model for the processes of the run, which may have another working directory."""
    return str(Path(model).absolute()) if model.rpartition(":")[0].endswith(".py") else model


def _directory_name_of(model: str) -> str:
    """The name of a model, which is also that of its files and directories.

    Raises:
        UnknownModel: it cannot be.
    """
    if not _directory_name.fullmatch(model):
        raise UnknownModel(
            f"The model is called {model!r}, which cannot be the name of a directory. Give it a name of letters, "
            "digits, '.', '-' and '_'"
        )
    return model


def write_inputs(directory: Path, groups: dict[str, list[str]], settings: dict[str, Any]) -> list[str]:
    """Look at all logs, and write down what a run depends on. A file that says the same stays as it is.

    Returns the names of the models. The processes of the run get the URLs as they are, through the environment. The
    files get them without their secrets, so another password changes nothing.

    Raises:
        LogNotFound, NotALog, Unsupported: a log cannot be read.
        InvalidOption: the directory was made from more than these, or two URLs differ only in their secrets.
        LogFull, LogFailed: the directory cannot be written.
    """
    given = {url: shown_url(url) for urls in groups.values() for url in urls}
    if len(set(given.values())) < len(given):
        raise InvalidOption("Two of the URLs are the same without their secrets; name each log once")
    with_secrets = {shown: url for url, shown in given.items() if shown != url}
    os.environ[_urls_variable] = msgspec.json.encode(with_secrets).decode()
    versions = {shown: _version(url) for url, shown in given.items()}
    shown = {model: [given[url] for url in urls] for model, urls in groups.items()}
    for model, before in inputs_in(directory).items():
        if dropped := set(map(shown_url, before.urls)) - set(shown.get(model, ())):
            raise InvalidOption(
                f"{directory} was made from {min(dropped)} too, and its tables hold that; name all of its logs, "
                "or choose another directory"
            )
    with writing_to(directory):
        make_directories(RealDisk(), directory / "inputs")
        for model, urls in shown.items():
            found = Inputs(model, urls, str(directory.absolute()), {url: versions[url] for url in urls}, settings)
            path = directory / "inputs" / f"{model}.json"
            text = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
            if not path.exists() or path.read_bytes() != text:
                publish(path, text)
    return list(groups)


def read_inputs(directory: Path, model: str | None) -> dict[str, Inputs]:
    """What the last run of a pipeline depended on, by the name of the model. `model` is the one that the caller gave.

    Raises:
        LogNotFound: there is no pipeline in that directory.
        NotALog: a file of its inputs is not one of ours.
        UnknownModel, ModelMismatch: the model is not installed, and was not given.
    """
    found = inputs_in(directory)
    if not found:
        raise LogNotFound(f"There is no pipeline in {directory}; begin one: runstate pipeline run URL --to {directory}")
    for name in found:
        resolve_model(name, model, f"The pipeline in {directory}")
    return found


def inputs_in(directory: Path) -> dict[str, Inputs]:
    """The inputs of a pipeline, by the name of the model. NotALog: a file there is not one of ours."""
    found = {}
    for path in sorted((directory / "inputs").glob("*.json")):
        try:
            inputs = msgspec.json.decode(RealDisk().read(path), type=Inputs)
        except (OSError, *undecodable) as error:
            raise NotALog(f"{path} was not written by Runstate: {error}; choose another directory") from error
        if inputs.model != path.stem:
            raise NotALog(
                f"{path} was not written by Runstate: it names {inputs.model[:80]!r}; choose another directory"
            )
        found[inputs.model] = inputs
    return found


def _version(url: str) -> str:
    if url.startswith("files:"):
        stamps = [f"{file}\0{RealDisk().stamp(Path(file))[1]}" for file in find_files(url)]
        return digest("\n".join(stamps).encode())
    origin = open_origin(url)
    try:
        found = hashlib.sha256()
        for stream, version in origin.versions():
            found.update(f"{stream}\0{version}\n".encode())
        return found.hexdigest()
    finally:
        origin.close()


def missing_tables(directory: Path, models: Iterable[str]) -> set[str]:
    """The nodes that must be done again because somebody has removed what they made."""
    gone = set()
    for model in models:
        for node, kind in (("ingest", "events"), ("replay", "snapshots")):
            if not (directory / kind / model / "table.json").exists():
                gone.add(node)
    return gone


class Outcome(msgspec.Struct, frozen=True):
    """What came of a pipeline, for one model."""

    model: str
    events: int
    quarantined: int
    runs: int
    damage: int
    warnings: int


def outcome(directory: Path, models: Iterable[str]) -> list[Outcome]:
    """What the artifacts of a finished run say. `directory` is the run's own."""
    found = []
    for model in models:
        ingested = read_artifact(directory, f"ingest/{model}.json", IngestResult)
        audited = read_artifact(directory, f"audit/{model}.json", AuditOutcome)
        by_severity = {
            severity: sum(f.count for f in audited.findings if f.severity == severity)
            for severity in ("damage", "warning")
        }
        found.append(
            Outcome(model, ingested.events, ingested.quarantined, audited.streams, *by_severity.values()),
        )
    return found


T = TypeVar("T")


def read_artifact(directory: Path, name: str, kind: type[T]) -> T:
    return msgspec.json.decode((directory / "artifacts" / name).read_bytes(), type=kind)


def publish(path: Path, data: bytes) -> None:
    """Write a file that is there either whole or not at all.

    Raises:
        LogFull, LogFailed: the disk refused.
    """
    with writing_to(path):
        replace_durably(RealDisk(), path, data)


# --- the stages, as workers of the graph ------------------------------------------------------------------


def build(models: Sequence[str], directory: Path) -> Graph:
    """The graph of a pipeline over logs of these models."""
    sources = {f"inputs/{model}.json": directory / "inputs" / f"{model}.json" for model in models}
    made = Graph("pipeline", sources=sources, parallel=1)
    for name, work, inputs in (
        ("ingest", _ingest, ["inputs/{scope}.json"]),
        ("replay", _replay, ["inputs/{scope}.json", "ingest/{scope}.json"]),
        ("audit", _audit, ["inputs/{scope}.json", "replay/{scope}.json"]),
    ):
        made.node(name).worker(
            inputs=inputs, outputs=[f"{name}/{{scope}}.json"], scopes=list(models), name=name, timeout_s=_stage_max_s
        )(work)
    made.node("report").worker(
        inputs=["inputs/{scope}.json", "ingest/{scope}.json", "audit/{scope}.json"],
        outputs=["report.json", "report.html"],
        name="report",
        timeout_s=_stage_max_s,
    )(_report)
    return made


def _spark(directory: str, stage: str, urls: Sequence[str] = ()) -> Any:
    """The session of this process. What Spark and its Python workers print goes to the pipeline's `spark.log`."""
    from runstate.pipeline.spark.session import session
    from runstate.pipeline.spark.shipping import check_cluster

    settings = msgspec.json.decode(os.environ.get(spark_variable, "{}"), type=SparkSettings)
    log = os.open(Path(directory, "spark.log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    spark = session(master=settings.master, remote=settings.remote, conf=settings.conf)
    check_cluster(spark, stage, urls)
    return spark


def _inputs(job: Job) -> Inputs:
    """What the job depends on, with the whole URLs."""
    stored = msgspec.json.decode(job.read("inputs/{scope}.json"), type=Inputs)
    with_secrets = msgspec.json.decode(os.environ.get(_urls_variable, "{}"), type=dict[str, str])
    return msgspec.structs.replace(stored, urls=[with_secrets.get(url, url) for url in stored.urls])


def _loadable(model: str) -> str:
    """What to load the model of this name with: what the caller gave, or the name itself if it is installed."""
    given = os.environ.get(model_variable)
    resolve_model(model, given, "The pipeline")
    return given or model


def _ingest(job: Job) -> None:
    from runstate.pipeline.jobs import ingest
    from runstate.pipeline.tables.event_table import open_event_table
    from runstate.pipeline.tables.quarantine import reasons

    inputs = _inputs(job)
    spark = _spark(inputs.directory, "ingest", inputs.urls)
    to = Path(inputs.directory, "events", inputs.model)
    plain = [url for url in inputs.urls if url.startswith("files:")]
    logs = [url for url in inputs.urls if url not in plain]
    with tracked(spark, f"ingest {inputs.model}", told_to(inputs.directory)):
        for urls in filter(None, (logs, plain)):
            done = ingest(spark, urls, to, model=_loadable(inputs.model))
    events = sum(entry.rows for entry in open_event_table(to).files("events"))
    set_aside = reasons(to)
    job.write_json("ingest/{scope}.json", IngestResult(done.commit, events, sum(set_aside.values()), set_aside))


def _replay(job: Job) -> None:
    from runstate.pipeline.jobs import replay
    from runstate.pipeline.replay.snapshot_table import snapshot_counts

    inputs = _inputs(job)
    spark, root = _spark(inputs.directory, "replay"), Path(inputs.directory)
    events, to = root / "events" / inputs.model, root / "snapshots" / inputs.model
    with tracked(spark, f"replay {inputs.model}", told_to(inputs.directory)):
        done = replay(spark, f"table:{events}", to, model=_loadable(inputs.model))
    job.write_json("replay/{scope}.json", ReplayResult(done.commit, *snapshot_counts(to)))


def _audit(job: Job) -> None:
    from runstate.pipeline.audit import job as audits
    from runstate.pipeline.audit.findings_table import remove_findings, write_findings

    inputs = _inputs(job)
    spark, root = _spark(inputs.directory, "audit", inputs.urls), Path(inputs.directory)
    # Plain files are no log that could be proven; what was taken from them is.
    proven = [url for url in inputs.urls if not url.startswith("files:")]
    if proven != inputs.urls:
        proven.append(f"table:{root / 'events' / inputs.model}")
    # Named by what it is about: an audit of something else never looks like this one.
    to = root / "findings" / inputs.model / digest(job.read("inputs/{scope}.json"))[:16]
    with writing_to(to.parent):
        make_directories(RealDisk(), to.parent)
        remove_findings(to.parent)
    with tracked(spark, f"audit {inputs.model}", told_to(inputs.directory)):
        found = audits.audit(spark, proven, model=_loadable(inputs.model), snapshots=root / "snapshots" / inputs.model)
        summary = audits.summary(write_findings(found, to))
    rows = [
        FindingRow(each.severity, each.code, each.count, each.example["stream"] or "", each.example["message"])
        for each in summary.codes
    ]
    job.write_json("audit/{scope}.json", AuditOutcome(summary.streams, summary.events, str(to), rows))


def _report(job: Job) -> None:
    from runstate.pipeline.report.figures import Part, report

    inputs = [msgspec.json.decode(job.read(name), type=Inputs) for name in job.inputs if name.startswith("inputs/")]
    ingests = [
        msgspec.json.decode(job.read(name), type=IngestResult) for name in job.inputs if name.startswith("ingest/")
    ]
    audits = [
        msgspec.json.decode(job.read(name), type=AuditOutcome) for name in job.inputs if name.startswith("audit/")
    ]
    root = Path(inputs[0].directory)
    spark = _spark(inputs[0].directory, "report")
    by_reason: dict[str, int] = {}
    for each in ingests:
        for reason, count in each.reasons.items():
            by_reason[reason] = by_reason.get(reason, 0) + count
    with tracked(spark, "report", told_to(str(root))):
        made: Report = report(
            spark,
            [Part([f"table:{root / 'events' / each.model}"], _loadable(each.model)) for each in inputs],
            findings=sorted((f for each in audits for f in each.findings), key=lambda f: (f.severity, f.code)),
            quarantine=Quarantine(sum(by_reason.values()), sorted(by_reason.items())),
            generated_from=[url for each in inputs for url in each.urls],
        )
    job.write_json("report.json", made)
    job.write("report.html", render(made))


graph = build(["any"], Path())
"""What the processes of a run load: they need the workers alone, and get the paths of their inputs from the run."""
