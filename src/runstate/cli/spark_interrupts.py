"""Ctrl-C while a Spark job runs in this process: the job is cancelled, and Spark and py4j print nothing about it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from runstate.pipeline.spark.session import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_again_s = 0.2


@contextmanager
def cancel_on_interrupt(spark: SparkSession) -> Iterator[None]:
    """Cancel the block's Spark jobs on SIGINT. A second SIGINT ends the block wherever it is.

    The jobs are cancelled by another thread: the main thread waits for Spark's answer, and cannot ask for anything else
    on the same connection.

    Raises:
        KeyboardInterrupt: at the end of the block, if there was a SIGINT.
    """
    interrupted, over = threading.Event(), threading.Event()

    def handle(number: int, frame: Any) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    def cancel() -> None:
        interrupted.wait()
        while not over.is_set():
            with suppress(Exception):  # Spark may have been stopped meanwhile.
                _cancel_jobs(spark)
            over.wait(_again_s)  # The block may have started another job.

    before = signal.signal(signal.SIGINT, handle)
    threading.Thread(target=cancel, name="runstate-cancel", daemon=True).start()
    try:
        yield
    except Exception:
        if not interrupted.is_set():
            raise
    finally:
        over.set()
        signal.signal(signal.SIGINT, before)
    if interrupted.is_set():
        raise KeyboardInterrupt


def _cancel_jobs(spark: SparkSession) -> None:
    if is_remote(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.setLogLevel("OFF")  # It would report each task that ends early.
        spark.sparkContext.cancelAllJobs()


@contextmanager
def quiet_py4j() -> Iterator[None]:
    """Drop what py4j logs to the root logger: a traceback, whenever a call is interrupted or the JVM is gone."""

    def is_kept(record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname

    root = logging.getLogger()
    root.addFilter(is_kept)
    try:
        yield
    finally:
        root.removeFilter(is_kept)
