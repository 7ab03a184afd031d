"""A file of OpenLineage events, one JSON object a line, for its owner alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from openlineage.client.serde import Serde
from openlineage.client.transport import Transport

from runstate.storage.disk import RealDisk


class FileTransport(Transport):
    """Appends to the file. An event that a full disk has cut off never shares its line with the next one."""

    kind = "runstate-file"

    def __init__(self, path: Path) -> None:
        """OSError: the file cannot be opened to write."""
        self._file = RealDisk().open(path, create=True)

    def emit(self, event: Any) -> None:
        size = self._file.size()
        is_line_open = size > 0 and self._file.read_at(size - 1, 1) != b"\n"
        self._file.append(b"\n" * is_line_open + Serde.to_json(event).encode() + b"\n")

    def close(self, timeout: float = -1) -> bool:
        self._file.close()
        return True
