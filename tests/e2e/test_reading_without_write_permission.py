"""Logs that a process may only read: as another user, or on a read-only mount; with a live writer, a killed one, none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.shared_logs import (
    Answers,
    Outcome,
    Request,
    can_mount_read_only,
    fill,
    listing,
    models,
    read,
    share,
    share_with_group,
    writable_kinds,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("reading without write permission"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user, and mounting, needs root"),
]

_means = [
    pytest.param(False, id="another user"),
    pytest.param(
        True,
        id="read-only mount",
        marks=pytest.mark.skipif(
            not can_mount_read_only(), reason="needs `unshare -m` and `mount --bind`: CAP_SYS_ADMIN"
        ),
    ),
]


@pytest.fixture(scope="module", params=_means)
def is_mount(request: pytest.FixtureRequest) -> bool:
    found: bool = request.param
    return found


@pytest.fixture(scope="module")
def place(is_mount: bool) -> Iterator[Path]:
    """A directory that other users can reach. Those that pytest makes belong to one user alone."""
    with TemporaryDirectory() as found:
        Path(found).chmod(0o755)
        yield Path(found)


class Reading:
    """What a reader found in a directory, and how the directory was before and after."""

    def __init__(self, directory: Path, kinds: list[str], *, is_mount: bool) -> None:
        twin = directory.with_name(f"twin-of-{directory.name}")
        shutil.copytree(directory, twin)
        self.before = listing(directory)
        scratch = directory.with_name(f"scratch-of-{directory.name}")
        request = Request(str(directory), str(scratch), kinds, str(twin))
        self.answers = read(request, is_mount=is_mount)
        self.after = listing(directory)

    def differing(self, kind: str) -> list[tuple[Outcome, Outcome]]:
        pairs = zip(self.answers.expected, self.answers.found, strict=True)
        return [(expected, found) for expected, found in pairs if _is_about(expected, kind) and expected != found]


def _is_about(outcome: Outcome, kind: str) -> bool:
    return any(part.startswith((f"{kind}:", f"{kind}/")) for part in outcome.command)


# --- no writer -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def at_rest(place: Path, is_mount: bool) -> Reading:
    directory = place / "at-rest"
    directory.mkdir()
    fill(directory)
    share(directory)
    return Reading(directory, list(models), is_mount=is_mount)


@pytest.mark.parametrize("kind", models)
def test_every_reading_command_gives_the_answer_of_a_reader_that_may_write(at_rest: Reading, kind: str) -> None:
    assert at_rest.differing(kind) == []


def test_reading_leaves_no_trace_in_the_directory(at_rest: Reading) -> None:
    assert at_rest.after == at_rest.before
