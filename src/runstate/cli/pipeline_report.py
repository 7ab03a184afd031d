"""pipeline report: a fleet as a page."""

from __future__ import annotations

from typing import Annotated

import typer

from runstate.cli.options import AsJson, ModelName
from runstate.cli.output import words, write_json
from runstate.cli.pipeline import AsOf, Conf, Master, Remote, To, Urls, check_spark, spark_for, tables_as_of
from runstate.storage.directories import make_directories
from runstate.storage.disk import RealDisk
from runstate.storage.target_directory import writing_to


def report(
    urls: Urls,
    to: To,
    model: ModelName = None,
    as_of: AsOf = None,
    clock: Annotated[
        str | None,
        typer.Option(
            "--clock", help="The time that the page shows first: emitted (if most events have it) or persisted."
        ),
    ] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Durations, failures, throughput, waits and costs of a fleet, as a page that needs nothing else."""
    check_spark()
    from runstate.pipeline.report.figures import Part
    from runstate.pipeline.report.figures import report as made
    from runstate.pipeline.report.page import check_report_target, render
    from runstate.pipeline.report.page_report import read_clock
    from runstate.pipeline.stages import grouped, publish

    shown_first, groups = None if clock is None else read_clock(clock), grouped(tables_as_of(urls, as_of), model)
    check_report_target(to)
    with spark_for(master, remote, conf, "report", urls) as spark:
        found = made(spark, [Part(each, model or name) for name, each in groups.items()], clock=shown_first)
    with writing_to(to):
        make_directories(RealDisk(), to)
    publish(to / "report.html", render(found))
    if as_json:
        write_json(found)
    words.print(f"report: {to / 'report.html'}")
