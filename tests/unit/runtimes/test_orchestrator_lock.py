"""The orchestrator's lock: one at a time works on a run, and whoever looks at it is in nobody's way."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from runstate.runtimes.orchestrator.artifacts import ArtifactFiles
from runstate.storage.disk import LockBusy


@pytest.fixture
def files(tmp_path: Path) -> ArtifactFiles:
    return ArtifactFiles(tmp_path / "r")


def test_a_run_is_abandoned_once_its_lock_is_free(files: ArtifactFiles) -> None:
    lock = files.lock()
    assert not files.is_abandoned()
    lock.release()
    assert files.is_abandoned()


def test_a_run_that_no_orchestrator_has_begun_is_not_abandoned(files: ArtifactFiles) -> None:
    assert not files.is_abandoned()


def test_who_looks_leaves_nothing_behind(files: ArtifactFiles, tmp_path: Path) -> None:
    files.is_abandoned()
    assert list(tmp_path.iterdir()) == []
    files.lock().release()
    files.is_abandoned()
    files.lock().release()


def test_two_who_look_do_not_take_each_other_for_an_orchestrator(files: ArtifactFiles, tmp_path: Path) -> None:
    files.lock().release()
    with (tmp_path / "r/.orchestrator.lock").open() as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        assert files.is_abandoned()


def test_an_orchestrator_waits_for_who_only_looks(
    files: ArtifactFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.lock().release()
    with (tmp_path / "r/.orchestrator.lock").open() as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        monkeypatch.setattr(
            "runstate.runtimes.orchestrator.artifacts.time.sleep", lambda _: fcntl.flock(looked_at, fcntl.LOCK_UN)
        )
        files.lock().release()


def test_an_orchestrator_does_not_wait_for_another(files: ArtifactFiles) -> None:
    lock = files.lock()
    with pytest.raises(LockBusy):
        files.lock()
    lock.release()
