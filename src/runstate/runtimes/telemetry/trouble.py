"""Where the trouble of telemetry ends: in a log, never in a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("runstate.telemetry")


@contextmanager
def unfailing(what: str) -> Iterator[None]:
    """Whatever goes wrong in here is logged as `what`, and goes no further."""
    try:
        yield
    except Exception:  # Nothing about telemetry is worth the run that it tells about.
        logger.exception("%s", what)
