"""The group `pipeline`, with the commands that have modules of their own."""

from __future__ import annotations

from runstate.cli import (
    pipeline_archive,
    pipeline_report,
    pipeline_sql,
    pipeline_stream,
    pipeline_tables,
    pipeline_warm,
)
from runstate.cli.pipeline import app

app.command("archive")(pipeline_archive.archive)
app.command("report")(pipeline_report.report)
app.command("stream")(pipeline_stream.stream)
for command in (
    pipeline_tables.versions,
    pipeline_tables.restore,
    pipeline_tables.vacuum,
    pipeline_tables.compact,
    pipeline_tables.convert,
    pipeline_sql.sql,
    pipeline_sql.shell,
):
    app.command(command.__name__)(command)
app.command("warm")(pipeline_warm.warm)

__all__ = ["app"]
