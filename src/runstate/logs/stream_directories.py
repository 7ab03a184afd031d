"""What file logs share: a directory per stream, named by its id, below one that is made with the log.

A name that begins with a dot is the log's own, so an id that begins with a dot, or with the sign that marks such ids,
gets the sign in front.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from typing import Protocol, runtime_checkable

from runstate.errors import InvalidStream, LogNotFound, NotALog
from runstate.models.model import check_file_stream
from runstate.storage.disk import Disk
from runstate.storage.disk_errors import translate, translated
from runstate.storage.target_directory import foreign_entries, refuse_foreign

LOCKS = ".locks"
_signs = {"ndjson": ("events.ndjson",), "wal": ("wal.jsonl", "ledger.json")}
"""Files by which the kind of a log is known that keeps its streams right below its root."""
_sessions, _manifest = "sessions", "manifest.jsonl"
_looked_at_max = 16
_nothing = re.compile("(?!)")
_escape = "%"


@runtime_checkable
class DirectoryLog(Protocol):
    """A log that keeps each stream in a directory, which goes with the stream when that is deleted."""

    def files_beside(self, stream: str) -> list[str]:
        """The files in a stream's directory that the log did not write."""
        ...


def directory_name(stream: str) -> str:
    """The name of a stream's directory, always a single part of a path.

    Raises:
        InvalidStream: the id cannot be a file name.
    """
    check_file_stream(stream)
    return _escape + stream if stream[0] in (".", _escape) else stream


def streams_among(names: list[str], after: str, until: str | None) -> list[str]:
    """The ids with `after < id <= until` that a directory's names stand for, sorted by code point."""
    ids = [name[1:] if name[0] == _escape else name for name in names if name[0] != "."]
    return sorted(id_ for id_ in ids if id_ > after and (until is None or id_ <= until) and _is_stream(id_))


def _is_stream(stream: str) -> bool:
    """Whether a name that stands in the directory could be a stream's; somebody may have put anything there."""
    try:
        check_file_stream(stream)
    except InvalidStream:
        return False
    return True


def files_beside(disk: Disk, home: PurePath, own: re.Pattern[str]) -> list[str]:
    """What a stream's directory holds beside what `own` matches. Empty directories do not count."""
    with translated():
        if not disk.exists(home):
            return []
        found = foreign_entries(home, own, disk=disk)
        return [path.rstrip("/") for path in found if not path.endswith("/") or disk.names(home / path)]


def prepare_root(disk: Disk, root: PurePath, create: bool, has_streams: Callable[[list[str]], bool], kind: str) -> bool:
    """Make a log's directory if it is not there. True: it was made, and its name survives a power cut.

    `has_streams` tells by the names in the directory whether there are streams of the log: older logs have no `.locks`,
    which marks a log's directory.

    Raises:
        LogNotFound: it is not there, and `create` is false.
        NotALog: a file is there, a directory with something else in it, or a log of another kind.
        LogFailed: it cannot be made: no such directory above it, no permission.
    """
    try:
        # To be read, since the caller may name the directory by a link, which is not opened to be changed.
        disk.open(root, read_only=True).close()
    except IsADirectoryError:
        with translated():
            _refuse_other_kind(disk, root, has_streams, kind)
        if not disk.exists(root / LOCKS):
            _claim(disk, root, create, has_streams)
        return False
    except FileNotFoundError:
        if not create:
            raise LogNotFound(f"There is no directory {root}", path=str(root)) from None
    except NotADirectoryError as error:
        raise NotALog(f"{root} lies below a file, not in a directory") from error
    except OSError as error:
        raise translate(error) from error
    else:
        raise NotALog(
            f"{root} is a file, not a directory of streams; it was left untouched. Check the path and the kind in the "
            "URL"
        )
    with translated():
        try:
            disk.make_directory(root)
        except FileExistsError:
            return False
        try:
            _mark(disk, root)
            disk.sync_directory(root.parent)
        except BaseException:
            # A name that a sync has failed on is never sure again; only a new one is.
            with suppress(OSError):
                disk.remove_directory(root / LOCKS)
            disk.remove_directory(root)
            raise
    return True


def _refuse_other_kind(disk: Disk, root: PurePath, has_streams: Callable[[list[str]], bool], kind: str) -> None:
    """Refuse a log of another kind, by a few of its streams.

    Raises:
        NotALog: it is one, and none of its streams is of this kind.
    """
    names = [name for name in disk.some_names(root, _looked_at_max) if not name.startswith(".")]
    found = _kind_of(disk, root, names)
    if found not in (None, kind) and not has_streams(names):
        raise NotALog(
            f"{root} is a log of the kind {found}, not {kind}; it was left untouched. Open it as {found}:{root}, or "
            "choose another directory for a new log",
            path=str(root),
        )


def _kind_of(disk: Disk, root: PurePath, names: list[str]) -> str | None:
    """The kind of a log with such streams; None where they do not tell."""
    for name in names:
        for kind, files in _signs.items():
            if any(disk.exists(root / name / file) for file in files):
                return kind
    if _sessions in names and disk.kind(root / _sessions) == "directory":
        sessions = disk.some_names(root / _sessions, _looked_at_max)
        if any(disk.exists(root / _sessions / name / _manifest) for name in sessions):
            return "segments"
    return None


def _claim(disk: Disk, root: PurePath, create: bool, has_streams: Callable[[list[str]], bool]) -> None:
    """Mark an empty directory as a log's, if it is to `create` one. One that holds something else is refused."""
    with translated():
        names = disk.names(root)
    if LOCKS in names or has_streams(names) or not (names or create):
        return
    if not create:
        raise NotALog(
            f"{root} is not empty and was not written by Runstate as a log of this kind: it holds {min(names)!r}. "
            "Check the path and the kind in the URL, or choose an empty or new directory",
            path=str(root),
        )
    refuse_foreign(root, _nothing, disk=disk)
    with translated():
        _mark(disk, root)


def _mark(disk: Disk, root: PurePath) -> None:
    with suppress(FileExistsError):
        disk.make_directory(root / LOCKS)
    disk.sync_directory(root)
