"""The directory of a file log: an empty one is a log without streams, one with other things in it is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from runstate.errors import NotALog
from runstate.logs.registry import open_log


@pytest.mark.parametrize("scheme", ["ndjson", "segments", "wal"])
def test_a_directory_with_other_things_in_it_is_not_read_as_an_empty_log(tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}:{tmp_path}"
    with open_log(url, create=False) as log:
        assert log.streams() == []
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(b"...")
    with pytest.raises(NotALog, match="not written by Runstate as a log of this kind: it holds 'photos'"):
        open_log(url, create=False)
    (tmp_path / ".locks").mkdir()
    with open_log(url, create=False) as log:
        assert log.streams() == []
