"""Blobs belong to their streams: archive, restore, copy and verify carry and check what the events refer to."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from tests.commands import Cli
from tests.log_urls import durable_schemes, servers, url_at

from runstate.conformance.notes import note
from runstate.copying import copy_stream
from runstate.errors import BlobNotFound, LogDamaged, Unsupported
from runstate.logs.archive import ArchiveLog
from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archive.packs import Manifest, sealed, unsealed
from runstate.logs.log import BlobRef, EventLog, Finding
from runstate.logs.memory import MemoryLog
from runstate.logs.registry import open_log
from runstate.logs.stream_blobs import BlobCheck
from runstate.models.model import AnyModel
from runstate.models.session import SESSION
from runstate.retention import Archiver, Archiving, RunOutcome, infos, restore
from runstate.runtimes.session import linear, open_sessions, unwrap

everything = Archiving(before=datetime(2100, 1, 1, tzinfo=UTC))
absent = BlobRef(f"sha256:{'0' * 64}")


def write_session(url: str, keyring: Path, name: str = "s-1") -> dict[str, bytes]:
    """A session that is over, with an artifact at each of its steps; the artifacts by their references."""
    kept: dict[str, bytes] = {}
    with open_sessions(url, keyring) as sessions:
        unwrap(sessions.create(session_id=name))
        place = unwrap(sessions.start_run(name, linear("fix", "Find the bug", "Write a test"), run_id="r-1"))
        for step in ("found", "tested"):
            data = f"{name} {step}".encode()
            artifact = unwrap(sessions.keep_artifact(step, data))
            kept[artifact.digest] = data
            place = unwrap(sessions.advance(place.ack_token or "", step, artifacts=[artifact]))
    return kept


def archive_all(log: EventLog, to: Path, archiving: Archiving = everything) -> list[RunOutcome]:
    directory = ArchiveDirectory(to)
    if not archiving.dry_run:
        directory.prepare(SESSION.name)
    return list(Archiver(log, SESSION, directory, archiving).run(infos(log)))


def restore_all(to: Path, log: EventLog, *, dry_run: bool = False) -> list[RunOutcome]:
    with ArchiveLog(to) as archived:
        return list(restore(archived, log, SESSION, infos(archived), dry_run=dry_run))


def blob_findings(log: EventLog, stream: str, model: AnyModel | None) -> list[Finding]:
    return list(BlobCheck(log).findings(stream, model))


def forget_blobs(archive: Path) -> None:
    """Make an archive what an earlier version would have written: without blobs, and without a word of them."""
    for path in (archive / "packs").glob("*.manifest.json"):
        manifest = unsealed(path.read_bytes(), Manifest)
        runs = [msgspec.structs.replace(run, blobs=msgspec.UNSET) for run in manifest.runs]
        path.write_bytes(sealed(msgspec.structs.replace(manifest, runs=runs)))
    for path in (archive / "blobs/sha256").iterdir():
        path.unlink()


@pytest.fixture(params=[pytest.param(s, marks=[pytest.mark.slow] if s in servers else []) for s in durable_schemes()])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_at(request.param, tmp_path / "log")


@pytest.fixture
def kept(tmp_path: Path) -> dict[str, bytes]:
    """The artifacts of a session that is over, at `segments:DIR/log`."""
    return write_session(f"segments:{tmp_path}/log", tmp_path / "keyring.json")


@pytest.fixture
def log(tmp_path: Path, kept: dict[str, bytes]) -> Iterator[EventLog]:
    with open_log(f"segments:{tmp_path}/log") as log:
        yield log


def gone(root: Path, ref: str) -> Path:
    """Where a blob is kept in a file, once it is removed."""
    path = root / "sha256" / ref.removeprefix("sha256:")
    path.unlink()
    return path


# --- archive and restore -------------------------------------------------------------------------------------------


def test_a_session_archived_collected_and_restored_has_every_artifact(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNSTATE_KEYRING", str(tmp_path / "keyring.json"))
    kept = write_session("segments:log", tmp_path / "keyring.json")
    assert cli("archive", "segments:log", "--to", "old", "--older-than", "0s").code == 0
    assert cli("session", "gc", "segments:log").code == 0
    assert list(Path("log/snapshots/sha256").iterdir()) == []
    assert cli("verify", "archive:old").err == "intact\n"
    assert cli("restore", "old", "segments:log").code == 0
    assert cli("session", "verify", "segments:log").err == "intact\n"
    with open_log("segments:log", create=False) as log:
        assert {ref: log.get_blob(BlobRef(ref)) for ref in kept} == kept


def test_every_log_gives_its_blobs_to_an_archive_and_gets_them_back(url: str, tmp_path: Path) -> None:
    kept = write_session(url, tmp_path / "keyring.json")
    with open_log(url) as log:
        assert [each.outcome for each in archive_all(log, tmp_path / "old")] == ["archived"]
    with ArchiveLog(tmp_path / "old") as archived, open_log(f"sqlite:{tmp_path}/other.db") as other:
        assert {ref: archived.get_blob(BlobRef(ref)) for ref in kept} == kept
        assert list(archived.verify()) == []
        assert [each.outcome for each in restore(archived, other, SESSION, infos(archived))] == ["restored"]
        assert {ref: other.get_blob(BlobRef(ref)) for ref in kept} == kept
        assert blob_findings(other, "s-1", SESSION) == []


def test_a_run_whose_blob_is_gone_is_not_archived(tmp_path: Path) -> None:
    kept = write_session(f"sqlite:{tmp_path}/log.db", tmp_path / "keyring.json")
    with sqlite3.connect(tmp_path / "log.db") as database:
        database.execute("DELETE FROM blobs WHERE digest = ?", (min(kept).removeprefix("sha256:"),))
    with open_log(f"sqlite:{tmp_path}/log.db") as log:
        for archiving in (msgspec.structs.replace(everything, dry_run=True), everything):
            (told,) = archive_all(log, tmp_path / "old", archiving)
            assert (told.outcome, told.code, min(kept) in told.reason) == ("refused", "blob.not_found", True)
        assert log.stream("s-1") is not None


def test_a_run_is_deleted_from_the_log_only_with_its_blobs_in_the_archive(
    tmp_path: Path, log: EventLog, kept: dict[str, bytes]
) -> None:
    archive_all(log, tmp_path / "old", msgspec.structs.replace(everything, keep=True))
    path = gone(tmp_path / "old/blobs", min(kept))
    (told,) = archive_all(log, tmp_path / "old")
    assert (told.outcome, path.read_bytes()) == ("deleted", kept[min(kept)])


def test_an_archive_names_the_event_of_a_blob_that_is_gone_or_changed(
    tmp_path: Path, log: EventLog, kept: dict[str, bytes]
) -> None:
    archive_all(log, tmp_path / "old")
    path = gone(tmp_path / "old/blobs", min(kept))
    for content, code in ((None, "blob.missing"), (b"x", "blob.digest_mismatch")):
        if content is not None:
            path.write_bytes(content)
        with ArchiveLog(tmp_path / "old") as archived:
            (finding,) = archived.verify()
            assert (finding.code, finding.stream, finding.details) == (code, "s-1", {"ref": min(kept)})
            assert min(kept).encode() in archived.read("s-1", after_seq=(finding.seq or 0) - 1, limit=1)[0].body


@pytest.mark.parametrize("adopted_max", [1, 10_000])
def test_nothing_is_restored_from_an_archive_that_has_lost_a_blob(
    tmp_path: Path, log: EventLog, kept: dict[str, bytes], adopted_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.logs.archive.restoring.adopted_max", adopted_max)
    archive_all(log, tmp_path / "old")
    gone(tmp_path / "old/blobs", min(kept))
    other = MemoryLog()
    for dry_run in (True, False):
        (told,) = restore_all(tmp_path / "old", other, dry_run=dry_run)
        assert (told.outcome, told.code) == ("refused", "blob.not_found")
    assert other.stream("s-1") is None


def test_a_blob_that_the_archive_has_lost_may_still_be_in_the_log(
    tmp_path: Path, log: EventLog, kept: dict[str, bytes]
) -> None:
    archive_all(log, tmp_path / "old")
    gone(tmp_path / "old/blobs", min(kept))
    assert [each.outcome for each in restore_all(tmp_path / "old", log)] == ["restored"]


def test_an_archive_of_an_earlier_version_says_that_it_has_no_blobs(cli: Cli, tmp_path: Path) -> None:
    write_session("segments:log", tmp_path / "keyring.json")
    cli("archive", "segments:log", "--to", "old", "--older-than", "0s")
    forget_blobs(Path("old"))
    found = cli("verify", "archive:old", "--json")
    assert (found.code, [(row["code"], row["severity"]) for row in found.rows]) == (
        0,
        [("archive.without_blobs", "warning")],
    )
    (told,) = cli("restore", "old", "sqlite:other.db", "--json").rows
    assert (told["outcome"], told["code"]) == ("restored", "archive.without_blobs")


def test_a_run_that_an_earlier_version_archived_is_archived_again_with_its_blobs(
    tmp_path: Path, log: EventLog, kept: dict[str, bytes]
) -> None:
    archive_all(log, tmp_path / "old", msgspec.structs.replace(everything, keep=True))
    forget_blobs(tmp_path / "old")
    assert [each.outcome for each in archive_all(log, tmp_path / "old")] == ["archived"]
    with ArchiveLog(tmp_path / "old") as archived:
        assert list(archived.verify()) == []
        assert {ref: archived.get_blob(BlobRef(ref)) for ref in kept} == kept
        gone(tmp_path / "old/blobs", min(kept))
        assert [finding.code for finding in archived.verify()] == ["blob.missing"]


def test_an_archive_takes_no_blobs_by_itself(tmp_path: Path, log: EventLog) -> None:
    archive_all(log, tmp_path / "old")
    with ArchiveLog(tmp_path / "old") as archived, pytest.raises(Unsupported):
        archived.put_blob(b"data")


# --- copy ----------------------------------------------------------------------------------------------------------


def test_a_copy_of_a_stream_whose_blob_is_gone_fails_by_name(
    tmp_path: Path, log: EventLog, kept: dict[str, bytes]
) -> None:
    gone(tmp_path / "log/snapshots", min(kept))
    with pytest.raises(BlobNotFound) as caught:
        copy_stream(log, MemoryLog(), "s-1")
    assert (caught.value.details["stream"], caught.value.details["ref"]) == ("s-1", min(kept))
    assert caught.value.details["seq"] > 1


def test_a_copy_of_a_stream_whose_blob_was_changed_fails_by_name(
    tmp_path: Path, log: EventLog, kept: dict[str, bytes]
) -> None:
    gone(tmp_path / "log/snapshots", min(kept)).write_bytes(b"x")
    with pytest.raises(LogDamaged) as caught:
        copy_stream(log, MemoryLog(), "s-1")
    assert (caught.value.details["stream"], caught.value.details["ref"]) == ("s-1", min(kept))


def test_a_copy_from_an_archive_has_the_blobs(tmp_path: Path, log: EventLog, kept: dict[str, bytes]) -> None:
    archive_all(log, tmp_path / "old")
    target = MemoryLog()
    with ArchiveLog(tmp_path / "old") as archived:
        copy_stream(archived, target, "s-1")
    assert {ref: target.get_blob(BlobRef(ref)) for ref in kept} == kept


def test_a_copy_counts_references_that_no_model_knows_and_no_log_holds() -> None:
    source = MemoryLog()
    source.append("s", [note("a", absent), note("b", source.put_blob(b"data"))])
    copied = copy_stream(source, MemoryLog(), "s")
    assert (copied.blobs, copied.unresolved) == (1, 1)


# --- verify --------------------------------------------------------------------------------------------------------


def test_every_log_says_which_event_refers_to_a_blob_that_is_gone(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = write_session(url, tmp_path / "keyring.json")
    with open_log(url) as log:
        get_blob = log.get_blob

        def lose(ref: BlobRef) -> bytes:
            if ref == min(kept):
                raise BlobNotFound(ref=ref)
            return get_blob(ref)

        monkeypatch.setattr(log, "get_blob", lose)
        (finding,) = blob_findings(log, "s-1", SESSION)
        assert (finding.code, finding.severity, finding.details) == ("blob.missing", "damage", {"ref": min(kept)})
        assert min(kept).encode() in log.read("s-1", after_seq=(finding.seq or 0) - 1, limit=1)[0].body


def test_the_command_verify_fails_if_a_blob_is_gone_and_reports_it_once(
    cli: Cli, tmp_path: Path, kept: dict[str, bytes]
) -> None:
    gone(tmp_path / "log/snapshots", min(kept))
    found = cli("verify", f"segments:{tmp_path}/log", "--json")
    assert (found.code, [(row["code"], row["stream"]) for row in found.rows]) == (1, [("blob.missing", "s-1")])


def test_a_digest_that_the_model_knows_to_be_no_reference_is_no_finding() -> None:
    log = MemoryLog()
    line = {
        "eventId": "e-1",
        "sessionId": "s",
        "kind": "observation_recorded",
        "dedupeKey": "k",
        "data": {"observationKind": "repo_root_digest", "value": absent},
    }
    log.append("s", [SESSION.draft(SESSION.parse(msgspec.json.encode(line)))[1]])
    assert blob_findings(log, "s", SESSION) == []


def test_what_no_model_knows_is_one_warning_for_the_stream() -> None:
    log = MemoryLog()
    log.append("s", [note("a"), note("b", absent), note("c", BlobRef(f"sha256:{'1' * 64}"))])
    (finding,) = blob_findings(log, "s", None)
    assert (finding.code, finding.severity, finding.seq, finding.details["count"]) == (
        "blob.unresolved",
        "warning",
        2,
        2,
    )
