"""The directory of an archive: making it, being alone in it, and what killed jobs have left in it.

DIR/archive.json                  of which model the runs are
DIR/packs/NAME.ndjson             runs, one after the other
DIR/packs/NAME.manifest.json      which runs these are; without it the pack is not there
DIR/packs/NAME.lock               held by the process that writes the pack, and gone with it
DIR/blobs/sha256/DIGEST           blobs that the runs refer to, each once
DIR/.lock                         held by the one job that archives
DIR/.blobs.lock                   shared by those who put blobs, held by the one who removes some
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import PurePath

from runstate.errors import InvalidArgument, LogBusy, LogFull, LogNotFound, NotALog, RunstateError
from runstate.logs.archive.packs import (
    BLOBS,
    BLOBS_LOCK,
    INFO,
    LOCK_SUFFIX,
    MANIFEST_SUFFIX,
    PACK_SUFFIX,
    PACKS,
    ArchiveInfo,
    Broken,
    Manifest,
    pack_name,
    sealed,
    unsealed,
)
from runstate.logs.blobs import Blobs
from runstate.storage import disk_errors
from runstate.storage.disk import TEMP, Disk, LockBusy, RealDisk, refuse_links, replace_durably, temp_target
from runstate.storage.target_directory import check_target

_leftovers = re.compile(rf"{PACKS}/|\.lock|{re.escape(INFO)}{TEMP}")
"""What a job that was killed while it made an archive may have left."""


class ArchiveDirectory:
    """Where an archive is."""

    def __init__(self, root: PurePath, disk: Disk | None = None) -> None:
        self.root, self.packs = root, root / PACKS
        self.disk: Disk = disk or RealDisk(shared_below=root)
        self.blobs = Blobs(self.disk, root / BLOBS, root / BLOBS_LOCK)

    @property
    def url(self) -> str:
        """Its address, which does not depend on the working directory."""
        return f"archive:{os.path.abspath(self.root)}"

    def info(self) -> ArchiveInfo:
        """
        Raises:
            LogNotFound: there is no such directory.
            NotALog, LogTooNew: it is no archive, or one of a newer Runstate.
        """
        try:
            return unsealed(self.disk.read(self.root / INFO), ArchiveInfo)
        except FileNotFoundError:
            if not self.disk.exists(self.root):
                raise LogNotFound(f"There is no directory {self.root}", path=str(self.root)) from None
            raise NotALog(f"{self.root} is no archive: it has no {INFO}") from None
        except NotADirectoryError as error:
            raise NotALog(f"{self.root} is a file, or lies below one; an archive is a directory") from error
        except Broken as error:
            raise NotALog(f"{self.root / INFO} is no archive's: {error}; it was left untouched") from error
        except OSError as error:
            raise translate(error) from error

    def check(self, model: str) -> bool:
        """Whether there is an archive, which may take runs of this model; False if one can be made here.

        Raises:
            InvalidArgument: its path is no text.
            NotALog: something else is here, or runs of another model.
            LogTooNew, LogFailed: it cannot be read or written.
        """
        try:
            self.url.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"The path {self.url!a:.200} is not UTF-8, and a log could not record where its runs went; choose "
                "another directory"
            ) from error
        has_info = self.disk.exists(self.root / INFO)
        check_target(self.root, _leftovers, has_marker=has_info, disk=self.disk)
        if not has_info:
            return False
        found = self.info()
        if found.model != model:
            raise NotALog(
                f"{self.root} holds runs of the model {found.model!r}, not of {model!r}; choose another directory"
            )
        return True

    def prepare(self, model: str) -> None:
        """Make the archive, if it is not there yet.

        Raises:
            InvalidArgument, NotALog, LogTooNew: as `check` does.
            LogFailed, LogFull: it cannot be made or written to.
        """
        self.check(model)
        with translated():
            refuse_links(self.disk, self.packs)
            self._make(self.root)
            # Written each time: whoever wrote it before may have been killed before its name was sure.
            replace_durably(self.disk, self.root / INFO, sealed(ArchiveInfo(model)))
            self._make(self.packs)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only job that archives to this directory; what killed ones have left is removed.

        Raises:
            LogBusy: another job is at it.
            LogFailed: the directory cannot be written to.
        """
        with translated():
            lock = self.disk.lock(self.root / ".lock")
        try:
            with translated():
                self._clean()
            yield
        finally:
            lock.release()

    def manifests(self) -> Iterator[tuple[str, Manifest | Broken]]:
        """The packs that count, by name. A manifest that cannot be believed comes as what is wrong with it.

        Raises:
            LogTooNew: a newer Runstate has added to the archive.
        """
        for name in self.names():
            if name.endswith(MANIFEST_SUFFIX):
                pack = name.removesuffix(MANIFEST_SUFFIX)
                try:
                    yield pack, unsealed(self.disk.read(self.packs / name), Manifest)
                except Broken as error:
                    yield pack, error
                except OSError as error:
                    raise translate(error) from error

    def names(self) -> list[str]:
        """All that stands among the packs."""
        try:
            return self.disk.names(self.packs)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise translate(error) from error

    def pack(self, name: str) -> PurePath:
        return self.packs / f"{name}{PACK_SUFFIX}"

    def manifest(self, name: str) -> PurePath:
        return self.packs / f"{name}{MANIFEST_SUFFIX}"

    def lock_file(self, name: str) -> PurePath:
        return self.packs / f"{name}{LOCK_SUFFIX}"

    def _make(self, path: PurePath) -> None:
        try:
            self.disk.make_directory(path)
            made = True
        except FileExistsError:
            made = False
        try:
            self.disk.sync_directory(path.parent)
        except PermissionError:
            return
        except BaseException:
            if made:  # A name that a sync has failed on is never sure again; only a new one is.
                with suppress(OSError):
                    self.disk.remove_directory(path)
            raise

    def _clean(self) -> None:
        """Remove packs that were never finished, unless somebody is still writing to them."""
        names = self.disk.names(self.packs)
        finished = {name.removesuffix(MANIFEST_SUFFIX) for name in names if name.endswith(MANIFEST_SUFFIX)}
        for pack in sorted({found[0] for name in names if (found := pack_name.match(name))}):
            own = [name for name in names if name.startswith(f"{pack}.")]
            if pack in finished and not any(temp_target(name) or name.endswith(LOCK_SUFFIX) for name in own):
                continue
            try:
                lock = self.disk.lock(self.lock_file(pack))
            except LockBusy:
                continue
            try:
                # Looked at again: it may have been finished just before its lock was free.
                unfinished = not self.disk.exists(self.manifest(pack))
                for name in own:
                    is_temporary = temp_target(name) == self.manifest(pack).name
                    if is_temporary or (unfinished and name == self.pack(pack).name):
                        with suppress(FileNotFoundError):
                            self.disk.remove(self.packs / name)
                with suppress(FileNotFoundError):
                    self.disk.remove(self.lock_file(pack))
            finally:
                lock.release()
        for name in self.disk.names(self.root):
            if temp_target(name) == INFO:
                with suppress(FileNotFoundError):
                    self.disk.remove(self.root / name)


def translate(error: OSError) -> RunstateError:
    """The operating system's errors in our words. What a job should know of these two depends on what it does."""
    found = disk_errors.translate(error)
    if isinstance(found, LogBusy):
        return LogBusy("Another job archives to this directory; try again when it is done")
    if isinstance(found, LogFull):
        return LogFull(
            "The archive's disk is full; no run was deleted that it does not hold. Free some space and run it again"
        )
    return found


@contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translate(error) from error
