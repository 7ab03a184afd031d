"""What the stages of a pipeline read and write, by the names that other programs have for the same data.

Logs and tables in files are named by their absolute paths in the namespace `file`, as Spark's own lineage does: a table
by the directory of the Delta table. A log in a database has the namespace of its server.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pyarrow.parquet as pq

from runstate.errors import RunstateError, shown_url
from runstate.pipeline.source.relative_urls import located
from runstate.pipeline.stages import AuditOutcome, inputs_in, read_artifact, run_id
from runstate.pipeline.tables.table import Table
from runstate.runtimes.telemetry.datasets import Dataset

_in_files = ("sqlite", "ndjson", "segments", "wal", "archive", "table", "files")


def dataset_of(url: str) -> Dataset:
    """The dataset of a log, a table or plain files. Secrets in the URL are left out."""
    shown = shown_url(url)
    scheme, _, rest = located(shown).partition(":")
    if scheme in _in_files:
        path = Path(rest.partition("?")[0])
        return _in_file(path / "events" if scheme == "table" else path)
    parts = urlsplit(shown)
    server = parts.netloc.rpartition("@")[2]
    name = parts.path.strip("/")
    if scheme == "postgresql":
        schema = parse_qs(parts.query).get("schema", ["runstate"])[0]
        server = server if not server or ":" in server else f"{server}:5432"
        return Dataset(f"postgres://{server or 'localhost:5432'}", f"{name or 'postgres'}.{schema}.events", shown)
    return Dataset(f"{scheme}://{server}", name or server or shown, shown)


class StageDatasets:
    """The datasets of one pipeline. `directory` is the pipeline's own."""

    def __init__(self, directory: Path) -> None:
        self._root = directory.absolute()
        self._versions: dict[tuple[str, str], int] = {}
        """Of the table that a stage writes, when the stage was started."""

    def start(self, worker: str, scope: str) -> None:
        if (place := self._table(worker, scope)) is not None:
            self._versions[worker, scope] = _version(place)

    def reads(self, worker: str, scope: str) -> list[Dataset]:
        inputs = inputs_in(self._root)
        if worker == "report":
            tables = [self._delta(kind, model) for model in sorted(inputs) for kind in ("events", "quarantine")]
            return [*tables, *(self._findings(model) for model in sorted(inputs))]
        if worker == "replay":
            return [self._delta("events", scope)]
        urls = inputs[scope].urls if scope in inputs else []
        if worker == "ingest":
            return list(map(dataset_of, urls))
        # The audit reads logs; of plain files it reads what was taken from them.
        logs = [url for url in urls if not url.startswith("files:")]
        taken = [self._delta("events", scope)] if logs != urls else []
        return [*map(dataset_of, logs), *taken, self._delta("snapshots", scope)]

    def writes(self, worker: str, scope: str) -> list[Dataset]:
        if worker == "ingest":
            return [self._delta("events", scope), self._delta("quarantine", scope)]
        if worker == "replay":
            return [self._delta("snapshots", scope)]
        return [self._findings(scope)] if worker == "audit" else [_in_file(self._root / "report.html")]

    def written(self, worker: str, scope: str) -> list[Dataset]:
        if (place := self._table(worker, scope)) is not None:
            before = self._versions.get((worker, scope), 0)
            return [_counted(place, each, before) for each in self.writes(worker, scope)]
        run = self._root / "runs" / run_id
        if worker == "audit":
            kept_in = Path(read_artifact(run, f"audit/{scope}.json", AuditOutcome).kept_in)
            files = sorted(kept_in.glob("*.parquet"))
            rows = sum(pq.read_metadata(file).num_rows for file in files)
            size = sum(file.stat().st_size for file in files)
            return [_with(self._findings(scope), kept_in.name, rows, size, len(files))]
        # The run publishes its artifact; the copy beside the tables is written after the last stage.
        size = (run / "artifacts" / "report.html").stat().st_size
        return [_with(each, None, None, size, 1) for each in self.writes(worker, scope)]

    def _table(self, worker: str, scope: str) -> Path | None:
        kind = {"ingest": "events", "replay": "snapshots"}.get(worker)
        return None if kind is None else self._root / kind / scope

    def _delta(self, kind: str, model: str) -> Dataset:
        table = "snapshots" if kind == "snapshots" else "events"
        return _in_file(self._root / table / model / kind)

    def _findings(self, model: str) -> Dataset:
        return _in_file(self._root / "findings" / model)


def _version(place: Path) -> int:
    try:
        return Table.open(place).version()
    except RunstateError:
        return 0  # There is none yet; or it is damaged, which the stage itself reports.


def _counted(place: Path, dataset: Dataset, before: int) -> Dataset:
    kind = dataset.name.rpartition("/")[2]
    commits = [commit for commit in Table.open(place).commits() if commit.number > before]
    files = [entry for commit in commits for entry in commit.files if entry.kind == kind]
    rows, size = sum(entry.rows for entry in files), sum(entry.bytes for entry in files)
    return _with(dataset, str(_version(place)), rows, size, len(files))


def _in_file(path: Path) -> Dataset:
    return Dataset("file", str(path), f"file://{path}")


def _with(dataset: Dataset, version: str | None, rows: int | None, size: int, files: int) -> Dataset:
    return Dataset(dataset.namespace, dataset.name, dataset.uri, version, rows, size, files)
