"""The scene of tests over hostile data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.commands import Cli
from tests.hostile import Scene


@pytest.fixture
def scene(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path, cli)
    monkeypatch.chdir(made.here)
    monkeypatch.syspath_prepend(made.here)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    known = set(sys.modules)
    yield made
    for name in set(sys.modules) - known:
        if name == "evil" or name.startswith("runstate_place_"):
            del sys.modules[name]
