"""Events with valid checksums that mean nothing to the model: they are named, with their seq and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.commands import Cli

from runstate.errors import InvalidEvent
from runstate.logs.wal import WalLog
from runstate.models.daemon.model import DaemonDraft
from runstate.runtimes.daemon import Daemon


@pytest.mark.parametrize("line", [b'{"type":"queue:pushed","queue_name":7}', b"[]"])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_an_event_that_no_daemon_wrote_is_named_with_its_seq_and_can_be_shown(
    cli: Cli, tmp_path: Path, line: bytes, is_checkpointed: bool
) -> None:
    with Daemon.open(tmp_path / "d", checkpoint_every_s=None) as daemon:
        daemon.push("q", item_id="a")
        daemon.push("q", item_id="b")
        if is_checkpointed:
            daemon.checkpoint()
    with WalLog(tmp_path / "d") as log:
        envelope: dict[str, Any] = {"event_id": "x", "type": "alien:landed", "key": "x", "tenant": "", "emitted_at": ""}
        log.append("daemon", [DaemonDraft(**envelope, prefix=b"", tail=line, model="daemon")])
    with pytest.raises(InvalidEvent, match=r"Event 3 of 'daemon' .*--after 2 --limit 1") as caught:
        Daemon.open(tmp_path / "d", checkpoint_every_s=None)
    assert caught.value.details["seq"] == 3
    (finding,) = cli("daemon", "verify", "d", "--json").rows
    assert (finding["code"], finding["seq"]) == ("event.invalid", 3)
    assert [row["seq"] for row in cli("fetch", "wal:d", "daemon", "--after", "2", "--limit", "1").rows] == [3]
