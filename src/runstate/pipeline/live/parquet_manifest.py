"""The manifests of a Parquet sink: which files each version of the table consists of. The marker of its directory.

`manifest.json` is the table that readers see, `manifest.NAME.json` what is projected aside.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from runstate.errors import LogFailed, LogNotFound, LogTooNew, NotALog
from runstate.logs.log import now
from runstate.models.canonical import undecodable
from runstate.storage.disk import TEMP, RealDisk
from runstate.storage.target_directory import check_target, refuse_foreign

versions_kept = 10
"""So many versions can be read; with a new one every tenth of a second, a reader has a second."""
own_files = re.compile(rf"data/|data/rows\.[0-9a-f]{{16}}\.parquet|\.lock|manifest(\.[^/]+)?\.json{TEMP}")
"""What a sink writes beside its manifests."""
_format = 1


class DataFile(msgspec.Struct, frozen=True):
    name: str
    rows: int
    bytes: int
    """In memory."""
    sha256: str


class Version(msgspec.Struct, frozen=True, rename="camel"):
    """What the table was at a moment."""

    number: int
    published_at: str
    files: tuple[DataFile, ...]


class Manifest(msgspec.Struct, frozen=True):
    """What a manifest file says."""

    model: str
    versions: tuple[Version, ...] = ()
    format: int = _format

    @property
    def files(self) -> tuple[DataFile, ...]:
        return self.versions[-1].files if self.versions else ()

    def published(self, files: tuple[DataFile, ...]) -> Manifest:
        number = self.versions[-1].number + 1 if self.versions else 1
        kept = (*self.versions, Version(number, now(), files))[-versions_kept:]
        return msgspec.structs.replace(self, versions=kept)


def read_manifest(path: Path) -> Manifest:
    """
    Raises:
        LogNotFound, NotALog, LogTooNew: there is none, or none that we know.
    """
    try:
        text = RealDisk().read(path)
    except (FileNotFoundError, NotADirectoryError):
        raise LogNotFound(f"There is no table of snapshots in {path.parent}", path=str(path.parent)) from None
    except OSError as error:
        raise LogFailed(f"{path} cannot be read: {error.strerror}") from error
    try:
        found = msgspec.json.decode(text, type=Manifest)
    except undecodable as error:
        raise NotALog(f"{path} is not a manifest of a Runstate table: {error}. It was left untouched") from error
    if found.format > _format:
        raise LogTooNew(f"{path} has format {found.format}; upgrade Runstate to read it")
    return found


def check_sink(directory: Path) -> None:
    """Check that a sink may be made in a directory, or is there.

    Raises:
        NotALog, LogTooNew: something else is there, or a table of a newer Runstate.
        LogFailed: the directory cannot be read or written.
    """
    check_target(directory, own_files, has_marker=_has_manifest(directory))


def check_is_sink(directory: Path) -> None:
    """The same for a process that only reads, which needs no permission to write."""
    if not _has_manifest(directory):
        refuse_foreign(directory, own_files)


def _has_manifest(directory: Path) -> bool:
    for path in manifest_paths(directory):
        with suppress(LogNotFound, NotALog):
            read_manifest(path)
            return True
    return False


def manifest_paths(directory: Path) -> Iterator[Path]:
    return (path for path in directory.glob("manifest.*") if path.suffix == ".json")
