"""SQLite on a file system that cannot lock files. Its library locks by itself, so the C library's call is replaced."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runstate.conformance.notes import numbered
from runstate.logs.registry import open_log

_refusing = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>

static int lock_or_call(const char *name, int fd, int command, void *argument) {
  if (command == F_SETLK || command == F_SETLKW) { errno = atoi(getenv("LOCK_ERRNO")); return -1; }
  int (*real)(int, int, ...) = dlsym(RTLD_NEXT, name);
  return real(fd, command, argument);
}

#define REPLACE(name) \\
  int name(int fd, int command, ...) { \\
    va_list more; va_start(more, command); void *argument = va_arg(more, void *); va_end(more); \\
    return lock_or_call(#name, fd, command, argument); \\
  }
REPLACE(fcntl)
REPLACE(fcntl64)
"""


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    directory = tmp_path_factory.mktemp("refusing")
    (source := directory / "refusing.c").write_text(_refusing)
    library = directory / "refusing.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_it_is_refused_at_once_and_says_what_to_do(tmp_path: Path, refusing: Path, error: int, is_made: bool) -> None:
    path = tmp_path / "runs.db"
    if is_made:
        with open_log(f"sqlite:{path}") as log:
            log.append("s", numbered(2))
    opening = f"import runstate; runstate.open('sqlite:{path}')"
    environment = os.environ | {"LD_PRELOAD": str(refusing), "LOCK_ERRNO": str(error)}
    done = subprocess.run([sys.executable, "-c", opening], env=environment, capture_output=True, text=True, timeout=20)
    assert "LogFailed: This file system cannot lock files" in done.stderr
    assert "Keep the log on a local disk" in done.stderr
    assert [name.name for name in tmp_path.iterdir() if not name.name.startswith("runs.db")] == []
