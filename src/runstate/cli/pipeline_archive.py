"""pipeline archive: retention of a whole fleet, on Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from runstate.cli.options import AsJson, ModelName, parse_age
from runstate.cli.output import words, write_json
from runstate.cli.pipeline import Conf, Master, Remote, check_spark, spark_for, tell_counts
from runstate.cli.retention import DiscardFiles, DryRun, Keep, OlderThan, To
from runstate.cli.tables import write_table
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.models.registry import find_model
from runstate.retention import Archiving

Url = Annotated[str, typer.Argument(help="Where the log is: sqlite:PATH, postgresql://….", show_default=False)]


def archive(
    url: Url,
    to: To,
    older_than: OlderThan = "30d",
    keep: Keep = False,
    discard_files: DiscardFiles = False,
    dry_run: DryRun = False,
    model: ModelName = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Move a fleet's finished runs to an archive, many at once. Exit code 1 if one was refused.

    It does what `runstate archive` does. Interrupted, simply run it again.
    """
    archiving = Archiving(before=parse_age(older_than), keep=keep, discard_files=discard_files, dry_run=dry_run)
    check_spark()
    from runstate.pipeline.archive.job import archive as archived
    from runstate.pipeline.source.origins import model_of

    ArchiveDirectory(to).check(find_model(model_of([url], model)).name)
    with spark_for(master, remote, conf, "archive", [url]) as spark:
        done = archived(spark, url, to, archiving, model=model)
    if as_json:
        write_json(done)
    else:
        tell_counts(done.counts, as_json)
        if done.refused:
            write_table(("refused", "code", ""), ([each.stream, each.code, each.reason] for each in done.refused))
    if dry_run:
        words.print("nothing was changed: this is what would be done")
    raise typer.Exit(1 if done.counts.get("refused") else 0)
