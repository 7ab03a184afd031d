from pathlib import Path

import pytest

from runstate.conformance import DurableLogConformance, LogConformance, Opener


class TestNdjsonLog(LogConformance, DurableLogConformance):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return Opener(f"ndjson:{tmp_path}/runs")
