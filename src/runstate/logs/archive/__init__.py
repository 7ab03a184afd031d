"""Finished runs in files of their own, to be read and never written to: `archive:DIR`. `docs/formats/archive.md`."""

from runstate.logs.archive.log import ArchiveLog, open_url

__all__ = ["ArchiveLog", "open_url"]
