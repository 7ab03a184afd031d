"""The group `pipeline`, with the commands that have modules of their own."""

from __future__ import annotations

from runstate.cli import pipeline_archive, pipeline_stream, pipeline_warm
from runstate.cli.pipeline import app

app.command("archive")(pipeline_archive.archive)
app.command("stream")(pipeline_stream.stream)
app.command("warm")(pipeline_warm.warm)

__all__ = ["app"]
