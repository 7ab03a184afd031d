"""Sessions: immutable segments under a manifest of digests. The format is described in `docs/formats/segments.md`."""

from runstate.logs.blob_collection import Collected
from runstate.logs.segments.log import SegmentsLog, open_url

__all__ = ["Collected", "SegmentsLog", "open_url"]
