"""A second handle in one process leaves the first one's locks alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import runstate
from runstate.logs.registry import open_log


def test_to_open_a_log_once_more_does_not_let_another_process_remove_its_newest_events(tmp_path: Path) -> None:
    url, newest = f"sqlite:{tmp_path}/fleet.db", tmp_path / "fleet.db-wal"
    with open_log(url) as held:
        held.feed(limit=1)
        with runstate.open(url) as store:
            store.run("r-1", tenant="acme", plan="nightly").started()
        program = f"from runstate.logs.registry import open_log; open_log({url!r}).close()"
        subprocess.run([sys.executable, "-c", program], check=True)
        # The last one to close the file removes this. That other process was not the last.
        assert newest.exists()
        assert len(held.feed(limit=10).records) == 1
