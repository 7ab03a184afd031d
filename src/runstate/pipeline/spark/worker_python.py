"""The Python of Spark's workers: the one that runs now, with pyspark as it is installed.

Spark puts a copy of pyspark, a zip, first on PYTHONPATH. Python compiles what it imports from a zip again in each
process. That is half a second of work in each of the five or more processes that read a log.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from runstate.pipeline.spark.private_files import private_file


def worker_python() -> Path:
    """A program that starts this Python without Spark's own entries on PYTHONPATH. The others keep their order."""
    import pyspark

    installed = shlex.quote(str(Path(pyspark.__file__).parent))
    script = (
        "#!/bin/sh\n"
        "set -f\n"
        "IFS=: kept=\n"
        "for entry in $PYTHONPATH; do\n"
        '  case "$entry" in\n'
        f"    {installed}/python/lib/*.zip | {installed}/jars/*.jar) ;;\n"
        '    *) kept="$kept:$entry" ;;\n'
        "  esac\n"
        "done\n"
        'export PYTHONPATH="${kept#:}"\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    return private_file("bin/python", script, mode=0o700)
