"""What Spark prints by itself, whatever is done with it."""

from __future__ import annotations

_header, _end = "Traceback (most recent call last):", "BrokenPipeError: [Errno 32] Broken pipe"


def without_spark_noise(err: str) -> str:
    """What was told, less the tracebacks of Spark's own daemons.

    Those that plan reads are started without asking which daemon to take. Each tells that the JVM was faster to end,
    often several at once, line by line, and as far as it comes before it is ended itself. A traceback of anybody else
    has a file of its own, and that line stays.
    """
    return "".join(line for line in err.splitlines(keepends=True) if not _is_noise(line.rstrip("\n")))


def _is_noise(line: str) -> bool:
    is_place = line.startswith("  File ") and "pyspark/daemon.py" in line
    return bool(line) and (is_place or _header.startswith(line) or _end.startswith(line))
