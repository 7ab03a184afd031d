"""`seal` and `verify --seals`: forgery that no checksum shows is found, and nothing is called fine without a check."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.commands import Cli, Outcome

import runstate
from runstate.conformance.notes import numbered, snapshot
from runstate.logs.registry import open_log
from runstate.logs.stored_rows import checksum
from runstate.logs.wal import WalLog

url = "sqlite:log.db"
Sealed = Callable[..., Outcome]


def append_run(run_id: str) -> None:
    """A run of three events. No snapshot: it would show some forgeries."""
    with runstate.open(url, snapshot_every=0) as store:
        run = store.run(run_id, tenant="acme", plan="nightly")
        run.started()
        run.step_started("extract")
        run.completed()


@pytest.fixture
def verify(cli: Cli) -> Sealed:
    """Three streams are sealed; `verify()` compares them with their seals."""
    for run_id in ("r-1", "r-2", "r-3"):
        append_run(run_id)
    assert cli("seal", "--new-key", "key").code == 0
    assert cli("seal", url, "--key-file", "key", "--to", "seals.ndjson").code == 0

    def run(*arguments: str) -> Outcome:
        return cli("verify", url, *arguments, "--seals", "seals.ndjson", "--key-file", "key", "--json")

    return run


def forge(*statements: str) -> None:
    """Change the file as someone would who can write it and knows its format: every checksum fits again."""
    with sqlite3.connect("log.db") as connection:
        connection.create_function("checksum", 9, checksum)
        for trigger in ("events_are_never_updated", "events_are_never_deleted_singly"):
            connection.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            connection.execute(statement)
        columns = "seq, event_id, type, key, tenant, emitted_at, persisted_at, body"
        stream = "(SELECT stream FROM streams WHERE id = stream_id)"
        connection.execute(f"UPDATE events SET crc = checksum({stream}, {columns})")
        connection.execute("UPDATE streams SET events = (SELECT count(*) FROM events WHERE stream_id = id)")
        connection.execute("UPDATE streams SET last_seq = (SELECT max(seq) FROM events WHERE stream_id = id)")
        last = "SELECT persisted_at FROM events WHERE stream_id = id ORDER BY seq DESC LIMIT 1"
        connection.execute(f"UPDATE streams SET last_persisted_at = ({last})")
    connection.close()


def event_of(stream: str, seq: int) -> str:
    return f"stream_id = (SELECT id FROM streams WHERE stream = '{stream}') AND seq = {seq}"


forgeries = {
    "a changed byte": (
        [
            "UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'nightly', 'nightlX') AS BLOB) "
            f"WHERE {event_of('r-2', 1)}"
        ],
        [("r-2", "seal.changed")],
    ),
    "a changed column": ([f"UPDATE events SET tenant = 'evil' WHERE {event_of('r-2', 3)}"], [("r-2", "seal.changed")]),
    "a deleted tail": ([f"DELETE FROM events WHERE {event_of('r-2', 3)}"], [("r-2", "seal.truncated")]),
    "a deleted stream": (
        [
            "DELETE FROM events WHERE stream_id = (SELECT id FROM streams WHERE stream = 'r-2')",
            "DELETE FROM streams WHERE stream = 'r-2'",
        ],
        [("r-2", "seal.deleted")],
    ),
    "two swapped streams": (
        [
            "UPDATE streams SET stream = 'x' WHERE stream = 'r-1'",
            "UPDATE streams SET stream = 'r-1' WHERE stream = 'r-2'",
            "UPDATE streams SET stream = 'r-2' WHERE stream = 'x'",
        ],
        [("r-1", "seal.changed"), ("r-2", "seal.changed")],
    ),
}


@pytest.mark.parametrize("how", forgeries)
def test_forgery_that_checksums_do_not_show_is_found_by_seals(how: str, verify: Sealed, cli: Cli) -> None:
    statements, expected = forgeries[how]
    forge(*statements)
    assert cli("verify", url).code == 0  # No key is needed for what this compares with.
    found = verify()
    assert [(row["stream"], row["code"]) for row in found.rows] == expected
    assert found.code == 1
    assert f"{3 - len(expected)} of 3 sealed streams unchanged since sealing" in found.err


def test_a_log_that_nobody_changed_fits_its_seals(verify: Sealed) -> None:
    outcome = verify()
    assert (outcome.code, outcome.rows) == (0, [])
    assert "3 of 3 sealed streams unchanged since sealing" in outcome.err


def test_events_appended_after_sealing_are_no_difference(verify: Sealed) -> None:
    with runstate.open(url) as store:
        store.run("r-1", tenant="acme", plan="nightly").step_started("late")
    assert verify().code == 0


def test_a_deleted_stream_is_named_when_only_it_is_asked_for(verify: Sealed) -> None:
    with open_log(url) as log:
        log.delete_stream("r-2")
    assert [row["code"] for row in verify("r-2").rows] == ["seal.deleted"]
    assert verify("r-1").code == 0


@pytest.mark.parametrize("scheme", ["ndjson", "segments", "sqlite", "wal"])
def test_a_deleted_stream_is_named_in_every_log_on_disk(scheme: str, cli: Cli) -> None:
    cli("seal", "--new-key", "key")
    with open_log(f"{scheme}:other") as log:
        log.append("r-1", numbered(1))
        assert cli("seal", f"{scheme}:other", "--key-file", "key", "--to", "seals.ndjson").code == 0
        log.delete_stream("r-1")
    outcome = cli("verify", f"{scheme}:other", "r-1", "--seals", "seals.ndjson", "--key-file", "key", "--json")
    assert [row["code"] for row in outcome.rows] == ["seal.deleted"]
    assert outcome.code == 1


def test_a_stream_without_a_seal_is_reported(verify: Sealed) -> None:
    append_run("r-4")
    outcome = verify()
    assert [(row["code"], row["details"]["streams"]) for row in outcome.rows] == [("seal.missing", 1)]
    assert outcome.code == 0


def test_a_stream_without_a_seal_is_not_called_fine(verify: Sealed) -> None:
    append_run("r-4")
    outcome = verify("r-4")
    assert outcome.code == 2
    assert "Nothing was compared" in outcome.err


def test_damage_and_a_broken_seal_are_both_reported(verify: Sealed) -> None:
    with sqlite3.connect("log.db") as connection:
        connection.execute("DROP TRIGGER events_are_never_updated")
        connection.execute("UPDATE events SET body = '{}' WHERE seq = 2")
    connection.close()
    assert [row["code"] for row in verify("r-1").rows] == ["log.event_changed", "seal.unchecked"]


def test_a_seal_fits_the_archive_that_a_run_was_moved_to(cli: Cli) -> None:
    append_run("r-1")
    cli("seal", "--new-key", "key")
    cli("seal", url, "--key-file", "key", "--to", "seals.ndjson")
    assert cli("archive", url, "--to", "archive", "--older-than", "0s").code == 0
    compared = cli("verify", "archive:archive", "--seals", "seals.ndjson", "--key-file", "key")
    assert compared.code == 0
    assert "1 of 1 sealed stream unchanged" in compared.err
    assert "seal.deleted" in cli("verify", url, "--seals", "seals.ndjson", "--key-file", "key").out


# --- keys ------------------------------------------------------------------------------------------------------------


def test_another_key_is_refused(verify: Sealed, cli: Cli) -> None:
    cli("seal", "--new-key", "other")
    Path("other").replace("key")
    outcome = verify()
    assert outcome.code == 2
    assert "not with the given key" in outcome.err


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_key_that_others_can_use_is_refused(verify: Sealed, mode: int) -> None:
    os.chmod("key", mode)
    outcome = verify()
    assert outcome.code == 2
    assert "chmod 600 key" in outcome.err


def test_a_new_key_is_private_and_never_replaces_a_file(cli: Cli) -> None:
    assert cli("seal", "--new-key", "key").code == 0
    assert os.stat("key").st_mode & 0o777 == 0o600
    before = Path("key").read_bytes()
    assert cli("seal", "--new-key", "key").code == 2
    assert Path("key").read_bytes() == before


def test_the_key_is_neither_printed_nor_written_to_the_seals(verify: Sealed, cli: Cli) -> None:
    secret = Path("key").read_text().strip()
    outcome = cli("seal", url, "--key-file", "key")
    assert secret not in outcome.out + outcome.err + Path("seals.ndjson").read_text() + verify().err


@pytest.mark.parametrize(("content", "message"), [(b"short\n", "at least 32 bytes"), (b"x" * 5000, "more than 4096")])
def test_a_file_that_is_no_key_is_refused(cli: Cli, content: bytes, message: str) -> None:
    with open_log(url) as log:
        log.append("r-1", numbered(1))
    Path("key").write_bytes(content)
    os.chmod("key", 0o600)
    outcome = cli("seal", url, "--key-file", "key")
    assert outcome.code == 2
    assert message in outcome.err


def test_a_line_break_at_the_end_is_not_part_of_the_key(verify: Sealed) -> None:
    Path("key").write_bytes(Path("key").read_bytes().strip())
    assert verify().code == 0


# --- sealing ---------------------------------------------------------------------------------------------------------


def test_an_empty_log_is_not_called_sealed(cli: Cli) -> None:
    open_log(url).close()
    cli("seal", "--new-key", "key")
    outcome = cli("seal", url, "--key-file", "key", "--to", "seals.ndjson")
    assert outcome.code == 2
    assert "Nothing was sealed" in outcome.err
    assert not Path("seals.ndjson").exists()


def test_seals_on_stdout_are_those_of_a_file(verify: Sealed, cli: Cli) -> None:
    Path("seals.ndjson").write_text(cli("seal", url, "--key-file", "key").out)
    assert verify().code == 0


def test_a_file_of_seals_is_private_and_never_overwritten(verify: Sealed, cli: Cli) -> None:
    before = Path("seals.ndjson").read_bytes()
    outcome = cli("seal", url, "--key-file", "key", "--to", "seals.ndjson")
    assert outcome.code == 2
    assert "exists" in outcome.err
    assert Path("seals.ndjson").read_bytes() == before
    assert os.stat("seals.ndjson").st_mode & 0o777 == 0o600


def test_continued_seals_keep_the_proof_of_what_was_deleted(verify: Sealed, cli: Cli) -> None:
    with runstate.open(url) as store:
        store.delete_stream("r-2")
        store.run("r-1", tenant="acme", plan="nightly").step_started("late")
    outcome = cli("seal", url, "--key-file", "key", "--previous", "seals.ndjson", "--to", "new.ndjson")
    assert outcome.code == 0
    Path("new.ndjson").replace("seals.ndjson")
    assert [(row["stream"], row["code"]) for row in verify().rows] == [("r-2", "seal.deleted")]
    assert '"seq":4' in Path("seals.ndjson").read_text()


def test_one_stream_can_be_sealed(verify: Sealed, cli: Cli) -> None:
    rows = cli("seal", url, "r-2", "--key-file", "key").rows
    assert [row["stream"] for row in rows if "stream" in row] == ["r-2"]
    assert cli("seal", url, "r-9", "--key-file", "key").code == 3


def test_a_compacted_log_is_refused_and_says_what_to_do(cli: Cli) -> None:
    with WalLog(Path("wal")) as log:
        log.append("s", numbered(1000))
        for _ in range(2):  # A checkpoint removes the entries before the previous one.
            log.checkpoint("s", snapshot(1000, model="daemon"))
    cli("seal", "--new-key", "key")
    outcome = cli("seal", "wal:wal", "--key-file", "key")
    assert outcome.code == 2
    assert "--previous" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("seal",),
        ("seal", url),
        ("seal", "--new-key", "other", url),
        ("verify", url, "--seals", "seals.ndjson"),
        ("verify", url, "--key-file", "key"),
    ],
)
def test_arguments_that_do_not_belong_together_are_refused(
    verify: Sealed, cli: Cli, arguments: tuple[str, ...]
) -> None:
    assert cli(*arguments).code == 2
    assert not Path("other").exists()
