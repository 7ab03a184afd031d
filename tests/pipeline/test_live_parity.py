"""The live projectors, in one process and on Spark: the same promises, and the same bytes as a full replay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.fleets import histories
from tests.pipeline.live_drivers import (
    Driver,
    InProcess,
    OnSpark,
    append,
    event,
    place,
    replayed,
    rows,
    until,
)

from runstate.errors import InvalidUrl, LogBusy, LogNotFound, ModelFailed, ModelMismatch, Unsupported
from runstate.logbook import Logbook
from runstate.logs.registry import open_log
from runstate.pipeline.source.data_source import register
from runstate.storage.disk import RealDisk
from runstate.store import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

rounds = min(50, int(os.environ.get("RUNSTATE_KILL_ROUNDS", "1")))
"""Kills of the driver in a schedule, and schedules. Each costs a start of Spark: more of them are for `make soak`."""


@pytest.fixture(params=["in_process", "spark"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    made: Driver = InProcess() if request.param == "in_process" else OnSpark(request.getfixturevalue("spark"))
    yield made
    made.stop()


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:{tmp_path}/fleet.db"
    open_log(made).close()
    return made


def codes(driver: Driver) -> list[str]:
    return [alert.code for alert in driver.book.alerts() if alert.code != "PROJECTOR_LAG_HIGH"]  # type: ignore[attr-defined]


# --- gaps ------------------------------------------------------------------------------------------------

_example = {
    1: ("RunStarted", None),
    2: ("StepStarted", "a"),
    3: ("StepCompleted", "a"),
    4: ("StepStarted", "b"),  # It matters: without it, the fifth is impossible.
    5: ("StepCompleted", "b"),
    6: ("SignalAccepted", None),
    7: ("RunPaused", None),
    8: ("RunResumed", None),
}


def test_the_example_of_contract_v1_section_4_2_and_a_gap_that_is_never_filled(
    driver: Driver, url: str, tmp_path: Path
) -> None:
    driver.start([url], "store", tmp_path / "state")
    for fetch in ([1, 2, 3], [5, 6], [4, 7, 8]):
        for seq in fetch:
            place(url, seq, event("r-1", seq, *_example[seq]))
        driver.caught_up()
        assert rows("store", url) == replayed(url)
        if fetch == [5, 6]:
            assert codes(driver).count("PROJECTOR_NON_CONTIGUOUS_FETCH_DETECTED") == 1
    assert rows("store", url)["r-1"][0] == 8
    assert [entry.stale for entry in driver.entries()] == [0]
    # Nothing ever fills this one: one look at the log, and it is left behind.
    for seq in (1, 2, 4):
        place(url, seq, event("r-2", seq))
    driver.caught_up()
    resyncs = driver.entries()[0].resyncs
    append(url, event("r-3", 1))
    driver.caught_up()
    append(url, event("r-2", 5))
    driver.caught_up()
    assert (rows("store", url), driver.entries()[0].resyncs) == (replayed(url), resyncs)
    assert [entry.stale for entry in driver.entries()] == [0]
    # Beyond one gap and into another with one fetch: all of it is put in its place.
    for fetch in ([1, 3], [6, 2]):
        driver.stop()
        for seq in fetch:
            place(url, seq, event("r-4", seq, "RunPaused" if seq == 3 else "RunStarted"))
        driver.start([url], "store", tmp_path / "state")
        driver.caught_up()
    assert rows("store", url) == replayed(url)
    # And all of it again, from the beginning: not a byte changes, and nobody is told a second time.
    before, told = rows("store", url), codes(driver)
    driver.stop()
    driver.forget_position()
    driver.start([url], "store", tmp_path / "state")
    driver.caught_up()
    assert (rows("store", url), codes(driver)) == (before, told)


def test_what_is_impossible_or_unknown_or_deleted_and_begun_again(driver: Driver, url: str, tmp_path: Path) -> None:
    to = f"parquet:{tmp_path}/table"
    driver.start([url], to, tmp_path / "state")
    append(url, event("r-1", 1, "RunStarted"), event("r-1", 2, "Telemetry"), event("r-1", 3, "RunStarted"))
    append(url, event("r-2", 1, "StepCompleted", "a"), event("r-3", 1, "RunStarted"), event("r-3", 2, "RunPaused"))
    driver.caught_up()
    assert rows(to, url) == replayed(url)
    assert sorted(codes(driver)) == ["INVALID_TRANSITION", "INVALID_TRANSITION", "PROJECTOR_CAUSAL_VIOLATION"]
    assert b'"inconsistent":true' in rows(to, url)["r-1"][1]
    with open_log(url) as log:
        log.delete_stream("r-3")
    append(url, event("r-3", 7, "RunStarted"))
    append(url, event("r-1", 4, "RunCompleted"), event("r-1", 5, "RunStarted"))
    driver.caught_up()
    assert rows(to, url) == replayed(url)
    assert rows(to, url)["r-3"][0] == 1
    assert codes(driver).count("INVALID_TRANSITION") == 3


# --- several logs, outages, versions ---------------------------------------------------------------------


def test_several_logs_go_into_one_table_and_a_table_that_is_busy_is_waited_for(
    driver: Driver, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runstate.pipeline.live.parquet_sink._lock_s", 0.05)
    other, to = f"sqlite:{tmp_path}/other.db", f"parquet:{tmp_path}/table"
    append(url, event("r-1", 1), event("r-2", 1))
    append(other, event("s-1", 1))
    driver.start([url, other], to, tmp_path / "state")
    driver.caught_up()
    assert rows(to, url) == {**replayed(url), **replayed(other)}
    lock = RealDisk().lock(tmp_path / "table" / ".lock")
    append(other, event("s-1", 2))
    if isinstance(driver, OnSpark):
        until(lambda: "Somebody else is publishing" in caplog.text, "the refusal is logged")
        assert rows(to, url)["s-1"][0] == 1
    else:
        with pytest.raises(LogBusy):
            driver.caught_up()
    lock.release()
    driver.caught_up()
    assert rows(to, url) == {**replayed(url), **replayed(other)}


_model = """
from runstate.models.engine import EngineModel

