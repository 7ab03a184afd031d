"""The branch of the kit for what a log does not offer: logs that offer less, and refuse the rest."""

from typing import NoReturn

import pytest

from runstate.conformance import LogConformance, Opener
from runstate.logs.log import Capability, refuse
from runstate.logs.memory import MemoryLog


class LimitedLog(MemoryLog):
    """Appends and reads, and nothing else."""

    capabilities = frozenset()

    def feed(self, **_: object) -> NoReturn:
        raise refuse(Capability.FEED, "limited")

    def load_snapshot(self, *_: object) -> NoReturn:
        raise refuse(Capability.SNAPSHOTS, "limited")

    def save_snapshot(self, *_: object) -> NoReturn:
        raise refuse(Capability.SNAPSHOTS, "limited")

    def adopt(self, *_: object, **__: object) -> NoReturn:
        raise refuse(Capability.ADOPT, "limited")

    def delete_stream(self, *_: object, **__: object) -> NoReturn:
        raise refuse(Capability.DELETE, "limited")

    def put_blob(self, *_: object) -> NoReturn:
        raise refuse(Capability.BLOBS, "limited")

    def get_blob(self, *_: object) -> NoReturn:
        raise refuse(Capability.BLOBS, "limited")


class FollowedLog(LimitedLog):
    """Appends, reads, and can be followed."""

    capabilities = frozenset({Capability.FEED})
    feed = MemoryLog.feed  # type: ignore[assignment]


class TestLimitedLog(LogConformance):
    @pytest.fixture
    def opener(self) -> Opener:
        return Opener("limited:", lambda _: LimitedLog())


class TestFollowedLog(LogConformance):
    @pytest.fixture
    def opener(self) -> Opener:
        return Opener("followed:", lambda _: FollowedLog())
