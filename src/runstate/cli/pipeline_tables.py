"""pipeline versions, restore, vacuum, compact, convert: the care of tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from runstate.cli.options import AsJson, ModelName, parse_age
from runstate.cli.output import counted, words, write_json
from runstate.cli.pipeline import Conf, Master, Remote, check_spark, spark_for, tell_counts
from runstate.cli.tables import write_table

Directory = Annotated[Path, typer.Argument(help="The table's directory.", show_default=False)]


def versions(directory: Directory, as_json: AsJson = False) -> None:
    """List the versions of a table. `--as-of` of other commands, and `restore`, take their numbers."""
    check_spark()
    from runstate.pipeline.tables.versions import list_versions

    found = list_versions(directory)
    if as_json:
        for version in found:
            write_json(version)
    else:
        write_table(("version", "at", "what", "rows", "files"), map(msgspec.structs.astuple, found))


def restore(
    directory: Directory,
    version: Annotated[int, typer.Option("--version", help="The version to go back to.", show_default=False)],
) -> None:
    """Make a table what it was in a version. It becomes a new version, so it can be taken back.

    Also after another program has changed the table: what it has done no longer counts then.
    """
    check_spark()
    from runstate.pipeline.tables import versions as table_versions

    made = table_versions.restore(directory, version)
    words.print(f"version {made} of {directory} is what version {version} was")


def vacuum(
    directory: Directory,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Keep the versions of so long: 7d, 12h, 0h. By whole hours.")
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing; only say what would be.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the files that no recent version of a table has. Versions from before can no longer be read then."""
    before = parse_age(older_than)
    check_spark()
    from runstate.pipeline.tables import versions as table_versions

    unused = table_versions.vacuum(directory, before, dry_run=dry_run)
    if as_json:
        write_json(unused)
    elif unused:
        write_table(("file",), ([path] for path in unused))
    words.print(f"{counted(len(unused), 'file')} {'would be deleted' if dry_run else 'deleted'}")


def compact(
    directory: Directory,
    model: ModelName = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Write a table's many small files anew, as few large ones. It holds the same; `vacuum` deletes the old files."""
    check_spark()
    from runstate.pipeline import jobs
    from runstate.pipeline.tables.compaction import compact_snapshots
    from runstate.pipeline.tables.table import Table

    if Table.open(directory).info.kind == "snapshots":
        counts = {"rows": compact_snapshots(directory)}
    else:
        with spark_for(master, remote, conf, "compact", [f"table:{directory}"]) as spark:
            counts = jobs.compact(spark, directory, model=model).counts
    tell_counts(counts, as_json)


def convert(directory: Directory, model: ModelName = None, as_json: AsJson = False) -> None:
    """Convert a table of an earlier version of Runstate to Delta tables, in place."""
    check_spark()
    from runstate.pipeline.tables import conversion

    rows = conversion.convert(directory, model)
    tell_counts(rows, as_json)
    if "snapshots" in rows:
        words.print("the next 'runstate pipeline replay' folds the snapshots again")
