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
    return os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def denial(error: OSError) -> RunstateError | None:
    """The error for an operating system's refusal, or None if it was not about permissions."""
    if error.errno not in _denied or not isinstance(error.filename, str | bytes | os.PathLike):
        return None
    path = Path(os.fsdecode(error.filename))
    if error.errno != errno.EROFS and _is_there(path) and not is_readable(path):
        return not_readable(path)
    return not_writable(path)


def not_writable(path: PurePath) -> NotWritable:
    """The refusal of a write. For a file that is not there yet, it names the directory that does not take it."""
    blocking = path
    if is_writable(path) or not _is_there(path):
        blocking = next((parent for parent in path.parents if _is_there(parent)), path)
    return NotWritable(
        f"{blocking} cannot be written: {_reason(blocking)}. Nothing was changed. Ask for write permission, or copy the "
        "log with 'runstate copy' and write to the copy",
        path=str(blocking),
    )


def not_readable(path: PurePath) -> LogFailed:
    return LogFailed(f"{path} cannot be read: {_reason(path)}. Ask for read permission", path=str(path))


def _reason(path: PurePath) -> str:
    try:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return "it is on a read-only file system"
        found = os.stat(path)
    except OSError as error:
        return str(error.strerror)
    mode = stat.S_IMODE(found.st_mode)
    return (
        f"it belongs to {_user(found.st_uid)}, group {_group(found.st_gid)}, with mode {mode:04o}, "
        f"and this process runs as {_user(os.geteuid())}"
    )


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
