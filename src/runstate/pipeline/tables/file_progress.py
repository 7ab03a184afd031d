"""How far plain files were read: what a commit keeps of each, and what there is for the next job.

A line that no newline ends is taken if it is an event: many a file ends like that. If it is none, it may still be under
way. It counts as quarantined as long as it is what the file ends in, which is why the commit keeps it and no file of
the table does: the next commit that tells of the file may say otherwise.
"""

from __future__ import annotations

import os
import secrets
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import msgspec

from runstate.models.canonical import undecodable
from runstate.models.model import AnyModel
from runstate.pipeline.source.file_lines import (
    FileChanged,
    LineNumbers,
    Part,
    Stretch,
    fingerprint,
    opened,
    read_lines,
    tail_bytes,
    whole,
)
from runstate.pipeline.source.packed_files import Unpackable, is_packed, unpacking
from runstate.pipeline.source.plain_files import Plan, bad_line, body_of, find_files, row_of
from runstate.pipeline.tables.sorted_files import TableDamaged
from runstate.pipeline.tables.table import Commit, Table
from runstate.storage.disk import write_private

_bytes_per_task = 32 << 20
_bytes_per_task_max = 1 << 30
_unfinished_bytes_max = 1 << 10
"""What a commit keeps of a line. The file has it all."""
_samples_per_task = 32


class Unfinished(msgspec.Struct, frozen=True):
    """What a file ends in, and what is no event."""

    line: int
    code: str
    reason: str
    content: bytes


class Consumed(msgspec.Struct, frozen=True):
    """How far a file was read, as a commit keeps it."""

    size: int
    line: int
    """Where the line begins that was read up to there; `size` itself where a newline ended it."""
    sha256: str
    """Of the last bytes before `size`."""
    unfinished: Unfinished | None = None
    """What begins at `size`."""


def consumed_before(table: Table) -> dict[str, Consumed]:
    """What all commits that count have read of files.

    Raises:
        TableDamaged: a commit is not what was written.
    """
    return consumed_by(table.commits(), table.directory)


def consumed_by(commits: Iterable[Commit], directory: Path) -> dict[str, Consumed]:
    """The same of the first commits of a table."""
    found: dict[str, Consumed] = {}
    for commit in commits:
        if commit.replaces:
            found = {}
        try:
            found |= msgspec.convert(commit.consumed.get("files", {}), dict[str, Consumed])
        except undecodable as error:
            raise TableDamaged(f"Commit {commit.number} of {directory} is not what was written: {error}") from error
    return found


def new_parts(
    urls: Sequence[str], before: Mapping[str, Consumed], model: AnyModel, bytes_max: int
) -> tuple[list[Part], dict[str, Consumed]]:
    """What is to be read of the files that the URLs name, and what to keep of those in which anything is new.

    Raises:
        InvalidUrl, LogNotFound, LogFailed: a URL names no file, or one that cannot be read.
        FileChanged: a file is not what was read before, with more behind it.
    """
    parts, consumed = [], {}
    for file in dict.fromkeys(file for url in urls for file in find_files(url)):
        known = before.get(file)
        found = whole(file) if known is None else _grown(file, known)
        if is_packed(file):
            part, read = found, Consumed(found.end, found.end, found.tail)
        else:
            part, read = _without_unfinished(found, model, bytes_max)
        if part.start < part.end:
            parts.append(part)
        elif known is not None:
            read = msgspec.structs.replace(known, unfinished=read.unfinished)
        if read != known:
            consumed[file] = read
    return parts, consumed


def _grown(file: str, before: Consumed) -> Part:
    with opened(file) as found:
        end = os.fstat(found.fileno()).st_size
        if end < before.size:
            raise FileChanged(f"{file} had {before.size} bytes, now it has {end}; {_advice}", path=file)
        if fingerprint(found, before.size) != before.sha256:
            raise FileChanged(f"{file} was changed in what was ingested of it; {_advice}", path=file)
        if end == before.size:
            return Part(file, end, end, before.sha256)
        if is_packed(file):
            raise FileChanged(f"{file} has grown, and a compressed file is read only whole; {_advice}", path=file)
        return Part(file, _goes_on(found, before, end), end, fingerprint(found, end))


