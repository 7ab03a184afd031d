"""Which application this user started a run with, kept outside of the run directory.

    STATE/runs/DIGEST.json    one file for each run; DIGEST is that of the run directory's path, STATE is the user's

A run's own events name its application too, but whoever wrote the run directory wrote them. `resume` imports only an
application that is recorded here, by this user, for this working directory.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from runstate.errors import LogFailed, RunstateError
from runstate.models.canonical import digest, undecodable
from runstate.storage.directories import make_directories
from runstate.storage.disk import RealDisk, replace_durably
from runstate.storage.user_state import user_state_directory

records_max = 10_000
"""When there are more, the oldest are removed: those runs need --app to be resumed."""
_record_bytes_max = 64 * 1024
_writable_by_others = stat.S_IWGRP | stat.S_IWOTH


class AppNotRecorded(RunstateError):
    """There is no record of the application that the run was started with; name it with --app FILE.py:NAME."""

    code = "run.app_not_recorded"


class StartedRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The record of one run. Paths are absolute and without symbolic links."""

    run_directory: str
    working_directory: str
    place: str
    version: int = 1


def record_started_run(run_directory: Path, place: str) -> None:
    """Record that this user runs the application at `place` in `run_directory`, from the current working directory.

    Raises:
        LogFailed: the user's state directory cannot be written.
    """
    real = os.path.realpath(run_directory)
    started = StartedRun(run_directory=real, working_directory=os.path.realpath("."), place=place)
    path = _path(real)
    try:
        make_directories(RealDisk(), path.parent)
        if not _is_private(os.lstat(path.parent)):
            raise LogFailed(f"{path.parent} belongs to another user, or others can write to it")
        _remove_oldest(path.parent)
        replace_durably(RealDisk(), path, msgspec.json.encode(started) + b"\n")
    except OSError as error:
        raise LogFailed(f"{path.parent} cannot be written: {error.strerror}") from error


def recall_place(run_directory: Path) -> str:
    """The application that this user started the run with, from this working directory.

    Raises:
        AppNotRecorded: there is no such record, or it cannot be trusted.
    """
    real, here = os.path.realpath(run_directory), os.path.realpath(".")
    try:
        started = _read(_path(real))
    except LogFailed as error:
        raise AppNotRecorded(str(error)) from error
    if started is None or started.run_directory != real:
        raise AppNotRecorded(f"There is no record that you started the run in {run_directory}.")
    if started.working_directory != here:
        raise AppNotRecorded(
            f"You started the run in {run_directory} from another working directory, {started.working_directory}."
        )
    return started.place


def _path(run_directory: str) -> Path:
    return user_state_directory() / "runs" / f"{digest(os.fsencode(run_directory))}.json"


def _read(path: Path) -> StartedRun | None:
    """
    Raises:
        AppNotRecorded: the file may have been written by someone else, or is not a record.
    """
    try:
        # Neither a link nor a pipe: whoever made those could choose what is read.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AppNotRecorded(f"{path} cannot be read: {error.strerror}.") from error
    with open(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or not _is_private(found) or not _is_private(os.lstat(path.parent)):
            raise AppNotRecorded(f"{path} is not trusted: another user owns it or can write to it.")
        try:
            return msgspec.json.decode(opened.read(_record_bytes_max), type=StartedRun)
        except undecodable as error:
            raise AppNotRecorded(f"{path} is not the record of a run: {error}.") from error


def _is_private(found: os.stat_result) -> bool:
    """Whether only this user can have written it. A symbolic link is refused: another user may own its target."""
    return (
        found.st_uid == os.geteuid()
        and not stat.S_ISLNK(found.st_mode)
        and not stat.S_IMODE(found.st_mode) & _writable_by_others
    )


def _remove_oldest(directory: Path) -> None:
    records = [path for path in directory.iterdir() if path.suffix == ".json"]
    if len(records) >= records_max:
        for path in sorted(records, key=lambda path: path.lstat().st_mtime)[: len(records) - records_max + 1]:
            path.unlink(missing_ok=True)
