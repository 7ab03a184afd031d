"""Which file a name stands for: the same answer with and without `statx`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runstate.storage.file_status import Find, find_file, find_file_by_stat


@pytest.fixture(params=[find_file, find_file_by_stat], ids=["statx", "stat"])
def find(request: pytest.FixtureRequest) -> Find:
    found: Find = request.param
    return found


def test_a_file_is_known_by_its_device_inode_and_size(tmp_path: Path, find: Find) -> None:
    path = tmp_path / "fünf"
    path.write_bytes(b"five!")
    expected = os.stat(path)
    assert find(str(path)) == ((expected.st_dev, expected.st_ino), 5)


def test_a_link_is_a_file_of_its_own(tmp_path: Path, find: Find) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.touch()
    link.symlink_to(target)
    assert find(str(link))[0] == (os.lstat(link).st_dev, os.lstat(link).st_ino) != find(str(target))[0]


def test_a_name_without_a_file_is_an_error_that_names_it(tmp_path: Path, find: Find) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        find(str(tmp_path / "nothing"))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        find(str(tmp_path / "file" / "below"))
