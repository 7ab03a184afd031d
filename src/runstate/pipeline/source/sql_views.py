"""Logs, tables and pipeline directories as views of Spark SQL, with typed columns.

| view | of |
| --- | --- |
| `events` | logs and event tables; `event` is the event as VARIANT |
| `snapshots` | snapshot tables; without one, folded from the events; `state` is the state as VARIANT |
| `spans` | logs and event tables: what took time |
| `quarantine`, `heads` | event tables |
| `findings` | pipeline directories: what the last audit found |

Tables are read by Spark itself, from the list of files that Delta has: columns and row groups that a query does not
need are not read. Every page's checksum is verified.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType

from runstate.pipeline.jobs import read_view
from runstate.pipeline.source.origins import open_origin
from runstate.pipeline.source.relative_urls import located
from runstate.pipeline.stages import inputs_in
from runstate.pipeline.tables.event_table import split_version
from runstate.pipeline.tables.table import Table

_parsed = {"events": "event", "snapshots": "state"}
"""The column with the JSON of `body` as VARIANT."""


def read_table(spark: SparkSession, directory: Path, kind: str | None = None, version: int | None = None) -> DataFrame:
    """The rows of a table as Spark reads Parquet: by default, of the kind that the table is of.

    Raises:
        LogNotFound, NotALog: there is no table, or not that version of it.
        TableDamaged: its log is not what was written.
    """
    table = Table.open(directory, version)
    kind = kind or table.info.kind
    schema, files = from_arrow_schema(table.schema(kind)), table.files(kind)
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("parquet.page.verify-checksum.enabled", "true")
    return reader.parquet(*(str((table.place(kind) / entry.name).absolute()) for entry in files))


def typed(frame: DataFrame, parsed: str | None = None) -> DataFrame:
    """The frame with times as TIMESTAMP, and the JSON of `body` also as VARIANT in the column `parsed`."""
    times = [
        field.name for field in frame.schema if field.name.endswith("_at") and isinstance(field.dataType, StringType)
    ]
    columns = {name: f.try_to_timestamp(f.col(name)) for name in times}
    if parsed is not None:
        columns[parsed] = f.try_parse_json(f.col("body"))
    return frame.withColumns(columns) if columns else frame


class Places(NamedTuple):
    """Where the rows of the views come from."""

    tables: list[tuple[Path, int | None]]
    """Directories, and the versions that are asked for."""
    logs: list[str]
    findings: list[str]


def find_places(names: Sequence[str]) -> Places:
    """What logs, tables and pipeline directories hold.

    Raises:
        LogNotFound, NotALog, InvalidUrl: one is none of these.
    """
    found = Places([], [], [])
    for name in names:
        directory = Path(name)
        if ":" not in name and inputs_in(directory):
            found.tables.extend((path.parent, None) for path in sorted(directory.glob("*/*/table.json")))
            found.findings.extend(sorted(map(str, directory.glob("findings/*/*"))))
        elif ":" not in name or name.startswith("table:"):
            path, version = split_version(located(f"table:{name.removeprefix('table:')}"))
            Table.open(Path(path), version)
            found.tables.append((Path(path), version))
        else:
            open_origin(name).close()
            found.logs.append(name)
    return found


def register_views(
    spark: SparkSession, places: Sequence[str] | Places, model: str | None = None
) -> dict[str, DataFrame]:
    """Make temporary views of the given logs, tables and pipeline directories. Those that were made, by name.

    Raises:
        LogNotFound, NotALog, InvalidUrl: a place is none of these.
    """
    tables, logs, findings = places if isinstance(places, Places) else find_places(places)
    found: dict[str, list[DataFrame]] = defaultdict(list)
    if findings:
        found["findings"].append(spark.read.parquet(*findings))
    urls = list(logs)
    for path, version in tables:
        table = Table.open(path, version)
        for kind in table.kinds:
            if kind != "refusals":
                found[kind].append(read_table(spark, path, kind, version))
        if table.info.kind == "events":
            urls.append(f"table:{path}" + ("" if version is None else f"?version={version}"))
    found["events"] += [read_view(spark, url, model=model) for url in logs]
    if not found["snapshots"]:
        found["snapshots"] = [read_view(spark, url, "snapshots", model=model) for url in urls]
    found["spans"] = [read_view(spark, url, "spans", model=model) for url in urls]
    views = {name: typed(_union(frames), _parsed.get(name)) for name, frames in sorted(found.items()) if frames}
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
    return views


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
