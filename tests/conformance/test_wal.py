from pathlib import Path

import pytest

from runstate.conformance import DurableLogConformance, LogConformance, Opener


class TestWalLog(LogConformance, DurableLogConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Opener(f"wal:{tmp_path}/streams")
