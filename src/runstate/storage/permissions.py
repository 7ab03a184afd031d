"""Whether a path may be written, and the error that says why not: who owns it, and what to do.

Asked with the process's effective ids, as the kernel does when a file is opened. Nothing is opened here: to open and
close a SQLite file would drop the locks that this process holds on it.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from pathlib import Path, PurePath

from runstate.errors import LogFailed, NotWritable, RunstateError

_denied = {errno.EACCES, errno.EPERM, errno.EROFS}


def is_writable(path: PurePath) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def is_readable(path: PurePath) -> bool:
    """Whether a file can be read; of a directory, whether the files in it can be reached."""
    needed = os.R_OK | os.X_OK if os.path.isdir(path) else os.R_OK
    return os.access(path, needed, effective_ids=os.access in os.supports_effective_ids)


def denial(error: OSError) -> RunstateError | None:
    """The error for an operating system's refusal, or None if it was not about permissions."""
    if error.errno not in _denied or not isinstance(error.filename, str | bytes | os.PathLike):
        return None
    path = Path(os.fsdecode(error.filename))
    # A directory that cannot be searched hides what is in it, so the first one that can be seen is looked at.
    seen = next((each for each in (path, *path.parents) if _is_there(each)), path)
    if error.errno != errno.EROFS and not is_readable(seen):
        return not_readable(seen)
    return not_writable(path, error.strerror)


def not_writable(path: PurePath, refusal: str | None = None) -> NotWritable:
    """The refusal of a write. For a file that is not there yet, it names the directory that does not take it.

    `refusal` is what the system said; it is all that is known where the modes allow the write.
    """
    there = [each for each in (path, *path.parents) if _is_there(each)]
    blocking = next((each for each in there[:2] if not is_writable(each)), None)
    if blocking is None:
        reason = refusal or "permission denied"
    elif os.statvfs(blocking).f_flag & os.ST_RDONLY:
        reason = "it is on a read-only file system"
    else:
        reason = _ownership(blocking)
    return NotWritable(
        f"{blocking or path} cannot be written: {reason}. Ask for write permission, choose a directory that you can "
        "write to, or write to a copy of the log, made with 'runstate copy'",
        path=str(blocking or path),
    )


def not_readable(path: PurePath) -> LogFailed:
    return LogFailed(f"{path} cannot be read: {_ownership(path)}. Ask for read permission", path=str(path))


def _ownership(path: PurePath) -> str:
    found = os.stat(path)
    owner, mode = f"{_user(found.st_uid)}, group {_group(found.st_gid)}", stat.S_IMODE(found.st_mode)
    return f"it belongs to {owner}, with mode {mode:04o}, and this process runs as {_user(os.geteuid())}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_there(path: PurePath) -> bool:
    return os.path.lexists(path)
