"""verify, repair: is everything still there, and still what it was? And if not, what can be kept?"""

from __future__ import annotations

from typing import Annotated

import typer

from runstate.cli.options import AsJson, Url
from runstate.cli.output import counted, progress, words, write_json, write_line
from runstate.errors import StreamNotFound, shown_url
from runstate.logs.registry import open_log


def verify(
    url: Url,
    stream: Annotated[
        str | None, typer.Argument(help="One stream; default: the whole log.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for damage: missing, changed or foreign events, snapshots and blobs. Exit code 1 when there is some."""
    damage = warnings = 0
    with open_log(url, create=False) as log:
        if stream is not None and log.stream(stream) is None:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
        for finding in progress(log.verify(stream), "verifying"):
            damage += finding.severity == "damage"
            warnings += finding.severity == "warning"
            if as_json:
                write_json(finding)
            else:
                where = ":".join(str(part) for part in (finding.stream, finding.seq) if part is not None)
                write_line(f"{where or shown_url(url)}: {finding.code}: {finding.message}".encode())
        if not damage and not warnings:
            words.print("intact" if log.streams(limit=1) else "intact, but there is nothing in it: 0 streams")
        else:
            words.print(f"{damage} damaged, {counted(warnings, 'warning')}")
    raise typer.Exit(1 if damage else 0)


def repair(
    url: Url,
    stream: Annotated[
        str | None, typer.Argument(help="One stream; default: every damaged one.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a damaged stream writable again: what is intact stays, and the damaged file is kept beside it."""
    done = 0
    with open_log(url, create=False) as log:
        if stream is not None and log.stream(stream) is None:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
        damaged = {f.stream for f in progress(log.verify(stream), "verifying") if f.severity == "damage" and f.stream}
        for name in sorted(damaged):
            for finding in log.repair(name, dry_run=dry_run):
                done += 1
                if as_json:
                    write_json(finding)
                else:
                    write_line(f"{name}: {finding.code}: {finding.message}".encode())
    words.print("nothing to repair" if not done else f"{done} {'to be done' if dry_run else 'done'}")
