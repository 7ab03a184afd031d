"""The directory for what Runstate keeps about this user's own work, outside of all logs."""

from __future__ import annotations

import os
from pathlib import Path

from runstate.errors import LogFailed


def user_state_directory() -> Path:
    """`$XDG_STATE_HOME/runstate`, or `~/.local/state/runstate`. It may not exist yet.

    A relative path is ignored, as the XDG specification says: it would be one of the working directory, which may be
    somebody else's.

    Raises:
        LogFailed: this user has no home directory.
    """
    home = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not home.is_absolute():
        try:
            home = Path.home() / ".local" / "state"
        except RuntimeError as error:
            raise LogFailed("This user has no home directory; set XDG_STATE_HOME to an absolute path") from error
    if not home.is_absolute():
        raise LogFailed("HOME is not an absolute path; set XDG_STATE_HOME to one")
    return home / "runstate"
