from pathlib import Path

import pytest

from runstate.conformance import DurableLogConformance, LogConformance, Opener


class TestSegmentsLog(LogConformance, DurableLogConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Opener(f"segments:{tmp_path}/log")
