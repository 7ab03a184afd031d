"""A changed payload of a run directory's bare line: `lines`, which replays use, refuses what `read` refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.commands import Cli

from runstate.errors import LogDamaged
from runstate.logs.ndjson import NdjsonLog, reading
from runstate.models.rundir.model import RUNDIR

small, large = 5, 200


def events(count: int) -> list[Any]:
    kinds: list[tuple[str, dict[str, Any]]] = [("RUN_CREATED", {"config": {}, "parameters": {}})]
    kinds += [("ISSUE_RESOLVED", {"issue_id": f"issue-{number:04d}"}) for number in range(2, count + 1)]
    common: dict[str, Any] = {
        "run_id": "r",
        "ts": "2026-11-15T12:00:00.000Z",
        "trace_id": "1" * 32,
        "span_id": "1" * 16,
    }
    return [
        RUNDIR.draft(
            RUNDIR.parse(msgspec.json.encode(common | {"event_id": f"e{n}", "type": kind, "payload": payload}))
        )[1]
        for n, (kind, payload) in enumerate(kinds)
    ]


def change(seq: int) -> None:
    path = Path("log/r/events.ndjson")
    data = path.read_bytes()
    assert data.count(b"issue-%04d" % seq) == 1
    path.write_bytes(data.replace(b"issue-%04d" % seq, b"ISSUE-%04d" % seq))


def seqs_before_damage(log: NdjsonLog, after_seq: int = 0) -> int:
    """How many lines are given before the damage is named."""
    given = 0

    def walk() -> None:
        nonlocal given
        for _ in log.lines("r", after_seq=after_seq):
            given += 1

    with pytest.raises(LogDamaged) as caught:
        walk()
    assert caught.value.details["seq"] == after_seq + given + 1
    return given


@pytest.mark.parametrize("count", [small, large])
@pytest.mark.parametrize("index", ["current", "removed", "behind"])
def test_lines_end_before_a_changed_payload(cli: Cli, count: int, index: str) -> None:
    root = Path("log")
    with NdjsonLog(root) as log:
        log.append("r", events(count)[: count // 2])
    kept = (root / "r" / "index.json").read_bytes()
    with NdjsonLog(root) as log:
        log.append("r", events(count))
    if index == "removed":
        (root / "r" / "index.json").unlink()
    elif index == "behind":
        (root / "r" / "index.json").write_bytes(kept)
    with NdjsonLog(root) as log:
        assert len(list(log.lines("r"))) == count
    change(count - 1)
    with NdjsonLog(root) as log:
        assert seqs_before_damage(log) == count - 2
        assert seqs_before_damage(log, after_seq=count - 3) == 1


def test_a_writer_in_the_same_process_is_no_reason_to_believe_the_file(cli: Cli) -> None:
    with NdjsonLog(Path("log")) as log:
        log.append("r", events(large))
        with Path("log/r/events.ndjson").open("rb+") as file:
            data = file.read()
            file.seek(data.index(b"issue-0100"))
            file.write(b"ISSUE")
        assert seqs_before_damage(log) == 99


def test_every_command_refuses_a_changed_payload(cli: Cli) -> None:
    with NdjsonLog(Path("log")) as log:
        log.append("r", events(large))
    change(100)
    url = "ndjson:log"
    commands = (("fetch", url, "r"), ("snapshot", url, "r", "--project"), ("replay", url), ("verify", url))
    assert [cli(*command).code for command in commands] == [1, 1, 1, 1]


def test_a_whole_run_is_proven_by_one_checksum_and_not_by_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with NdjsonLog(tmp_path) as log:
        log.append("r", events(large))
    hashed = 0

    def count(stream: str, line: bytes) -> bool:
        nonlocal hashed
        hashed += 1
        return True

    monkeypatch.setattr(reading, "check_bare", count)
    monkeypatch.setattr(reading, "are_hashed", lambda stream, lines: all(count(stream, line) for line in lines))
    with NdjsonLog(tmp_path) as log:
        assert len(list(log.lines("r"))) == large
        assert hashed == 0
    (tmp_path / "r" / "index.json").unlink()
    with NdjsonLog(tmp_path) as log:
        assert len(list(log.lines("r"))) == large
        assert hashed == large
