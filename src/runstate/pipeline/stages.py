"""The pipeline as a run of our own orchestrator: ingest → replay → audit → report.

    DIR/inputs/MODEL.json     which logs of a model there are, and what tells whether they have changed: the marker
                              of the directory
    DIR/events/MODEL          the event table
    DIR/snapshots/MODEL       the snapshot table
    DIR/findings/MODEL/NAME   what the audit found, as Parquet
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
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from runstate.errors import LogNotFound, UnknownModel
from runstate.logs.disk import RealDisk, replace_durably
from runstate.logs.target_directory import writing_to
from runstate.models.canonical import digest
from runstate.models.registry import find_model
from runstate.pipeline.origins import model_of, open_origin
from runstate.pipeline.page import render
from runstate.pipeline.page_report import FindingRow, Quarantine, Report
from runstate.pipeline.plain_files import find_files
from runstate.pipeline.progress import told_to, tracked
from runstate.pipeline.views import InvalidOption
from runstate.runtimes.orchestrator import Graph, Job

place = "runstate.pipeline.stages:graph"
spark_variable = "RUNSTATE_PIPELINE_SPARK"
"""How the processes of the run learn which Spark to use: JSON of `SparkSettings`. It changes no result."""
run_id = "pipeline"
_stage_max_s = 7 * 86_400.0
_directory_name = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Inputs(msgspec.Struct, frozen=True):
    """`inputs/MODEL.json`: everything that a model's stages depend on."""

    model: str
    """Where the model is: its name if it is installed, or its place, with an absolute path."""
    urls: list[str]
    directory: str
    """The pipeline's own, absolute."""
    versions: dict[str, str]
    """For each URL a digest over its streams and their versions: it changes when anything is appended."""
    settings: dict[str, Any] = {}
    """Those of the stages that change what comes out."""

    @property
    def name(self) -> str:
        """What files and directories of the model are called."""
        return model_name(self.model)


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
    """The URLs by the model that each is read with.

    Raises:
        InvalidUrl, UnknownModel, LogNotFound: before anything is begun.
    """
    if model is not None and model.rpartition(":")[0].endswith(".py"):
        # The stages are processes of their own, and a pipeline may be resumed from another working directory.
        model = str(Path(model).absolute())
    groups: dict[str, list[str]] = {}
    for url in urls:
        groups.setdefault(model_of([url], model), []).append(url)
    return groups


def model_name(place: str) -> str:
    """The name of a model, for its files and directories.

    Raises:
        UnknownModel: there is no such model, or its name cannot be a directory's.
    """
    name = find_model(place).name
    if not _directory_name.fullmatch(name):
        raise UnknownModel(
            f"The model at {place} is called {name!r}, which cannot be the name of a directory. Give it a name of "
            "letters, digits, '.', '-' and '_'"
        )
    return name


def model_names(places: Iterable[str]) -> list[str]:
    """The names of several models.

    Raises:
        UnknownModel: as `model_name` does.
        InvalidOption: two of them have one name.
    """
    names = {place: model_name(place) for place in places}
    if len(set(names.values())) < len(names):
        raise InvalidOption(f"Two of the models have one name: {', '.join(names)}. Run a pipeline for each")
    return list(names.values())


def write_inputs(directory: Path, groups: dict[str, list[str]], settings: dict[str, Any]) -> None:
    """Look at all logs, and write down what a run depends on. A file that says the same stays as it is.

    Raises:
        LogNotFound, NotALog, Unsupported: a log cannot be read.
        InvalidOption: the directory was made from more than these.
        LogFull, LogFailed: the directory cannot be written.
    """
    versions = {url: _version(url) for urls in groups.values() for url in urls}
    for model, before in inputs_in(directory).items():
        if dropped := set(before.urls) - set(groups.get(model, ())):
            raise InvalidOption(
                f"{directory} was made from {min(dropped)} too, and its tables hold that; name all of its logs, "
                "or choose another directory"
            )
    with writing_to(directory):
        (directory / "inputs").mkdir(parents=True, exist_ok=True)
        for model, urls in groups.items():
            found = Inputs(model, urls, str(directory.absolute()), {url: versions[url] for url in urls}, settings)
            path = directory / "inputs" / f"{model_name(model)}.json"
            text = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
            if not path.exists() or path.read_bytes() != text:
                publish(path, text)


def read_inputs(directory: Path) -> dict[str, Inputs]:
    """What the last run of a pipeline depended on, by where the model is.

    Raises:
        LogNotFound: there is no pipeline in that directory.
    """
    found = inputs_in(directory)
    if not found:
        raise LogNotFound(f"There is no pipeline in {directory}; begin one: runstate pipeline run URL --to {directory}")
    return found


