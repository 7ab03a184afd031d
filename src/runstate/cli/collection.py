"""gc: blobs that no stream refers to any more are deleted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from runstate.cli.options import AsJson, Url, parse_age
from runstate.cli.output import counted, words, write_json, write_line
from runstate.errors import Unsupported
from runstate.logs.blob_collection import BlobCollectingLog
from runstate.logs.registry import open_log


def gc(
    url: Url,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            help="Only blobs that were put so long ago: 2h, 30m, 0s. Default: 1h; none for segments:, whose writers "
            "hold a lock.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing; only say what would be.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the blobs that no stream refers to any more. In any doubt, nothing is deleted.

    Exit code 1 if the log is damaged, 4 if writers are putting blobs; nothing is deleted then.
    """
    grace_s = None if older_than is None else (datetime.now(UTC) - parse_age(older_than)).total_seconds()
    with open_log(url, create=False) as log:
        if not isinstance(log, BlobCollectingLog):
            raise Unsupported("This log collects no blobs")
        collected = log.collect_blobs(dry_run=dry_run, grace_s=grace_s)
    if as_json:
        write_json(collected)
    else:
        for ref in collected.removed:
            write_line(ref.encode())
    words.print(
        f"{counted(len(collected.removed), 'blob')} of {collected.removed_bytes} bytes "
        f"{'would be deleted' if dry_run else 'deleted'}, {collected.kept} kept"
        + (f", {collected.recent} too recent" if collected.recent else "")
    )
