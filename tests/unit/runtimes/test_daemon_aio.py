"""The daemon in an event loop: the same answers, and a loop that never waits for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runstate.errors import InvalidTransition
from runstate.models.daemon import events as e
from runstate.runtimes.daemon import AsyncDaemon, Daemon


def opened(directory: Path) -> AsyncDaemon:
    return AsyncDaemon(Daemon.open(directory / "d", checkpoint_every_s=None))


def test_the_daemon_can_be_awaited(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as daemon:
            assert await daemon.emit(e.Custom("n")) == 1
            assert await daemon.push("q", 1, item_id="1") == "1"
            worker = await daemon.call(daemon.daemon.worker, "w", "q")
            item = await daemon.take("w", lease=worker.lease)
            assert item is not None
            assert (await daemon.fail("q", "1", "no", worker="w", lease=worker.lease)).failure_count == 1
            assert await daemon.take("w", lease=worker.lease) is not None
            await daemon.complete("q", "1", worker="w", lease=worker.lease)
            assert (await daemon.state()).queue_items == {}
            assert await daemon.call(daemon.daemon.checkpoint) == daemon.daemon.seq
            with pytest.raises(InvalidTransition):
                await daemon.take("ghost")

    asyncio.run(main())


def test_many_takers_wait_at_once_without_a_thread_each(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as daemon:
            for n in range(100):
                await daemon.call(daemon.daemon.worker, f"w{n}", "q", lease_s=1000)
            takers = [asyncio.create_task(daemon.take(f"w{n}", wait_s=60)) for n in range(100)]
            while len(daemon.daemon._bells.get("q", [])) < 100:
                await asyncio.sleep(0.005)
            for n in range(100):
                await daemon.push("q", n)
            taken = await asyncio.gather(*takers)
            assert Counter(item.data for item in taken if item is not None) == Counter(range(100))

    asyncio.run(main())


def test_a_take_that_waits_in_vain_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as daemon:
            await daemon.call(daemon.daemon.worker, "w", "q", lease_s=1000)
            assert await daemon.take("w", wait_s=0.01) is None
            assert await daemon.take("w") is None
            waiting = asyncio.create_task(daemon.take("w", wait_s=60))
            while not daemon.daemon._bells:
                await asyncio.sleep(0.001)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert daemon.daemon._bells == {}

    asyncio.run(main())


def test_the_loop_goes_on_while_the_disk_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    async def main() -> None:
        async with opened(tmp_path) as daemon:
            settle = daemon.daemon._settle

            def slowly(ticket: Any) -> None:
                assert go_on.wait(30)
                settle(ticket)

            monkeypatch.setattr(daemon.daemon, "_settle", slowly)
            emitting = asyncio.create_task(daemon.emit(e.Custom("n")))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not emitting.done()
            go_on.set()
            assert await emitting == 1

    asyncio.run(main())


def test_what_was_decided_stays_decided_though_its_caller_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def main() -> None:
        async with opened(tmp_path) as daemon:
            settle = daemon.daemon._settle

            def slowly(ticket: Any) -> None:
                begun.set()
                assert go_on.wait(30)
                settle(ticket)

            monkeypatch.setattr(daemon.daemon, "_settle", slowly)
            emitting = asyncio.create_task(daemon.emit(e.QueuePushed("q", "1", None, 0)))
            await asyncio.to_thread(begun.wait, 30)
            emitting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await emitting
            go_on.set()
            assert list((await daemon.state()).queue_items["q"]) == ["1"]

    asyncio.run(main())