def inputs_in(directory: Path) -> dict[str, Inputs]:
    found = {}
    for path in sorted((directory / "inputs").glob("*.json")):
        with suppress(msgspec.MsgspecError):  # Not a file of ours.
            inputs = msgspec.json.decode(path.read_bytes(), type=Inputs)
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
        ingested = _artifact(directory, f"ingest/{model}.json", IngestResult)
        audited = _artifact(directory, f"audit/{model}.json", AuditOutcome)
        by_severity = {
            severity: sum(f.count for f in audited.findings if f.severity == severity)
            for severity in ("damage", "warning")
        }
        found.append(
            Outcome(model, ingested.events, ingested.quarantined, audited.streams, *by_severity.values()),
        )
    return found


T = TypeVar("T")


def _artifact(directory: Path, name: str, kind: type[T]) -> T:
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
    from runstate.pipeline.session import session
    from runstate.pipeline.shipping import check_cluster

    settings = msgspec.json.decode(os.environ.get(spark_variable, "{}"), type=SparkSettings)
    log = os.open(Path(directory, "spark.log"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    spark = session(master=settings.master, remote=settings.remote, conf=settings.conf)
    check_cluster(spark, stage, urls)
    return spark


def _inputs(job: Job) -> Inputs:
    return msgspec.json.decode(job.read("inputs/{scope}.json"), type=Inputs)


def _ingest(job: Job) -> None:
    from runstate.pipeline.event_table import open_event_table
    from runstate.pipeline.jobs import ingest
    from runstate.pipeline.quarantine import reasons

    inputs = _inputs(job)
    spark = _spark(inputs.directory, "ingest", inputs.urls)
    to = Path(inputs.directory, "events", inputs.name)
    plain = [url for url in inputs.urls if url.startswith("files:")]
    logs = [url for url in inputs.urls if url not in plain]
    file_format = inputs.settings.get("format", "parquet")
    with tracked(spark, f"ingest {inputs.name}", told_to(inputs.directory)):
        for urls in filter(None, (logs, plain)):
            done = ingest(spark, urls, to, model=inputs.model, file_format=file_format)
    events = sum(entry.rows for entry in open_event_table(to).files("events"))
    set_aside = reasons(to)
    job.write_json("ingest/{scope}.json", IngestResult(done.commit, events, sum(set_aside.values()), set_aside))


def _replay(job: Job) -> None:
    from runstate.pipeline.jobs import replay
    from runstate.pipeline.snapshot_table import snapshot_counts

    inputs = _inputs(job)
    spark, root = _spark(inputs.directory, "replay"), Path(inputs.directory)
    events, to = root / "events" / inputs.name, root / "snapshots" / inputs.name
    with tracked(spark, f"replay {inputs.name}", told_to(inputs.directory)):
        done = replay(spark, f"table:{events}", to, model=inputs.model)
    job.write_json("replay/{scope}.json", ReplayResult(done.commit, *snapshot_counts(to)))


def _audit(job: Job) -> None:
    from runstate.pipeline import audit as audits

    inputs = _inputs(job)
    spark, root = _spark(inputs.directory, "audit", inputs.urls), Path(inputs.directory)
    # Plain files are no log that could be proven; what was taken from them is.
    proven = [url for url in inputs.urls if not url.startswith("files:")]
    if proven != inputs.urls:
        proven.append(f"table:{root / 'events' / inputs.name}")
    # Named by what it is about: an audit of something else never looks like this one.
    to = root / "findings" / inputs.name / digest(job.read("inputs/{scope}.json"))[:16]
    with writing_to(to.parent):
        to.parent.mkdir(parents=True, exist_ok=True)
        audits.remove_findings(to.parent)
    with tracked(spark, f"audit {inputs.name}", told_to(inputs.directory)):
        found = audits.audit(spark, proven, model=inputs.model, snapshots=root / "snapshots" / inputs.name)
        summary = audits.summary(audits.write(found, to))
    rows = [
        FindingRow(each.severity, each.code, each.count, each.example["stream"] or "", each.example["message"])
        for each in summary.codes
    ]
    job.write_json("audit/{scope}.json", AuditOutcome(summary.streams, summary.events, str(to), rows))


def _report(job: Job) -> None:
    from runstate.pipeline.report import Part, report

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
            [Part([f"table:{root / 'events' / each.name}"], each.model) for each in inputs],
            findings=sorted((f for each in audits for f in each.findings), key=lambda f: (f.severity, f.code)),
            quarantine=Quarantine(sum(by_reason.values()), sorted(by_reason.items())),
            generated_from=[url for each in inputs for url in each.urls],
        )
    job.write_json("report.json", made)
    job.write("report.html", render(made))


graph = build(["any"], Path())
"""What the processes of a run load: they need the workers alone, and get the paths of their inputs from the run."""
