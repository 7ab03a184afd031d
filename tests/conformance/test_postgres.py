"""The kit on a real server, on a log with and without partitions. What is Postgres' own is in tests/postgres."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.postgres_server import url_at

from runstate.conformance import DurableLogConformance, LogConformance, MultiProcessLogConformance, Opener


class TestPostgresLog(LogConformance, DurableLogConformance, MultiProcessLogConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Opener(url_at(tmp_path))


class TestPartitionedPostgresLog(LogConformance, DurableLogConformance, MultiProcessLogConformance):
    kill_rounds = 10

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Opener(f"{url_at(tmp_path)}&partitions=4")
