"""The daemon of Python workers: the real one of Spark, started as the JVM starts it, by somebody who hangs up."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.pipeline.live_drivers import until


@pytest.fixture
def short_path() -> Iterator[str]:
    """The path of a socket has room for a hundred bytes."""
    with TemporaryDirectory() as path:
        yield path


@pytest.mark.parametrize(
    ("module", "is_silent"), [("pyspark.daemon", False), ("runstate.pipeline.spark.workers", True)]
)
def test_a_jvm_that_has_gone_is_nothing_to_tell_of(module: str, is_silent: bool, short_path: str) -> None:
    environment = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": short_path,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", module, "pyspark.worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env={**os.environ, **environment}, **pipes) as daemon:  # type: ignore[call-overload]
        (length,) = struct.unpack("!i", daemon.stdout.read(4))
        with socket.socket(socket.AF_UNIX) as jvm:
            jvm.connect(daemon.stdout.read(length).decode())
            (worker,) = struct.unpack("!i", jvm.recv(4))
            # A task for another Python than this, which it will complain of, to nobody.
            jvm.sendall(struct.pack("!ii", 0, 3) + b"2.7")
        until(lambda: not Path(f"/proc/{worker}").exists(), "the worker has ended")
        _, said = daemon.communicate()
    assert (said == b"") == is_silent, said