_advice = "nothing was ingested. Put the old file back and give new events a file of their own, or make a new table"


def _goes_on(file: BinaryIO, before: Consumed, end: int) -> int:
    """Where the first line begins that was not read before."""
    if before.line == before.size:
        return before.size
    file.seek(before.size)
    added = file.read(tail_bytes)
    blank = len(added) - len(added.lstrip(b" \t\r"))
    if added[blank : blank + 1] == b"\n":
        return before.size + blank + 1
    # With something behind the event that the file ended in, the line is another one.
    return end if before.size + blank == end else before.line


def _without_unfinished(part: Part, model: AnyModel, bytes_max: int) -> tuple[Part, Consumed]:
    """A part up to its last line that is ended, or an event; and what to keep of it."""
    with opened(part.file) as file:
        begins = _last_line(file, part)
        if begins == part.end:
            return part, Consumed(part.end, part.end, part.tail)
        for line in read_lines(file, Stretch(part, begins, part.end), bytes_max):
            if (bad := bad_line(row_of(line, part.file, model, bytes_max))) is not None:
                tail = fingerprint(file, begins)
                number = LineNumbers().of(part.file, begins)
                unfinished = Unfinished(number, *bad, content=line.content[:_unfinished_bytes_max])
                return Part(part.file, part.start, begins, tail), Consumed(begins, begins, tail, unfinished)
    return part, Consumed(part.end, begins, part.tail)


def _last_line(file: BinaryIO, part: Part) -> int:
    """Where the last line begins if no newline ends it, else the end."""
    end = part.end
    while end > part.start:
        begins = max(part.start, end - tail_bytes)
        file.seek(begins)
        found = file.read(end - begins).rfind(b"\n")
        if found >= 0:
            return begins + found + 1
        end = begins
    return part.start


# --- how to divide it -----------------------------------------------------------------------------------------


def planned(parts: Sequence[Part], tasks: int, model: AnyModel) -> Plan:
    """The parts, and ranges of streams with about as many lines in each: a task for each, however many there are."""
    size = sum(part.end - part.start for part in parts)
    tasks = max(1, min(-(-size // _bytes_per_task), max(tasks, -(-size // _bytes_per_task_max))))
    streams = sorted(_sampled(parts, tasks * _samples_per_task if tasks > 1 else 0, model))
    bounds = {streams[len(streams) * number // tasks] for number in range(1, tasks)} if streams else set()
    return Plan(list(parts), sorted(bounds))


def _sampled(parts: Sequence[Part], count: int, model: AnyModel) -> Iterator[str]:
    """The streams of lines that stand at even distances."""
    ends = list(accumulate(part.end - part.start for part in parts))
    unpacked: set[str] = set()
    for number in range(count):
        place = ends[-1] * number // count
        index = bisect_right(ends, place)
        part = parts[index]
        if is_packed(part.file):
            if part.file not in unpacked:
                unpacked.add(part.file)
                with suppress(Unpackable), unpacking(part.file) as beginning:  # A task says where it is damaged.
                    yield from _streams_in(beginning.read(tail_bytes), model)
            continue
        with opened(part.file) as file:
            file.seek(part.end - (ends[index] - place))
            begun, *lines = file.read(tail_bytes).split(b"\n", 2)
        with suppress(Exception):  # Whatever a model raises about a line, it is no sample.
            yield model.envelope(body_of((lines or [begun])[0], 1)).stream


def _streams_in(beginning: bytes, model: AnyModel) -> Iterator[str]:
    """The streams of the first whole lines of a file."""
    for line in beginning.split(b"\n")[:-1][:_samples_per_task]:
        with suppress(Exception):  # As above.
            yield model.envelope(body_of(line, 1)).stream


def keep_plan(table: Table, plan: Plan) -> Path:
    """A file for the planner, which has no other way to learn of many parts. The next job removes it."""
    path = table.directory / f"plan-{secrets.token_hex(8)}.json"
    write_private(path, msgspec.json.encode(plan))
    return path
