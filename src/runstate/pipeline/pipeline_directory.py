"""The directory of a pipeline: who may write to it, and Spark's own files in it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runstate.errors import LogBusy
from runstate.pipeline.stages import inputs_in
from runstate.storage.directories import make_directories
from runstate.storage.disk import TEMP, LockBusy, RealDisk, refuse_links, temp_target
from runstate.storage.target_directory import check_target, remove_own, writing_to

_leftovers = re.compile(rf"inputs/|inputs/[^/]+\.json{TEMP}|\.lock")
"""What a pipeline that was killed before it wrote its inputs may have left."""
_own = ("inputs", "events", "snapshots", "findings", "runs")
"""The directories of a pipeline."""
_scratch = ".spark"
_old_progress = re.compile(rf"\.progress\.json{TEMP}")


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Be the only one who runs the pipeline of a directory.

    Raises:
        NotALog: the directory holds something else.
        LogBusy: another process runs it now.
        LogFull, LogFailed: the directory cannot be written.
    """
    check_target(directory, _leftovers, has_marker=bool(inputs_in(directory)))
    try:
        with writing_to(directory):
            make_directories(RealDisk(), directory)
            refuse_links(RealDisk(), *(directory / name for name in (*_own, "spark.log")))
            refuse_links(RealDisk(), *(path for name in _own for path in (directory / name).glob("*")))
            lock = RealDisk().lock(directory / ".lock")
    except LockBusy as error:
        raise LogBusy(f"Another pipeline is at work in {directory}; try again when it is done") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def scratch_in(directory: Path) -> Iterator[Path]:
    """A directory for Spark's own files, removed at the end. Those of pipelines that were killed are removed first.

    The caller is alone in the pipeline's directory.
    """
    with writing_to(directory):
        remove_own(directory, _old_progress)
        for path in directory.iterdir():
            if temp_target(path.name) == _scratch:
                shutil.rmtree(path, ignore_errors=True)  # It does not follow a symlink.
    scratch = Path(RealDisk().temp_name(directory / _scratch))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
