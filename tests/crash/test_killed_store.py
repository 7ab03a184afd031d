"""A store whose process is killed between an append and its snapshot: the log is the truth, the snapshot follows."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from tests.log_urls import credentials, durable_schemes, url_at

import runstate
from runstate.models.tagged import Fact, TaggedModel


class Counted(msgspec.Struct, tag="counted", frozen=True):
    number: int


class Tally(msgspec.Struct, frozen=True):
    total: int = 0
    last: int = 0


class Counter(TaggedModel[Counted, Tally]):
    name, version = "counter", 1
    events: ClassVar[type] = Counted
    state: ClassVar[type] = Tally

    def evolve(self, state: Tally, event: Fact[Counted]) -> Tally:
        return Tally(state.total + event.event.number, event.event.number)


def main(url: str, snapshot_every: int) -> None:
    """Count for ever, in this process, until it is killed. A restart begins at 1 and resends every key."""
    with runstate.open(url, model=Counter(), snapshot_every=snapshot_every) as store:
        number = 0
        while True:
            number += 1
            store.append_event(Fact("run", Counted(number), key=f"{number}"))
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


def die_before_the_second_snapshot(url: str) -> None:
    """Append two events. This process is killed when the second one is committed and its snapshot is to be saved."""
    with runstate.open(url, model=Counter()) as store:
        store.append_event(Fact("run", Counted(1), key="1"))
        store.log.save_snapshot = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        store.append_event(Fact("run", Counted(2), key="2"))


@pytest.mark.slow
@pytest.mark.parametrize("snapshot_every", [1, 7])
@pytest.mark.parametrize("scheme", ["sqlite", "postgresql"])
def test_a_killed_store_has_a_snapshot_that_its_log_can_prove(tmp_path: Path, scheme: str, snapshot_every: int) -> None:
    url, chance, most = url_at(scheme, tmp_path / "log"), random.Random(snapshot_every), 0
    for _ in range(8):
        acknowledged = count_and_die(url, snapshot_every, until=most + chance.randrange(1, 40))
        with runstate.open(url, model=Counter()) as store:
            events = store.fetch_events("run", limit=100_000)
            assert [event.event.number for event in events] == list(range(1, len(events) + 1))
            assert len(events) >= max(acknowledged, most)
            kept = store.log.load_snapshot("run", Counter.name)
            if kept is not None:
                # With every append, it is in the commit of its event.
                assert kept.seq == len(events) or snapshot_every > 1
                assert kept.seq <= len(events)
                assert kept.body == store.model.dump(store.snapshot_at("run", seq=kept.seq))
            assert store.current_state("run") == store.project_snapshot("run")
            assert store.current_state("run").total == sum(range(1, len(events) + 1))
            most = len(events)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", sorted({*durable_schemes()} - {"postgresql", "snowflake", "sqlite"}))
def test_a_snapshot_that_a_killed_store_did_not_save_is_saved_by_the_next_read(tmp_path: Path, scheme: str) -> None:
    """SQLite, Postgres and Snowflake save both in one commit."""
    url = url_at(scheme, tmp_path / "log")
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.test_killed_store", url], env={**os.environ, **credentials}
    )
    assert done.returncode == -signal.SIGKILL
    with runstate.open(url, model=Counter()) as store:
        kept = store.log.load_snapshot("run", Counter.name)
        assert kept is not None
        assert (kept.seq, len(store.fetch_events("run"))) == (1, 2)
        assert store.get_snapshot("run") == Tally(3, 2)
        kept = store.log.load_snapshot("run", Counter.name)
        assert kept is not None
        assert kept.seq == 2


def count_and_die(url: str, snapshot_every: int, until: int) -> int:
    """Run `main` in a process, kill it once it has counted that far; the last number that it acknowledged."""
    command = [sys.executable, "-m", "tests.crash.test_killed_store", url, str(snapshot_every)]
    environment = {**os.environ, **credentials}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= until:
                break
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
    return int(rest[-1]) if rest else until


if __name__ == "__main__":
    if len(sys.argv) == 2:
        die_before_the_second_snapshot(sys.argv[1])
    else:
        main(sys.argv[1], int(sys.argv[2]))
