"""Files as the kernel opens them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runstate.storage.disk import RealDisk


def test_a_pipe_in_place_of_a_file_is_refused_and_not_read_as_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a pipe or a device, not a file"):
        RealDisk().read(tmp_path / "pipe")
