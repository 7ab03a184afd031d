"""How far the stage under way is: its process counts Spark's tasks, and leaves the figure where others can look."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runstate.models.canonical import undecodable
from runstate.storage.disk import RealDisk, write_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_every_s = 0.5


class StageProgress(msgspec.Struct, frozen=True):
    stage: str
    done: int
    total: int


Told = Callable[[StageProgress], None]


def told_to(directory: str) -> Told:
    """Leave the progress in a file of a pipeline's directory."""
    path = Path(directory, ".progress.json")

    def tell(progress: StageProgress) -> None:
        temporary = Path(RealDisk().temp_name(path))
        # A disk that is full shows when results are written; the view of the progress is not worth a failure.
        with suppress(OSError):
            write_private(temporary, msgspec.json.encode(progress))
            temporary.replace(path)

    return tell


def read_progress(directory: Path) -> StageProgress | None:
    try:
        return msgspec.json.decode((directory / ".progress.json").read_bytes(), type=StageProgress)
    except (OSError, *undecodable):
        return None


def forget_progress(directory: Path) -> None:
    """Remove what an earlier run has left."""
    with suppress(OSError):
        (directory / ".progress.json").unlink(missing_ok=True)


@contextmanager
def tracked(spark: SparkSession, stage: str, tell: Told) -> Iterator[None]:
    """Tell how many of Spark's tasks are done while the block runs. A Connect client cannot count them."""
    over = threading.Event()
    tell(StageProgress(stage, 0, 0))
    watcher = threading.Thread(target=_watch, args=(spark, stage, tell, over), name="runstate-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(spark: SparkSession, stage: str, tell: Told, over: threading.Event) -> None:
    from runstate.pipeline.spark.session import is_remote

    if is_remote(spark):
        return
    # Spark may be shut down while it is asked, by an interrupt for instance; the job itself reports that.
    with suppress(Exception):
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(_every_s):
            numbers = tracker.getActiveStageIds()
            active = [info for number in numbers if (info := tracker.getStageInfo(number)) is not None]
            done = sum(info.numCompletedTasks for info in active)
            tell(StageProgress(stage, done, sum(info.numTasks for info in active)))