class {name}(EngineModel):
    version = {version}

    def dump(self, state):
        return super().dump(state)[:-1] + b',"by":{version}}}'

    def load(self, data):
        return super().load(data.partition(b',"by":')[0] + b"}}")
"""


def test_a_new_version_of_the_model_is_projected_aside_and_switched_to(
    driver: Driver, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    to, places = f"parquet:{tmp_path}/table", {}
    for version in (1, 2):
        path = tmp_path / f"model{version}.py"
        path.write_text(_model.format(name=f"V{version}", version=version))
        places[version] = f"{path}:V{version}"
    append(url, event("r-1", 1, "RunStarted"), event("r-2", 1))
    driver.start([url], to, tmp_path / "state", model=places[1])
    driver.caught_up()
    assert rows(to, url) == replayed(url, places[1])
    driver.stop()
    append(url, event("r-1", 2, "RunPaused"))
    driver.start([url], to, tmp_path / "state", model=places[2])
    until_switched = [(2, False)]
    if isinstance(driver, InProcess):
        driver.caught_up()
    until(lambda: [(e.version, e.is_aside) for e in driver.entries()] == until_switched, str(driver.entries()))
    assert rows(to, url) == replayed(url, places[2])
    append(url, event("r-2", 2))
    driver.caught_up()
    assert rows(to, url) == replayed(url, places[2])
    assert "is projected aside" in caplog.text
    assert "switched over to version 2" in caplog.text


def test_a_logbook_of_another_model_is_refused(driver: Driver, url: str, tmp_path: Path) -> None:
    append(url, event("r-1", 1))
    driver.start([url], "store", tmp_path / "state")
    driver.caught_up()
    driver.stop()
    with pytest.raises((ModelFailed, ModelMismatch), match="of the model 'engine', not of 'rundir'"):
        driver.start([url], "store", tmp_path / "state", model="rundir")
    driver.start([url], "store", tmp_path / "state")


def test_a_log_that_goes_away_comes_back(
    spark: SparkSession, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver, path = OnSpark(spark), Path(url.partition(":")[2])
    append(url, event("r-1", 1))
    driver.start([url], "store", tmp_path / "state")
    driver.caught_up()
    append(url, event("r-1", 2))
    driver.caught_up()
    path.rename(tmp_path / "away.db")
    until(lambda: driver.projection.wait(0) or "it goes on from its checkpoint" in caplog.text, "the outage is logged")
    (tmp_path / "away.db").rename(path)
    append(url, event("r-1", 3))
    driver.caught_up()
    until(lambda: "is back after" in caplog.text, "its end is logged")
    assert rows("store", url) == replayed(url)
    driver.stop()


def test_what_cannot_be_projected_is_refused_before_anything_is_begun(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    driver, state = OnSpark(spark), tmp_path / "state"
    with pytest.raises(InvalidUrl, match="write store, console or parquet:DIR"):
        driver.start([url], "nowhere", state)
    with pytest.raises(LogNotFound):
        driver.start([f"sqlite:{tmp_path}/none.db"], "store", state)
    (tmp_path / "runs").mkdir()
    with pytest.raises(Unsupported, match="offers no feed"):
        driver.start([f"ndjson:{tmp_path / 'runs'}"], "store", state, model="rundir")
    assert not state.exists()
    driver.start([url], "store", state)
    with pytest.raises(LogBusy, match="Another projection has its state in"):
        OnSpark(spark).start([url], "store", state)
    driver.stop()


# --- schedules -------------------------------------------------------------------------------------------


class Fleet:
    """Appends the histories of a fleet piece by piece, and does to a log what happens to logs."""

    def __init__(self, url: str, random: Random) -> None:
        self._url, self._random = url, random
        self._left = {stream: list(lines) for stream, lines in histories("engine", random.randrange(99), 25).items()}
        self._gapped, self._number = dict[str, set[int]](), 0

    def step(self) -> None:
        self._random.choice([self._append, self._append, self._append, self._gap, self._fill, self._delete])()

    def _append(self) -> None:
        with open_store(self._url, "engine", snapshot_every=0, on_alert=lambda alert: None) as store:
            for stream in self._random.sample(sorted(self._left), min(6, len(self._left))):
                count = self._random.randrange(1, 6)
                store.append_events([store.model.parse(line) for line in self._left[stream][:count]])
                del self._left[stream][:count]
                if not self._left[stream]:
                    del self._left[stream]

    def _gap(self) -> None:
        self._number += 1
        run = f"gapped-{self._random.randrange(4)}"
        seqs = self._gapped.setdefault(run, set())
        seq = max(seqs, default=0) + self._random.randrange(1, 4)
        seqs.add(seq)
        place(self._url, seq, event(run, self._number, self._random.choice(["RunStarted", "RunPaused", "Note"])))

    def _fill(self) -> None:
        holes = [(run, seq) for run, seqs in self._gapped.items() for seq in range(2, max(seqs)) if seq not in seqs]
        if holes:
            self._number += 1
            run, seq = self._random.choice(holes)
            self._gapped[run].add(seq)
            place(self._url, seq, event(run, self._number, "RunResumed"))

    def _delete(self) -> None:
        with open_log(self._url) as log:
            streams = [info.stream for info in log.streams() if info.stream not in self._gapped]
            if streams:
                gone = self._random.choice(streams)
                log.delete_stream(gone)
                self._number += 1
                if self._random.random() < 0.5:
                    append(self._url, event(gone, self._number, "RunStarted"))
                    self._left.pop(gone, None)


def python_workers(spark: SparkSession) -> list[int]:
    """The Python processes of this Spark: workers, their daemon, and the one that plans streams."""
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [pid for pid, parent in parents.items() if parent == jvm]
    return found + [pid for pid, parent in parents.items() if parent in found]


def has_healthy_workers(spark: SparkSession, url: str) -> bool:
    """Spark keeps idle workers, and notices that one was killed only when it hands it out."""
    from pyspark.errors import PySparkException

    register(spark)
    try:
        return all(spark.read.format("runstate").option("url", url).load().count() > 0 for _ in range(12))
    except PySparkException:
        return False


@pytest.mark.parametrize("seed", range(rounds))
def test_after_any_schedule_it_equals_a_full_replay(driver: Driver, url: str, tmp_path: Path, seed: int) -> None:
    random = Random(f"{seed} {type(driver).__name__}")
    to = random.choice(["store", f"parquet:{tmp_path}/table"])
    fleet, kills = Fleet(url, random), 0
    driver.start([url], to, tmp_path / "state")
    for number in range(60):
        fleet.step()
        if number % 20 == 10:
            driver.stop()
            driver.start([url], to, tmp_path / "state")
        if isinstance(driver, OnSpark) and number % 20 == 15:
            workers = python_workers(driver._spark)
            if workers:
                os.kill(random.choice(workers), signal.SIGKILL)
                kills += 1
        if number % 7 == 0:
            driver.caught_up()
    driver.caught_up()
    expected = replayed(url)
    assert {stream: found for stream, found in rows(to, url).items() if stream in expected} == expected
    assert [entry.stale for entry in driver.entries()] == [0]
    assert kills > 0 or isinstance(driver, InProcess)
    if isinstance(driver, OnSpark):
        driver.stop()
        until(partial(has_healthy_workers, driver._spark, url), "no killed worker is left for other tests to meet")


_quick = ["--master", "local[2]", "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"]
_quick += ["--conf", "spark.driver.memory=1g", "--trigger-ms", "20"]


def while_running(process: subprocess.Popen[bytes], condition: Callable[[], bool], what: str) -> None:
    def holds() -> bool:
        assert process.poll() is None, "it has ended by itself"
        return condition()

    try:
        until(holds, what)
    except BaseException:
        process.kill()
        process.wait()
        raise


def is_moving(fleet: Fleet, book: Logbook, before: int) -> bool:
    fleet.step()
    return sum(entry.events for entry in book.entries()) > before


def is_caught_up(url: str, book: Logbook) -> bool:
    entry = book.entry(url)
    with open_log(url) as log:
        return entry is not None and not log.feed(after=entry.position, limit=1).records


def test_a_driver_that_is_killed_goes_on_where_it_was(url: str, tmp_path: Path) -> None:
    random, to, state = Random(rounds), f"parquet:{tmp_path}/table", tmp_path / "state"
    fleet = Fleet(url, random)
    command = [sys.executable, "-m", "runstate", "pipeline", "stream", url, "--to", to, "--state", str(state), *_quick]
    fleet.step()
    # Not into a pipe, which nobody would empty: a projector that has much to tell would wait for a reader for ever.
    # And each into its own file: the Java process of a driver that was killed lives, and complains, a little longer.
    for number in range(rounds):
        with (tmp_path / f"told-{number}").open("w") as file:
            process, book = subprocess.Popen(command, stderr=file), Logbook(state)
        with closing(book):
            before = sum(entry.events for entry in book.entries())
            while_running(process, partial(is_moving, fleet, book, before), "events are projected")
        for _ in range(random.randrange(8)):
            fleet.step()
            time.sleep(random.random() * 0.1)  # Into the middle of some batch.
        process.kill()
        process.wait()
    told = tmp_path / "told"
    with told.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    with closing(Logbook(state)) as book:
        while_running(process, partial(is_caught_up, url, book), "all is projected")
    process.send_signal(signal.SIGTERM)
    process.wait(120)
    err = told.read_text()
    assert (process.returncode, "  File " in err) == (0, False), err
    assert "events projected" in err
    expected = replayed(url)
    assert {stream: found for stream, found in rows(to, url).items() if stream in expected} == expected


def test_finished_runs_leave_nothing_behind_in_the_projection(spark: SparkSession, url: str, tmp_path: Path) -> None:
    driver = OnSpark(spark)
    driver.start([url], "store", tmp_path / "state")
    for number in range(5):
        append(url, *(event(f"r-{number}-{n}", 1, "RunStarted") for n in range(20)))
        append(url, *(event(f"r-{number}-{n}", 2, "RunCompleted") for n in range(20)))
        driver.caught_up()
    (kept,) = driver.projection._kept.values()
    assert not kept.stale
    assert not kept._watch._projections
    assert not kept._watch._states
    driver.stop()
    checkpoint = next((tmp_path / "state" / "checkpoints").iterdir())
    assert not (checkpoint / "state").exists()
