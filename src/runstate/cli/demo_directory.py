"""The demo's own directory. `demo.json` records what a demo wrote there; the next one removes that and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from runstate.errors import NotALog
from runstate.storage.directories import make_directories
from runstate.storage.disk import TEMP, RealDisk, replace_durably
from runstate.storage.target_directory import check_target, foreign_entries, own_entries, remove_own, writing_to

database = "runstate-demo.db"
_record = "demo.json"
_leftovers = re.compile(re.escape(_record) + TEMP)
_beside_database = re.compile(rf"{re.escape(database)}-(wal|shm|journal)")
_own = re.compile(
    rf"{re.escape(database)}|{_beside_database.pattern}|(runs|sources|desk|other-desk|builds|pipeline)(/.*)?"
)
"""The names that a demo uses."""


class Record(msgspec.Struct, frozen=True):
    """`demo.json`: everything that the last demo wrote, relative to its directory."""

    demo: int = 1
    """The version of this file."""
    written: list[str] = []


@contextmanager
def demo_directory(to: Path) -> Iterator[None]:
    """Make an empty directory for a demo, or remove from it what an earlier one wrote.

    Raises:
        NotALog: the directory holds something else, at least where the demo would write.
        LogFull, LogFailed: it cannot be written.
    """
    before = _read_record(to)
    check_target(to, _leftovers, has_marker=before is not None)
    with writing_to(to):
        make_directories(RealDisk(), to)
        _remove_earlier(to, before or Record())
        _write_record(to)
    try:
        yield
    finally:
        with writing_to(to):
            _write_record(to)


def _remove_earlier(to: Path, record: Record) -> None:
    written = {*record.written}
    for path in (*own_entries(to, _own), *foreign_entries(to, _own)):
        if _own.fullmatch(path) and path not in written and not _beside_database.fullmatch(path):
            raise NotALog(
                f"{to / path} is not in the record of an earlier demo: it was added since, or that demo was killed. "
                f"Nothing was changed. Remove {to} yourself, or choose another directory with --to"
            )
    remove_own(to, _own)


def _read_record(to: Path) -> Record | None:
    """None: no demo was here."""
    try:
        return msgspec.json.decode((to / _record).read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None


def _write_record(to: Path) -> None:
    record = Record(written=[*own_entries(to, _own)])
    replace_durably(RealDisk(), to / _record, msgspec.json.encode(record) + b"\n")
