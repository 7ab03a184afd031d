"""What `verify` looks at in an archive: every line, every run's and every pack's digest, and copies that differ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from msgspec import UNSET

from runstate.errors import LogDamaged
from runstate.logs.archive.directory import ArchiveDirectory, translated
from runstate.logs.archive.packs import MANIFEST_SUFFIX, PACK_SUFFIX, ArchivedRun, ArchiveInfo, Manifest
from runstate.logs.archive.reading import Contents, Copy, digest_of, records
from runstate.logs.blob_refs import BlobStates, blob_finding, blob_refs
from runstate.logs.log import BlobRef, Finding
from runstate.storage.disk import File


def verify_run(directory: ArchiveDirectory, copy: Copy, states: BlobStates) -> Iterator[Finding]:
    """Findings for the copy of a run that counts."""
    run, keys, refs = copy.run, set[str](), dict[BlobRef, int]()
    details = {"pack": copy.pack}
    with translated():
        try:
            file = directory.disk.open(directory.pack(copy.pack), read_only=True)
        except FileNotFoundError:
            message = f"The pack {copy.pack} is gone, and {run.events} events with it"
            yield Finding(
                code="log.events_missing", message=message, stream=run.stream, seq=run.first_seq, details=details
            )
            return
        with closing(file):
            first = last = None
            try:
                for record, _ in records(file, run):
                    first, last = first or record, record
                    if record.key in keys:
                        message = f"The key {record.key[:80]!r} stands for two events"
                        yield Finding(code="log.key_twice", message=message, stream=run.stream, seq=record.seq)
                    keys.add(record.key)
                    for ref in blob_refs(record.body):
                        refs.setdefault(ref, record.seq)
            except LogDamaged as error:
                seq, details = error.details["seq"], details | {"offset": error.details["offset"]}
                yield Finding(code="log.event_changed", message=str(error), stream=run.stream, seq=seq, details=details)
                return
            told = (run.first_seq, run.tenant, run.first_persisted_at, run.last_persisted_at)
            if (
                first is None
                or last is None
                or told != (first.seq, first.tenant, first.persisted_at, last.persisted_at)
            ):
                message = "The manifest does not say of the run what its events say"
                yield Finding(
                    code="archive.manifest_differs",
                    message=message,
                    stream=run.stream,
                    seq=run.first_seq,
                    details=details,
                )
            if digest_of(file, run.offset, run.bytes) != run.sha256:
                message = "The run does not fit its digest, though each of its lines does"
                yield Finding(
                    code="log.event_changed", message=message, stream=run.stream, seq=run.first_seq, details=details
                )
    yield from _blobs(run, refs, states)


def _blobs(run: ArchivedRun, refs: dict[BlobRef, int], states: BlobStates) -> Iterator[Finding]:
    """Findings for the blobs that a run was archived with; `refs` says where its lines name what could be one."""
    if run.blobs is UNSET:
        absent = [ref for ref in refs if states.code(ref) is not None]
        if absent:
            yield Finding(
                code="archive.without_blobs",
                message=f"It was archived without its blobs, by an earlier version: {len(absent)} strings in it look "
                "like references to some. Archive it again from a log that still holds them",
                severity="warning",
                stream=run.stream,
                seq=refs[absent[0]],
                details={"refs": absent},
            )
        return
    for ref in map(BlobRef, run.blobs):
        if (code := states.code(ref)) is not None:
            yield blob_finding(code, run.stream, refs.get(ref, run.first_seq), ref)


def verify_rest(directory: ArchiveDirectory, info: ArchiveInfo, contents: Contents) -> Iterator[Finding]:
    """Findings beyond the runs that count: manifests, whole packs, copies."""
    yield from contents.broken
    with translated():
        for pack, manifest in contents.manifests.items():
            if manifest.model != info.model:
                message = (
                    f"The pack {pack} holds runs of the model {manifest.model!r}, the archive those of {info.model!r}"
                )
                yield Finding(code="archive.model_differs", message=message, details={"pack": pack})
            yield from _pack(directory, pack, manifest)
        for copy in contents.others:
            yield from _copies(directory, contents.runs[copy.run.stream], copy)
        named = {ref for manifest in contents.manifests.values() for run in manifest.runs for ref in run.blobs or ()}
        yield from (finding for finding in directory.blobs.verify() if finding.details["ref"] not in named)
        names = directory.names()
    for name in names:
        if name.endswith(PACK_SUFFIX) and name.removesuffix(PACK_SUFFIX) + MANIFEST_SUFFIX not in names:
            message = f"{name} has no manifest: a job is writing it, or was killed; the next job then removes it"
            yield Finding(code="archive.unfinished_pack", message=message, severity="warning", details={"file": name})


def _pack(directory: ArchiveDirectory, pack: str, manifest: Manifest) -> Iterator[Finding]:
    try:
        file = directory.disk.open(directory.pack(pack), read_only=True)
    except FileNotFoundError:
        message = f"The pack {pack} is gone, with {len(manifest.runs)} runs"
        yield Finding(code="archive.pack_missing", message=message, details={"pack": pack})
        return
    with closing(file):
        if file.size() != manifest.bytes or digest_of(file, 0, manifest.bytes) != manifest.sha256:
            message = f"The pack {pack} is not what was written"
            yield Finding(code="archive.pack_changed", message=message, details={"pack": pack})


def _copies(directory: ArchiveDirectory, counting: Copy, copy: Copy) -> Iterator[Finding]:
    """An earlier state of a run is the beginning of the later one, byte for byte."""
    if _holds_at_start(directory, counting, copy):
        return
    yield Finding(
        code="archive.copies_differ",
        message=f"The packs {counting.pack} and {copy.pack} hold the run with different events",
        stream=copy.run.stream,
        details={"packs": [counting.pack, copy.pack]},
    )


def _holds_at_start(directory: ArchiveDirectory, counting: Copy, copy: Copy) -> bool:
    if copy.run.bytes == counting.run.bytes:
        return copy.run.sha256 == counting.run.sha256
    try:
        file: File = directory.disk.open(directory.pack(counting.pack), read_only=True)
    except FileNotFoundError:
        return True  # That the pack is gone is told already.
    with closing(file):
        return digest_of(file, counting.run.offset, copy.run.bytes) == copy.run.sha256
