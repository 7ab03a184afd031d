from pathlib import Path

import pytest

from runstate.conformance import DurableLogConformance, LogConformance, MultiProcessLogConformance, Opener


class TestSqliteLog(LogConformance, DurableLogConformance, MultiProcessLogConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Opener(f"sqlite:{tmp_path}/log.db")
