"""verify: is everything still there, and still what it was?"""

from __future__ import annotations

from typing import Annotated

import typer

from runstate.cli.options import AsJson, Url
from runstate.cli.output import progress, words, write_json, write_line
from runstate.errors import StreamNotFound
from runstate.logs.registry import open_log


def verify(
    url: Url,
    stream: Annotated[
        str | None, typer.Argument(help="One stream; default: the whole log.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for damage: missing, changed or foreign events, snapshots and blobs. Exit code 1 when there is some."""
    damage = 0
    with open_log(url, create=False) as log:
        if stream is not None and log.stream(stream) is None:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
        for finding in progress(log.verify(stream), "verifying"):
            damage += finding.severity == "damage"
            if as_json:
                write_json(finding)
            else:
                where = ":".join(str(part) for part in (finding.stream, finding.seq) if part is not None)
                write_line(f"{where or url}: {finding.code}: {finding.message}".encode())
    words.print("intact" if not damage else f"{damage} findings")
    raise typer.Exit(1 if damage else 0)
