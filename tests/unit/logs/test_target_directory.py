"""The rule for target directories: absent, empty, or ours; and only files of ours are removed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from runstate.errors import LogFailed, LogFull, NotALog
from runstate.storage.directories import remove_tree
from runstate.storage.disk import LockBusy, RealDisk, temp_target
from runstate.storage.target_directory import check_target, remove_own, writing_to

own = re.compile(r"data/|data/rows-\d\.bin|data/inner/|data/inner/.*|note\.tmp")


def put(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(name.encode())


def entries(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_a_directory_that_is_absent_or_empty_or_holds_only_leftovers_is_taken(tmp_path: Path) -> None:
    check_target(tmp_path / "no" / "such", own, has_marker=False)
    check_target(tmp_path, own, has_marker=False)
    put(tmp_path, "data/rows-1.bin", "note.tmp")
    check_target(tmp_path, own, has_marker=False)


@pytest.mark.parametrize("name", ["mine", ".mine", "data/mine", "data/rows-x.bin", "data/other/rows-1.bin"])
def test_anything_else_is_refused_by_name_unless_the_marker_is_there(tmp_path: Path, name: str) -> None:
    put(tmp_path, "note.tmp", name)
    with pytest.raises(NotALog, match=r"was not written by Runstate.*an empty or new directory") as refused:
        check_target(tmp_path, own, has_marker=False)
    assert name.startswith(re.findall("holds '(.*)'", str(refused.value))[0])
    check_target(tmp_path, own, has_marker=True)


def test_an_empty_directory_in_it_is_not_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(NotALog):
        check_target(tmp_path, own, has_marker=False)


def test_a_symlink_that_has_a_name_of_ours_is_not_ours(tmp_path: Path) -> None:
    put(tmp_path, "outside/rows-1.bin", "target/note.tmp")
    (tmp_path / "target" / "data").symlink_to(tmp_path / "outside")
    with pytest.raises(NotALog, match="'data'"):
        check_target(tmp_path / "target", own, has_marker=False)


def test_a_file_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "file")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotALog, match="is a file"):
            check_target(path, own, has_marker=False)


def test_only_what_is_ours_and_not_needed_is_removed(tmp_path: Path) -> None:
    put(tmp_path, "mine", "x.tmp", "note.tmp", "data/rows-1.bin", "data/rows-2.bin", "data/mine", "data/inner/a")
    remove_own(tmp_path, own, keep={"data/rows-2.bin"})
    assert entries(tmp_path) == {"mine", "x.tmp", "data", "data/rows-2.bin", "data/mine"}


def test_nothing_is_removed_through_a_symlink_and_no_symlink_is(tmp_path: Path) -> None:
    put(tmp_path, "outside/rows-1.bin", "outside/inner/a", "target/data/mine")
    (tmp_path / "target" / "data" / "inner").symlink_to(tmp_path / "outside" / "inner")
    (tmp_path / "target" / "data" / "rows-1.bin").symlink_to(tmp_path / "outside" / "rows-1.bin")
    before = entries(tmp_path)
    remove_own(tmp_path / "target", own)
    assert entries(tmp_path) == before
    os.replace(tmp_path / "target" / "data", tmp_path / "data")
    (tmp_path / "target" / "data").symlink_to(tmp_path / "outside")
    before = entries(tmp_path)
    remove_own(tmp_path / "target", own)
    assert entries(tmp_path) == before


def test_removing_a_tree_removes_a_symlink_in_it_and_not_what_it_leads_to(tmp_path: Path) -> None:
    put(tmp_path, "outside/mine", "tree/a/b")
    (tmp_path / "tree" / "a" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    remove_tree(RealDisk(), tmp_path / "tree")
    remove_tree(RealDisk(), tmp_path / "link")
    assert entries(tmp_path) == {"outside", "outside/mine", "link"}


@pytest.mark.parametrize(
    "name", ["x.tmp", "a.json.tmp", "a.json.0.tmp", ".0123456789abcdef.tmp", "a.0123456789ABCDEF.tmp"]
)
def test_a_name_that_only_ends_like_a_temporary_file_is_not_one_of_ours(name: str) -> None:
    assert temp_target(name) is None


def test_a_temporary_name_tells_what_the_file_was_to_become(tmp_path: Path) -> None:
    assert temp_target(RealDisk().temp_name(tmp_path / "a.json").name) == "a.json"


def test_what_the_operating_system_refuses_is_told_with_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(LogFailed, match=r"Permission denied\. Choose a directory that you can write to"),
        writing_to(tmp_path),
    ):
        raise PermissionError(13, "Permission denied")
    with pytest.raises(LogFull, match=r"No space left on device\. Free some space"), writing_to(tmp_path):
        raise OSError(28, "No space left on device")
    with pytest.raises(LockBusy), writing_to(tmp_path):
        raise LockBusy
