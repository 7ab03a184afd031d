"""pipeline sql and pipeline shell: questions to a fleet, in Spark's SQL."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runstate.cli.options import AsJson, ModelName
from runstate.cli.output import words, write_json
from runstate.cli.pipeline import Conf, Master, Remote, check_spark, spark_for, spark_settings, start_spark
from runstate.cli.tables import write_table
from runstate.errors import RunstateError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Places = Annotated[
    list[str],
    typer.Argument(
        help="Where to look: logs (sqlite:PATH, postgresql://…), tables, directories of `pipeline run`.",
        show_default=False,
    ),
]


def sql(
    query: Annotated[str, typer.Argument(help="A query in Spark's SQL.", show_default=False)],
    places: Places,
    model: ModelName = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Ask a fleet in SQL. The views are events, snapshots, spans and, of tables, quarantine, heads and findings."""
    check_spark()
    from runstate.pipeline.source.sql_views import find_places, register_views

    found = find_places(places)  # Refused before Spark is started.
    with spark_for(master, remote, conf, "sql", found.logs) as spark:
        register_views(spark, found, model)
        frame = _asked(spark, query)
        columns, rows = frame.columns, list(_rows(frame))
    _write(columns, rows, as_json)


def shell(
    places: Places,
    model: ModelName = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Ask a fleet in SQL, one statement after the other. A statement ends with a semicolon; Ctrl-D ends the shell."""
    check_spark()
    from runstate.pipeline.source.sql_views import find_places, register_views

    found = find_places(places)  # Refused before Spark is started.
    with suppress(ImportError):
        import readline  # noqa: F401 - input() then has a history, which is kept in memory alone
    words.print("starting Spark…", style="dim")
    with start_spark(spark_settings(master, remote, conf), "shell", found.logs) as spark:
        for name, frame in register_views(spark, found, model).items():
            words.print(f"{name}: {', '.join(frame.columns)}", style="dim")
        for statement in _statements():
            try:
                frame = _asked(spark, statement)
                _write(frame.columns, list(_rows(frame)), as_json=False)
            except RunstateError as error:
                words.print(f"{error} ({error.code})", style="red", markup=False)
            except KeyboardInterrupt:
                words.print("cancelled")


def _statements() -> Iterator[str]:
    """What is typed, up to each semicolon at the end of a line. Ctrl-C forgets what was begun."""
    lines: list[str] = []
    while True:
        try:
            line = input(("sql> " if not lines else "...> ") if sys.stdin.isatty() else "")
        except KeyboardInterrupt:
            words.print("")
            lines = []
            continue
        except EOFError:
            if any(map(str.strip, lines)):
                yield "\n".join(lines)
            return
        lines.append(line)
        if line.rstrip().endswith(";"):
            statement, lines = "\n".join(lines).rstrip().removesuffix(";"), []
            if statement.strip():
                yield statement
        elif not any(map(str.strip, lines)):
            lines = []


def _asked(spark: SparkSession, query: str) -> DataFrame:
    """
    Raises:
        InvalidOption: Spark does not understand the query.
        PipelineFailed: it cannot be answered.
    """
    from pyspark.errors import AnalysisException, ParseException

    from runstate.pipeline.source.options import InvalidOption
    from runstate.pipeline.spark.failures import explain, readable

    try:
        with readable("sql"):
            return spark.sql(query)
    except RunstateError as error:
        if isinstance(error.__cause__, AnalysisException | ParseException):
            raise InvalidOption(f"Spark refuses the query: {explain(error.__cause__)}") from error
        raise


def _rows(frame: DataFrame) -> Iterator[list[Any]]:
    from runstate.pipeline.spark.failures import readable

    with readable("sql"):
        for row in frame.collect():
            yield [_plain(value) for value in row]


def _plain(value: Any) -> Any:
    """A value of Spark as JSON has it."""
    if isinstance(value, datetime):  # Spark gives it in the time of this machine.
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "asDict"):
        return _plain(value.asDict())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "toJson"):  # A VARIANT.
        return json.loads(value.toJson())
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _write(columns: list[str], rows: list[list[Any]], as_json: bool) -> None:
    if as_json:
        for row in rows:
            write_json(dict(zip(columns, row, strict=True)))
    elif columns:
        write_table(columns, [[_shown(value) for value in row] for row in rows])


def _shown(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
