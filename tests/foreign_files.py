"""Files of somebody else in a directory that a command writes to, and the commands that have such a directory.

`plant` puts the files there. `Planted.check` proves that each of them is still there, byte for byte.
"""

from __future__ import annotations

import os
from pathlib import Path

names = (
    "notes.txt",
    "x.tmp",
    "events.0123456789abcdef.tmp",
    "photos/one.jpg",
    "data/mine.txt",
    "data/mine.parquet",
    "data/mine.tmp",
    "runs/mine",
    "builds/mine",
    "sources/mine",
    "desk/mine",
    "other-desk/mine",
    "pipeline/mine",
    "checkpoints/mine/part",
    "findings/mine/part",
    "findings/engine/mine",
    ".spark/mine",
    "inputs/mine.txt",
)
"""Relative to the target directory. Most are names that a command has deleted at some time."""


class Planted:
    """Foreign files in a directory, and one outside of it that a symlink in it leads to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._outside = directory.parent / f"outside-{directory.name}"
        self._outside.mkdir()
        (self._outside / "mine.txt").write_bytes(b"outside")
        for name in names:
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"mine: " + os.fsencode(name))
        (directory / "link").symlink_to(self._outside)

    def check(self) -> None:
        changed = [name for name in names if self._read(name) != b"mine: " + os.fsencode(name)]
        assert not changed
        assert (self._directory / "link").readlink() == self._outside
        assert [path.read_bytes() for path in self._outside.iterdir()] == [b"outside"]

    def _read(self, name: str) -> bytes | None:
        path = self._directory / name
        return path.read_bytes() if path.exists() else None


targets = {
    "append ndjson:": "append ndjson:{to} --model engine",
    "append segments:": "append segments:{to} --model engine",
    "append wal:": "append wal:{to} --model engine",
    "archive --to": "archive sqlite:runs.db --to {to} --older-than 0s --keep",
    "copy ndjson:": "copy sqlite:runs.db ndjson:{to}",
    "copy segments:": "copy sqlite:runs.db segments:{to}",
    "copy wal:": "copy sqlite:runs.db wal:{to}",
    "demo --to": "demo --to {to}",
    "project --state": "project sqlite:runs.db --state {to}",
    "project --to": "project sqlite:runs.db --to parquet:{to} --state state",
    "queue push": "queue push {to} builds 1",
    "restore": "restore old ndjson:{to}",
    "run --runs": "run graph.py:graph --runs {to}",
    "session import": "session import segments:{to} bundle.json --keyring keyring.json",
}
"""Commands with a target directory, without Spark."""

spark_targets = {
    "pipeline archive --to": "pipeline archive sqlite:runs.db --to {to} --older-than 0s --keep",
    "pipeline audit --to": "pipeline audit sqlite:runs.db --to {to}",
    "pipeline ingest --to": "pipeline ingest sqlite:runs.db --to {to}",
    "pipeline replay --to": "pipeline replay sqlite:runs.db --to {to}",
    "pipeline report --to": "pipeline report sqlite:runs.db --to {to}",
    "pipeline run --to": "pipeline run sqlite:runs.db --to {to}",
    "pipeline stream --state": "pipeline stream sqlite:runs.db --state {to} --available-now",
    "pipeline stream --to": "pipeline stream sqlite:runs.db --to parquet:{to} --state state --available-now",
}
"""Commands with a target directory that run on Spark."""
