"""The findings of an audit on file: a Delta table that is written once, over files that Spark writes."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that users of Spark know

from runstate.errors import LogFailed
from runstate.pipeline.audit.coverage import check_all_seen, unseen_texts
from runstate.pipeline.audit.job import COVERED, finding_schema
from runstate.pipeline.spark.failures import readable
from runstate.pipeline.spark.shared_storage import checked, marked
from runstate.pipeline.tables.delta_log import DeltaLog
from runstate.storage.directories import make_directories
from runstate.storage.disk import DIRECTORY_MODE, FILE_MODE, RealDisk, temp_target
from runstate.storage.target_directory import cannot_write, check_target, remove_own

_nothing = re.compile("(?!)")
_findings_name = re.compile("[0-9a-f]{16}")
_part = r"(part-\d{5}-[0-9a-f-]{36}[^/]*\.parquet|_SUCCESS)"
_findings = re.compile(rf"{_findings_name.pattern}/({_part}|\.{_part}\.crc|_delta_log/([0-9]{{20}}\.json)?)?")
"""Directories of findings, and what is written to them."""


def check_findings_target(to: Path) -> None:
    """
    Raises:
        NotALog: something is there already.
        LogFailed: findings are there already, or it cannot be written.
    """
    if (to / "_SUCCESS").exists():
        raise LogFailed(f"{to} holds the findings of another audit. Choose an empty or new directory")
    check_target(to, _nothing, has_marker=False)
    check_target(to.absolute().parent, _nothing, has_marker=True)


def remove_findings(directory: Path) -> None:
    """Remove what `write` wrote to directories in this one that are named by 16 hexadecimal digits.

    Raises:
        OSError: a file cannot be removed.
    """
    for path in directory.iterdir():
        if _findings_name.fullmatch(temp_target(path.name) or ""):
            shutil.rmtree(path, ignore_errors=True)  # It does not follow a symlink.
    remove_own(directory, _findings)


def write_findings(frame: DataFrame, to: Path) -> DataFrame:
    """Run the audit and keep all of its rows as a Delta table in a new or empty directory. Returns them as they stand
    there.

    The directory is there once everything in it is, and survives a power cut then.

    Raises:
        NotALog: something else is there already.
        LogFull, LogFailed: findings are there already, or it cannot be written.
        PipelineFailed: a task failed, or has not seen streams that the driver sees; nothing is there.
    """
    to = to.absolute()
    check_findings_target(to)
    temporary = Path(RealDisk().temp_name(to))
    rows = temporary / "rows"
    try:
        make_directories(RealDisk(), temporary)
        with readable("audit"), marked(rows) as marker:
            checked(frame, marker).write.parquet(f"file://{rows}")
            written = frame.sparkSession.read.parquet(f"file://{rows}").where(F.col("code") == COVERED)
            check_all_seen(written.agg(unseen_texts()).collect()[0]["unseen"])
        # Executors write with a mode of their own. Nobody else can look into the directory until it is right.
        for path in rows.iterdir():
            with open(path, "rb+") as file:
                os.fchmod(file.fileno(), FILE_MODE)
                os.fsync(file.fileno())
        rows.chmod(DIRECTORY_MODE)
        log = DeltaLog(rows)
        log.create(finding_schema)
        log.add_files(sorted(rows.glob("*.parquet")))
        rows.rename(to)
        RealDisk().sync_directory(to.parent)
    except OSError as error:
        raise cannot_write(to, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return frame.sparkSession.read.parquet(f"file://{to}")
