"""What Spark prints by itself, whatever is done with it."""

from __future__ import annotations

import re

broken_pipe = re.compile(r"Traceback .*\n(  File .*pyspark/daemon.py.*\n)+BrokenPipeError: .*\n")
"""By its daemon of Python workers, if the JVM is faster to end than it."""
