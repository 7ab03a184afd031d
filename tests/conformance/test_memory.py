import pytest

from runstate.conformance import LogConformance, Opener


class TestMemoryLog(LogConformance):
    @pytest.fixture
    def opener(self) -> Opener:
        return Opener("memory:")
