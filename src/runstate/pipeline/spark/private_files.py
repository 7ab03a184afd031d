"""Files that Spark executes or sends on: nobody but this user may write to them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from runstate.storage.directories import make_directories
from runstate.storage.disk import RealDisk


def private_file(name: str, text: str, *, mode: int = 0o600) -> Path:
    """A file of that content in a directory that only this user can write to; made once, whole at any moment."""
    path = private_directory(f"{name}\n{text}") / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    return path


def private_directory(purpose: str) -> Path:
    """The directory for a purpose, always the same one for the same."""
    directory = _cache_directory() / hashlib.sha256(purpose.encode()).hexdigest()[:16]
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _cache_directory() -> Path:
    with contextlib.suppress(OSError, RuntimeError):
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runstate"
        make_directories(RealDisk(), base)
        # What lies here gets executed: nobody else may have made the directory, or be able to write into it.
        status = base.lstat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(base, os.W_OK) and base.is_dir():
            return base
    return process_directory()


@functools.cache
def process_directory() -> Path:
    """A directory for this process alone, gone when it ends."""
    directory, owner = Path(tempfile.mkdtemp(prefix="runstate-spark-")), os.getpid()

    def remove() -> None:
        # A forked child that ends must not take it away from its parent.
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory
