"""The versions of a table: which there are, which one was current at a time, going back to one, deleting old ones."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from runstate.errors import LogNotFound
from runstate.logs.log import now
from runstate.pipeline.source.options import InvalidOption
from runstate.pipeline.tables.file_progress import consumed_by
from runstate.pipeline.tables.table import Commit, Table, live_files


class Version(msgspec.Struct, frozen=True):
    """What a table was after one job."""

    number: int
    at: str
    what: str
    rows: int
    files: int


def list_versions(directory: Path) -> list[Version]:
    """Oldest first. Those whose files were deleted can no longer be read."""
    table = Table.open(directory)
    commits, found = table.commits(), list[Version]()
    for place, commit in enumerate(commits, 1):
        files = live_files(commits[:place], table.info.kind).values()
        rows = sum(entry.rows for entry in files)
        found.append(Version(commit.number, commit.at, _what(commit, table.info.kind), rows, len(files)))
    return found


def _what(commit: Commit, kind: str) -> str:
    if "restores" in commit.consumed:
        return f"restore of version {commit.consumed['restores']}"
    if "compacts" in commit.consumed:
        return "compact"
    return "ingest" if kind == "events" else "replay"


def version_of(directory: Path, text: str) -> int:
    """The version that a text names: a number, or a time such as 2026-11-15T09:30:00Z.

    Raises:
        LogNotFound: there was none yet.
        InvalidOption: it names neither.
    """
    if text.isdigit():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidOption(f"{text[:80]!r} is no version: give a number, or a time as 2026-11-15T09:30:00Z") from None
    if time.tzinfo is None:
        raise InvalidOption(f"{text!r} has no time zone: write {text}Z for UTC")
    numbers = [each.number for each in Table.open(directory).commits() if datetime.fromisoformat(each.at) <= time]
    if not numbers:
        raise LogNotFound(f"{directory} had no version yet at {text}")
    return numbers[-1]


def at_version(url: str, text: str) -> str:
    """The URL of a table as it was in a version, or at a time.

    Raises:
        InvalidOption: it is no table.
    """
    if not url.startswith("table:"):
        raise InvalidOption(
            f"Only tables keep their versions: {url[:80]!r} is none. Give table:DIR, or leave out --as-of"
        )
    return f"{url}?version={version_of(Path(url.removeprefix('table:')), text)}"


def restore(directory: Path, number: int) -> int:
    """Make a table what it was in a version: by a new one, so that this can be taken back, too. The new one's number.

    Also where another program has changed the table: what it has done no longer counts then.

    Raises:
        LogNotFound: there is no such version, or its files were deleted.
        LogBusy: another job is writing to the table.
    """
    table = Table.open(directory)
    with table.writing(is_checked=False):
        commits = [commit for commit in table.noted() if commit.number <= number]
        if not commits or commits[-1].number != number:
            raise LogNotFound(f"{directory} has no version {number}; runstate pipeline versions {directory} lists them")
        files = [entry for kind in table.kinds for entry in live_files(commits, kind).values()]
        if gone := [entry.name for entry in files if not (table.place(entry.kind) / entry.name).exists()]:
            raise LogNotFound(f"Version {number} of {directory} can no longer be read: {gone[0]} was deleted")
        consumed = {name: value for name, value in commits[-1].consumed.items() if name != "compacts"}
        consumed |= {"files": consumed_by(commits, directory), "restores": number}
        made = table.next_number()
        table.commit(Commit(number=made, at=now(), files=files, replaces=True, consumed=consumed))
        return made


def vacuum(directory: Path, before: datetime, *, dry_run: bool = False) -> list[str]:
    """Delete the files that no version since a time has, by whole hours. Their paths.

    Files that are not ours stay, whatever Delta says of them.

    Raises:
        LogBusy: another job is writing to the table.
    """
    table = Table.open(directory)
    hours = max(0, math.ceil((datetime.now(UTC) - before).total_seconds() / 3600 - 0.001))
    with table.writing():
        unused = table.unused_files(hours)
        for path in [] if dry_run else unused:
            (directory / path).unlink(missing_ok=True)
        return unused
