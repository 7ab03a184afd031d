"""Segments that are gone from the archive of a WAL: every command that would read them names the missing seqs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Cli

from runstate.conformance.notes import notes
from runstate.errors import LogDamaged, Truncated
from runstate.logs.log import StoredSnapshot
from runstate.logs.wal import WalLog
from runstate.logs.wal.options import WalOptions
from runstate.models.canonical import digest
from runstate.models.daemon.model import DAEMON

url = "wal:log?history=archive"
gone = {"the first": (0, "1 to 2"), "a middle one": (1, "3 to 5"), "the last": (2, "6 to 8")}


def fill() -> list[Path]:
    """Nine events of a daemon, checkpoints behind 3, 6 and 9: three segments, and the WAL begins with 9."""
    for number in range(1, 10):
        line = b'{"type":"agent:waiting","daemon":"d","event_id":"e%d","agent_id":"a"}' % number
        append(line)
        if number % 3 == 0:
            with WalLog(Path("log"), options=WalOptions(history="archive")) as log:
                log.checkpoint("d", state_at(number))
    with WalLog(Path("log"), options=WalOptions(history="archive")) as log:
        log.checkpoint("d", state_at(9))
    return sorted(Path("log/d/archive").iterdir())


def append(line: bytes) -> None:
    with WalLog(Path("log")) as log:
        _, draft = DAEMON.draft(DAEMON.parse(line))
        log.append("d", [draft])


def state_at(seq: int) -> StoredSnapshot:
    body = DAEMON.dump(DAEMON.initial("d"))  # These events change nothing.
    return StoredSnapshot("daemon", 1, seq, digest(body), body)


@pytest.mark.parametrize("which", gone)
def test_a_deleted_segment_is_named_by_every_command(cli: Cli, which: str) -> None:
    number, missing = gone[which]
    fill()[number].unlink()
    for command in (("verify", url), ("fetch", url, "d"), ("replay", url, "--check")):
        outcome = cli(*command)
        assert outcome.code == 1, command
        assert f"lacks the segments with events {missing}" in outcome.out + outcome.err, command


def test_what_is_behind_a_missing_segment_is_read_as_the_error_says(cli: Cli) -> None:
    fill()[0].unlink()
    advice = cli("fetch", url, "d").err.split("--after ")[1].split()[0]
    assert [row["seq"] for row in cli("fetch", url, "d", "--after", advice, "--json").rows] == [3, 4, 5, 6, 7, 8, 9]


def test_appends_work_without_the_segment(cli: Cli) -> None:
    fill()[0].unlink()
    append(b'{"type":"agent:waiting","daemon":"d","event_id":"new","agent_id":"a"}')
    assert [row["seq"] for row in cli("fetch", url, "d", "--after", "9").rows] == [10]


@pytest.mark.parametrize("which", gone)
def test_repair_notes_the_loss_as_it_announces_and_ends_the_reports(cli: Cli, which: str) -> None:
    number, missing = gone[which]
    fill()[number].unlink()
    would = cli("repair", url, "--dry-run", "--json")
    done = cli("repair", url, "--json")
    assert (would.code, done.code) == (0, 0)
    assert would.rows == done.rows
    assert f"events {missing}" in done.rows[0]["message"]
    assert cli("verify", url).code == 0
    assert cli("replay", url, "--check").code == 0
    with WalLog(Path("log")) as log, pytest.raises(Truncated):
        log.read("d")


def test_a_restored_segment_is_read_again_after_a_repair(cli: Cli) -> None:
    first = fill()[0]
    data = first.read_bytes()
    first.unlink()
    assert cli("repair", url).code == 0
    first.write_bytes(data)
    assert len(cli("fetch", url, "d", "--json").rows) == 9


def test_history_that_was_dropped_is_not_missed(tmp_path: Path) -> None:
    body = b"[]"
    for history, seq in (("archive", 2), ("drop", 4), ("archive", 6)):
        with WalLog(tmp_path, options=WalOptions(history=history)) as log:  # type: ignore[arg-type]
            log.append("s", notes(f"{seq} a", f"{seq} b"))
            for _ in range(2):
                log.checkpoint("s", StoredSnapshot("notes", 1, seq, digest(body), body))
            assert list(log.verify("s")) == []
    with WalLog(tmp_path) as log:
        with pytest.raises(Truncated) as truncated:
            log.read("s")
        assert truncated.value.details["first_seq"] == 4
        max((tmp_path / "s" / "archive").iterdir()).unlink()
        with pytest.raises(LogDamaged, match="4 to 5"):
            log.read("s", after_seq=3)
