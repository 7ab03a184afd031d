"""The proof that an open file is still the one on disk, on the real and on the simulated disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from runstate.conformance.simulated_disk import SimulatedDisk
from runstate.storage.directories import remove_tree
from runstate.storage.disk import Disk, LockBusy, RealDisk, write_new
from runstate.storage.file_proof import FileChanged, check_in_place, lock_in_place


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, PurePath]:
    disk: Disk = RealDisk() if request.param == "real" else SimulatedDisk()
    home = tmp_path / "home" if request.param == "real" else Path("/home")
    disk.make_directory(home)
    return disk, home / "log"


def removed(disk: Disk, path: PurePath) -> None:
    disk.remove(path)


def replaced(disk: Disk, path: PurePath) -> None:
    write_new(disk, path.with_name("other"), disk.read(path))
    disk.rename(path.with_name("other"), path)


def without_its_directory(disk: Disk, path: PurePath) -> None:
    remove_tree(disk, path.parent)


def moved_with_its_directory(disk: Disk, path: PurePath) -> None:
    disk.rename(path.parent, path.parent.with_name("elsewhere"))


def cut(disk: Disk, path: PurePath) -> None:
    with disk.open(path) as file:
        file.truncate(2)


def grown(disk: Disk, path: PurePath) -> None:
    with disk.open(path) as file:
        file.append(b"x")


@pytest.mark.parametrize("change", [removed, replaced, without_its_directory, moved_with_its_directory, cut, grown])
def test_a_file_that_was_changed_under_its_writer_is_not_in_place(
    place: tuple[Disk, PurePath], change: Callable[[Disk, PurePath], None]
) -> None:
    disk, path = place
    with disk.create(path) as file:
        file.append(b"data")
        check_in_place(disk, path, file, 4)
        change(disk, path)
        with pytest.raises(FileChanged, match="log"):
            check_in_place(disk, path, file, 4)


def test_a_renamed_file_is_in_place_under_its_new_name(place: tuple[Disk, PurePath]) -> None:
    disk, path = place
    with disk.create(path) as file:
        disk.rename(path, path.with_name("new"))
        check_in_place(disk, path.with_name("new"), file, 0)


def test_the_lock_of_a_file_is_held_by_one_handle_until_it_is_closed(place: tuple[Disk, PurePath]) -> None:
    disk, path = place
    with disk.create(path) as file, disk.open(path) as second:
        lock_in_place(disk, path, file)
        with pytest.raises(LockBusy):
            lock_in_place(disk, path, second)
        file.close()
        lock_in_place(disk, path, second)
