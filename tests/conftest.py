"""What holds for all tests: those that crash things on purpose take their time, and are left out of `make check`."""

from __future__ import annotations

from pathlib import Path

import pytest

_crash = Path(__file__).parent / "crash"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _crash in item.path.parents:
            item.add_marker(pytest.mark.slow)
