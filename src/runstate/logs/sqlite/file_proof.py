"""Whether the file that a writer has open is still the one that stands under its name.

SQLite goes on writing to a file that was removed, or replaced by a backup; what it commits there is lost. The same is
true of `-wal`, which holds the newest commits.
"""

from __future__ import annotations

from pathlib import Path

from runstate.storage.descriptors import Identity
from runstate.storage.file_status import find_file


class FileProof:
    """Remembers which file a name stood for, and tells when it stands for another one."""

    def __init__(self, path: Path) -> None:
        self._paths = (str(path), f"{path}-wal")
        self._known: dict[str, Identity] = {}

    def find_lost(self) -> str | None:
        """The name of a file that is gone or replaced; None if there is none. `-wal` is known from its first commit."""
        for path in self._paths:
            try:
                identity, _ = find_file(path)
            except OSError:
                return path
            if self._known.setdefault(path, identity) != identity:
                return path
        return None
