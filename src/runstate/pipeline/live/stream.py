"""The live projection on Spark: snapshots at most a second behind the feeds of one or many logs.

    with live_projection(spark, ["sqlite:fleet.db"], "parquet:snapshots", Path("state")) as projection:
        projection.wait()

A query of Structured Streaming hands each batch of the feeds to tasks that fold it; the driver keeps their rows in
the sink, and only then does the checkpoint move on. A batch that is done again changes nothing, so that the query can
be killed at any moment. It is watched from a thread: the lag is measured while nothing moves, what is STALE is resynced
though nothing comes, and a query that has died is started again from its checkpoint.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from pyspark.sql import DataFrame, SparkSession

from runstate.errors import LogBusy, LogClosed, LogFailed, LogNotFound, RunstateError, Unsupported
from runstate.following import aside_name, heartbeat_s
from runstate.logbook import Logbook
from runstate.models.canonical import digest
from runstate.models.registry import find_model
from runstate.pipeline.live.feed_reader import events_per_batch_default, open_feed
from runstate.pipeline.live.fold import ProjectionReader, ProjectionSource, Settings, Target, received
from runstate.pipeline.live.followed_log import KeptLog, Tell, logger
from runstate.pipeline.source.origins import model_of
from runstate.pipeline.spark.failures import SparkFailed, explain
from runstate.pipeline.spark.session import is_remote
from runstate.storage.disk import LockBusy, RealDisk
from runstate.storage.target_directory import cannot_write, remove_own
from runstate.store import Store

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

trigger_ms_default = 100
crashes_max = 3
"""So often in a row Spark may fail for reasons of its own (a worker that was killed) without getting anything done."""
_look_s = 0.1

_checkpoint_files = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def live_projection(
    spark: SparkSession,
    urls: str | Sequence[str],
    to: str,
    state_dir: Path,
    *,
    model: str | None = None,
    trigger_ms: int = trigger_ms_default,
    events_per_batch: int = events_per_batch_default,
    available_now: bool = False,
    tell: Tell = lambda row: None,
) -> LiveProjection:
    """Start to project logs into a sink (`store`, `parquet:DIR` or `console`), on from where `state_dir` says.

    With `available_now` it ends by itself once it has caught up. `tell` is called with each new row, if the sink is the
    console.

    Raises:
        Unsupported: a log has no feed, or Spark is at the other side of Connect.
        InvalidUrl, InvalidOption, UnknownModel, LogNotFound, ModelFailed: at once; nothing was begun.
        LogBusy: another projection has this state.
    """
    if is_remote(spark):
        raise Unsupported("A live projection keeps its sink and its logbook in the driver; Connect has it elsewhere")
    named = (urls,) if isinstance(urls, str) else tuple(dict.fromkeys(urls))
    target = Target(to, model_of(named, model), str(state_dir.absolute()), base=os.getcwd())
    settings = Settings(named, target, events_per_batch, spark.sparkContext.defaultParallelism)
    # Refused here, in one line, and not by a query that dies.
    ProjectionReader(named, target, events_per_batch=events_per_batch, tasks=1)
    for url in named:
        with open_feed(url) as log:
            target.sink(url, log, find_model(target.model))
    trigger = {"availableNow": True} if available_now else {"processingTime": f"{trigger_ms} milliseconds"}
    return LiveProjection(spark, settings, trigger, tell)


class LiveProjection:
    """A projection that is running. `stop` it, or use it in a `with`."""

    def __init__(self, spark: SparkSession, settings: Settings, trigger: dict[str, Any], tell: Tell) -> None:
        self._spark, self._settings, self._trigger, self._tell = spark, settings, trigger, tell
        self._model = find_model(settings.target.model)
        self._state = Path(settings.target.state)
        self._stop = threading.Event()
        self._working = threading.Lock()
        """Held while a batch or a sweep is at work: both go on from rows that the other may be changing."""
        self._kept: dict[str, KeptLog] = {}
        self._failure: BaseException | None = None
        self._crashes = 0
        self.batches = self.events = 0
        """How many have been projected since it was started."""
        self._has_run = self._is_ending = False
        self._away_since: float | None = None
        with ExitStack() as stack:
            self.book = stack.enter_context(closing(Logbook(self._state)))
            stack.callback(_locked(self._state).release)
            self._opened().close()
            settle(spark)
            spark.dataSource.register(ProjectionSource)
            self._resources = stack.pop_all()
        self._thread = threading.Thread(target=self._supervise, name="live-projection", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for its end; False if that has not come in time.

        Raises:
            RunstateError: what has ended it, if no retry can mend that.
        """
        self._thread.join(timeout_s)
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End it. What the sink has stays; the next projection goes on from there."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # --- the thread that watches ---------------------------------------------------------------------------

    def _supervise(self) -> None:
        with self._resources:
            try:
                while not self._stop.is_set() and self._query_again():
                    pass
            except BaseException as error:  # noqa: BLE001 - raised by `wait`, in the thread that asks
                self._failure = error

    def _query_again(self) -> bool:
        """Run a query until it ends, dies, is stopped, or has caught up aside. Whether there is to be another one."""
        before = self.batches
        try:
            with self._opened() as opened:
                query = self._started()
                opened.callback(self._end, query)
                self._has_run = True
                return self._watched(query)
        except Exception as error:
            cause = explain(error)
            if self._stop.is_set():
                return False
            self._crashes = 1 if self.batches > before else self._crashes + 1
            if cause is None or not self._can_mend(cause):
                raise (cause or error) from error
            if self._away_since is None:
                self._away_since = time.monotonic()
                logger.warning("The query has failed: %s (%s); it goes on from its checkpoint", cause, cause.code)
            for kept in self._kept.values():
                kept.wait_for_it()
            self._stop.wait(heartbeat_s)
            return True

    def _can_mend(self, cause: RunstateError) -> bool:
        if isinstance(cause, SparkFailed):
            return self._crashes <= crashes_max
        # What has worked may work again once it is opened anew: a file system is mounted again, a server is up.
        return cause.retryable or (self._has_run and isinstance(cause, LogNotFound | LogFailed | LogClosed))

    def _watched(self, query: StreamingQuery) -> bool:
        while query.isActive:
            if self._stop.is_set():
                return False
            until = time.monotonic() + heartbeat_s
            for kept in self._kept.values():
                kept.beat()
            if self._working.acquire(blocking=False):
                try:
                    for kept in self._kept.values():
                        kept.sweep()
                finally:
                    self._working.release()
            if self._is_to_switch():
                self._end(query)
                self._switch()
                return True
            while query.isActive and not self._stop.is_set() and time.monotonic() < until:
                self._stop.wait(_look_s)
        query.awaitTermination()  # Raises what it has died of.
        self._switch()
        return False

    def _is_to_switch(self) -> bool:
        entries = [kept.entry for kept in self._kept.values()]
        return any(entry.is_aside for entry in entries) and all(kept.is_caught_up for kept in self._kept.values())

    def _end(self, query: StreamingQuery) -> None:
        """End a query between two batches: tasks that are cut off make Spark's own processes complain."""
        with self._working:
            self._is_ending = True
        with suppress(Exception):  # It may have died by itself, or Spark with it.
            query.stop()

    def _switch(self) -> None:
        with self._working:
            for kept in self._kept.values():
                kept.beat()
                kept.switch()

    # --- a query -------------------------------------------------------------------------------------------

    def _opened(self) -> ExitStack:
        """Open the logs anew: what is at their places now, and not what was there when the last query died."""
        with ExitStack() as stack:
            kept = {}
            for url in self._settings.urls:
                store = Store(stack.enter_context(open_feed(url)), self._model, snapshot_every=0)
                made = KeptLog(url, store, self.book, self._settings.target, self._tell)
                kept[made.entry.url] = made
            self._kept = kept
            return stack.pop_all()

    def _started(self) -> StreamingQuery:
        self._is_ending = False
        asides = {shown: aside_name(kept.entry) for shown, kept in self._kept.items()}
        target = msgspec.structs.replace(self._settings.target, asides=asides)
        settings = msgspec.structs.replace(self._settings, target=target)
        frame = self._spark.readStream.format(ProjectionSource.name()).option(
            "settings", msgspec.json.encode(settings).decode()
        )
        writer = frame.load().writeStream.foreachBatch(self._keep).trigger(**self._trigger)
        return writer.option("checkpointLocation", str(self._checkpoint())).start()

    def _checkpoint(self) -> Path:
        """Another one for each sink and each version of the model: those begin at the beginning.

        Without its logbook or its sink a checkpoint counts for nothing: to read all once more is right in any case.
        """
        name = f"{self._model.name}.v{self._model.version}.{digest(self._settings.target.to.encode())[:8]}"
        path = self._state / "checkpoints" / digest(name.encode())[:16]
        if all(kept.entry.position is None for kept in self._kept.values()) or not self._settings.target.is_there():
            remove_own(self._state, _files_of_checkpoint(path.name), keep={"checkpoints/"})
            if (path / "offsets").exists():
                raise LogFailed(
                    f"The checkpoint {path} cannot be removed: it is behind a symlink. Choose another --state"
                )
        if not any(kept.entry.is_aside for kept in self._kept.values()):
            remove_own(self._state, _files_of_checkpoint(f"(?!{path.name})[0-9a-f]{{16}}"), keep={"checkpoints/"})
        return path

    def _keep(self, frame: DataFrame, batch: int) -> None:
        """A batch. The tasks run here, when their rows are asked for."""
        with self._working:
            if self._is_ending:
                raise InterruptedError("the projection is being stopped")
            for log, folded in received(frame.toArrow()).items():
                self.events += self._kept[log].keep(folded)
        self.batches += 1
        self._is_back()

    def _is_back(self) -> None:
        if self._away_since is not None:
            logger.warning("The query is back after %.1f s", time.monotonic() - self._away_since)
            self._away_since = None


def _files_of_checkpoint(name: str) -> re.Pattern[str]:
    """What Spark writes to the checkpoint of a query. `name` is a regular expression."""
    numbered = r"(offsets|commits)/(\.?\d+(\.[^/]*)?)?"
    return re.compile(rf"checkpoints/({name}/(\.?metadata(\.[^/]*)?|{numbered}|(sources|state)/.*)?)?")


def settle(spark: SparkSession) -> None:
    """Make a batch cheap: each file of a checkpoint would cost two processes, for a mode and for a checksum file."""
    name = "spark.sql.streaming.checkpointFileManagerClass"
    if spark.conf.get(name, None) is None:
        spark.conf.set(name, _checkpoint_files)
    jvm: Any = spark._jvm
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(spark._jsc.hadoopConfiguration()).setWriteChecksum(False)


def _locked(state: Path) -> Any:
    try:
        return RealDisk().lock(state / ".lock")
    except LockBusy as error:
        raise LogBusy(f"Another projection has its state in {state}; stop it, or choose another --state") from error
    except OSError as error:
        raise cannot_write(state, error) from error
