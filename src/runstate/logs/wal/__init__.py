"""A write-ahead log with group commit, checkpoints and compaction. The format is described in `docs/formats/wal.md`."""

from runstate.logs.wal.log import WalLog
from runstate.logs.wal.reader import WalReader
from runstate.logs.wal.tickets import Ticket
from runstate.logs.wal.url import open_url

__all__ = ["Ticket", "WalLog", "WalReader", "open_url"]
