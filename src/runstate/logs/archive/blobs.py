"""The blobs of archived runs: put into the archive before the pack that names them, and each only once."""

from __future__ import annotations

from collections.abc import Iterable

from runstate.errors import BlobNotFound
from runstate.logs.archive.directory import ArchiveDirectory, translated
from runstate.logs.blob_refs import blob_refs
from runstate.logs.log import BlobRef, EventLog, Record
from runstate.logs.stream_blobs import Needed, missing_blob, read_blob


class BlobKeeper:
    """Puts the blobs that runs of a log refer to into an archive. In a dry run it only looks for them."""

    def __init__(self, log: EventLog, directory: ArchiveDirectory, needed: Needed, *, dry_run: bool) -> None:
        self._log, self._directory, self._needed, self._dry_run = log, directory, needed, dry_run
        self._kept: set[BlobRef] = set()

    def keep(self, records: Iterable[Record]) -> set[BlobRef]:
        """Keep the blobs of one run; which they are. Once this returns, they survive a power cut, and were read back.

        Raises:
            BlobNotFound: a blob that is needed is neither in the log nor in the archive; with stream, seq and ref.
            LogDamaged: a blob was changed, or the archive gave back something else.
            LogFull, LogFailed: the disk refused.
        """
        kept = set[BlobRef]()
        for record in records:
            for ref in blob_refs(record.body):
                if ref in kept or self._keep(ref, record):
                    kept.add(ref)
                elif ref in (self._needed(record.body) or ()):
                    raise missing_blob(record, ref)
        return kept

    def _keep(self, ref: BlobRef, record: Record) -> bool:
        if ref in self._kept:
            return True
        data = read_blob(self._log, ref, record)
        with translated():
            if data is not None and not self._dry_run:
                self._directory.blobs.put(data)
            try:
                if data is None or not self._dry_run:
                    self._directory.blobs.get(ref)
            except BlobNotFound:
                return False
        self._kept.add(ref)
        return True
