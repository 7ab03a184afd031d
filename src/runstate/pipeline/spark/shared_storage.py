"""The proof that a task sees the directory that the driver sees, before it writes there or deletes anything.

On a cluster without a shared file system, tasks would write to directories of the same name on disks of their own, and
say that all went well. So the driver leaves a file with a random content, and every task reads it first.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from runstate.errors import RunstateError
from runstate.pipeline.spark.failures import told_to_driver
from runstate.storage.disk import RealDisk, write_private


class StorageNotShared(RunstateError):
    """A machine of the cluster does not see the directory that the job writes to."""

    code = "pipeline.storage_not_shared"


@contextmanager
def marked(beside: PurePath) -> Iterator[str]:
    """Leave a marker beside a file for as long as tasks write to its directory. Yields what they find it by.

    It has the name of a temporary file of the other. If the driver is killed, the next job removes it as such.
    """
    path, content = Path(RealDisk().temp_name(beside)).absolute(), secrets.token_hex(16)
    write_private(path, content.encode())
    try:
        yield msgspec.json.encode((str(path), content)).decode()
    finally:
        path.unlink(missing_ok=True)


def check_shared(marker: str) -> None:
    """
    Raises:
        StorageNotShared: this process does not see what the driver has left.
    """
    named, content = msgspec.json.decode(marker, type=tuple[str, str])
    path = Path(named)
    try:
        found = path.read_text()
    except OSError as error:
        found, why = "", error.strerror or str(error)
    else:
        why = "it holds something else"
    if found != content:
        raise StorageNotShared(
            f"{socket.gethostname()} does not see {path.parent} as the driver does ({path.name}: {why}). Nothing was "
            "written or deleted there. Give a directory that is mounted at the same place on every machine",
            host=socket.gethostname(),
            directory=str(path.parent),
        )


def checked(frame: DataFrame, marker: str) -> DataFrame:
    """The same rows, for Spark to write: each task that has some sees the driver's directory, or fails."""

    def check(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told_to_driver():
            check_shared(marker)
        yield from batches

    return frame.mapInArrow(check, frame.schema)
