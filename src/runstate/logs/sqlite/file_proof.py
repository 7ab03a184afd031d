"""Whether the file that a writer has open is still the one that stands under its name.

SQLite goes on writing to a file that was removed, or replaced by a backup; what it commits there is lost. The same is
true of `-wal`, which holds the newest commits.
"""

from __future__ import annotations

import os
from pathlib import Path


class FileProof:
    """Remembers which file a name stood for, and tells when it stands for another one."""

    def __init__(self, path: Path) -> None:
        self._paths = (str(path), f"{path}-wal")
        self._known: dict[str, tuple[int, int]] = {}

    def find_lost(self) -> str | None:
        """The name of a file that is gone or replaced; None if there is none. `-wal` is known from its first commit."""
        for path in self._paths:
            try:
                found = os.stat(path)
            except OSError:
                return path
            identity = (found.st_dev, found.st_ino)
            if self._known.setdefault(path, identity) != identity:
                return path
        return None
