"""File logs with content, the commands that read them, and the process that reads them without write permission.

`python -m tests.shared_logs write KIND DIR N` appends to a log until its standard input ends. `python -m
tests.shared_logs read` takes a `Request` from standard input and answers with `Answers`: it gives up the right to
write first, by becoming another user; or it was started on a read-only mount. One process runs many commands, because
starting Python takes longer than any of them.
"""

from __future__ import annotations

import io
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import chdir, closing, redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import typer
from tests.fleets import histories, put_blobs

import runstate
from runstate.conformance.notes import stored
from runstate.logbook import Entry, Logbook
from runstate.runtimes.session import linear, open_sessions, unwrap

models = {"sqlite": "engine", "ndjson": "rundir", "segments": "session", "wal": "daemon", "archive": "engine"}
writable_kinds = [kind for kind in models if kind != "archive"]
nobody = 65534
commands: Any = import_module("runstate.cli.main")
_root = Path(__file__).parents[1]
_runs = 3
_state = "sqlite/state"


def url_of(kind: str) -> str:
    """Where the log of a kind lives, seen from the directory of all. A WAL keeps its history: all of it can be read."""
    return {"archive": "archive:archive", "wal": "wal:wal/log?history=archive"}.get(kind, f"{kind}:{kind}/log")


def first_stream(kind: str) -> str:
    return f"{models[kind]}-0-0000"


def fill(directory: Path) -> None:
    """Make a log of each kind, with streams, snapshots and a blob; and the logbook of a projector of the SQLite log."""
    with chdir(directory):
        for kind in writable_kinds:
            Path(kind).mkdir()
            with _opened(kind) as store:
                for lines in histories(models[kind], 0, _runs).values():
                    put_blobs(store.log, lines)
                    store.append_events([store.model.parse(line) for line in lines])
                store.log.put_blob(b"a blob")
                if kind == "sqlite":
                    _note_progress(store)
        with open_sessions(url_of("segments"), "keyring.json") as sessions:
            name = unwrap(sessions.create(session_id="s-1", title="Fix the parser"))
            start = unwrap(sessions.start_run(name, linear("fix", "Find the bug", "Mend it"), run_id="r-1"))
            unwrap(sessions.advance(start.ack_token or "", "found"))
        with _opened("segments") as store:
            store.rebuild_snapshot("s-1")
        _run(["archive", url_of("sqlite"), "--to", "archive", "--older-than", "0s", "--keep"])


def share(directory: Path) -> None:
    """Let everybody read what is there, and nobody write."""
    subprocess.run(["chmod", "-R", "a-w,a+rX", str(directory)], check=True)


def share_with_group(directory: Path) -> None:
    """Let a group read what is there, and what is added later."""
    subprocess.run(["chgrp", "-R", str(nobody), str(directory)], check=True)
    subprocess.run(["chmod", "-R", "g+rX", str(directory)], check=True)
    subprocess.run(["find", str(directory), "-type", "d", "-exec", "chmod", "g+s", "{}", "+"], check=True)


def listing(directory: Path) -> dict[str, tuple[int, ...]]:
    """Everything below a directory: size, time of the last change, inode and mode."""
    found: dict[str, tuple[int, ...]] = {}
    for path in [directory, *directory.rglob("*")]:
        seen = path.lstat()
        size = 0 if path.is_dir() else seen.st_size
        found[str(path.relative_to(directory))] = (size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_mode)
    return found


def reading_commands(kind: str, scratch: Path) -> list[list[str]]:
    """Every command that only reads a log of this kind. What they write goes to `scratch`."""
    url, stream = url_of(kind), first_stream(kind)
    place = url.removeprefix(f"{kind}:").partition("?")[0]
    commands = [
        ["streams", url],
        ["streams", url, "--json"],
        ["fetch", url, stream],
        ["fetch", url, stream, "--after", "2", "--limit", "3", "--json"],
        ["snapshot", url, stream, "--project", "--json"],
        ["diff", url, stream, "--from", "1", "--to", "3", "--json"],
        ["verify", url],
        ["verify", url, stream],
        ["repair", url, "--dry-run"],
        ["copy", url, f"sqlite:{scratch}/copy-of-{kind}.db"],
    ]
    if kind != "archive":
        commands += [["snapshot", url, stream, "--json"], ["replay", url, "--check"]]
    by_kind = {
        "sqlite": [["tail", url, "--json"], ["lag", url, "--state", _state, "--json"]],
        "ndjson": [["status", stream, "--runs", place, "--json"]],
        "segments": [
            ["session", "list", url],
            *(["session", command, url, "s-1"] for command in ("show", "tree", "verify", "export")),
        ],
        "wal": [
            *(["daemon", command, place, "--name", stream, "--json"] for command in ("state", "tail")),
            *(["queue", *command, "--name", stream] for command in (["stats", place], ["list", place, "q"])),
            ["daemon", "verify", place],
        ],
        "archive": [["restore", place, f"sqlite:{scratch}/restored.db"]],
    }
    return commands + by_kind[kind]


def _opened(kind: str) -> runstate.Store[Any, Any, Any]:
    return runstate.open(url_of(kind), models[kind], on_alert=lambda alert: None)


def _note_progress(store: runstate.Store[Any, Any, Any]) -> None:
    with closing(Logbook(Path(_state))) as book:
        book.note(Entry(url_of("sqlite"), "engine", 1, position=store.log.feed(limit=1_000_000).next))


# --- the writer ----------------------------------------------------------------------------------------------------


def _write(kind: str, ready_after: int) -> None:
    """Append one event after the other until standard input ends. Tell when there are enough to begin with."""
    with _opened(kind) as store:
        for number, (stream, line) in enumerate(_endless(models[kind]), 1):
            put_blobs(store.log, [line])
            result = store.append_event(store.model.parse(line))
            if kind == "wal" and result.seq % 20 == 0:
                _checkpoint(store, stream, result.seq)
            if kind == "sqlite":
                _note_progress(store)
            if number == ready_after:
                sys.stdout.write("ready\n")
                sys.stdout.flush()
            if select.select([sys.stdin], [], [], 0.01)[0]:
                return


def _endless(model: str) -> Iterator[tuple[str, bytes]]:
    for seed in range(1, 1000):
        for stream, lines in histories(model, seed, _runs).items():
            yield from ((stream, line) for line in lines)


def _checkpoint(store: runstate.Store[Any, Any, Any], stream: str, seq: int) -> None:
    store.log.checkpoint(stream, store.snapshots.of(store.snapshot_at(stream, seq=seq), seq))  # type: ignore[attr-defined]


# --- the reader ----------------------------------------------------------------------------------------------------


class Request(msgspec.Struct):
    directory: str
    scratch: str
    """Where the reader may write."""
    kinds: list[str]
    twin: str | None = None
    """A copy of the directory that this process reads before it gives up the right to write."""
    commands: list[list[str]] = []
    """More commands, run after those that read."""


class Outcome(msgspec.Struct, frozen=True):
    command: list[str]
    code: int
    out: str
    err: str


class Answers(msgspec.Struct):
    expected: list[Outcome] = []
    found: list[Outcome] = []
    logs: list[dict[str, dict[str, list[str]]]] = []
    """The whole logs, read before the commands were run and after it."""


def read(request: Request, *, is_mount: bool) -> Answers:
    """Read in a process that may not write to the directory: as another user, or through a read-only mount."""
    command = [sys.executable, "-m", "tests.shared_logs", "read", *([] if is_mount else ["as-nobody"])]
    if is_mount:
        script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", script, request.directory, *command]
    os.mkdir(request.scratch)
    if not is_mount:
        os.chown(request.scratch, nobody, nobody)
    homes = {"HOME": request.scratch, "TMPDIR": request.scratch, "XDG_STATE_HOME": ""}
    if not is_mount:
        homes["XDG_CACHE_HOME"] = (
            ""  # It is this user's. Without its archive of classes, Spark takes far longer to start.
        )
    done = subprocess.run(
        command,
        input=msgspec.json.encode(request),
        capture_output=True,
        cwd=_root,
        env={**os.environ, **homes, "NO_COLOR": "1", "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=Answers)


def can_mount_read_only() -> bool:
    done = subprocess.run(["unshare", "-m", "mount", "--bind", "/tmp", "/tmp"], capture_output=True, check=False)
    return done.returncode == 0


def _answer(request: Request, *, as_nobody: bool) -> Answers:
    # Typer would build all commands again each time that one of them is run.
    commands.app = typer.main.get_command(commands.app)
    answers = Answers()
    # Not only for its answers: this also imports every module, and the other user may not be able to read Python's own.
    scratch = Path(request.scratch)
    twin = Path(request.twin or scratch / "twin")
    if request.twin is None:
        twin.mkdir()
        fill(twin)
    os.chdir(twin)
    for kind in request.kinds if request.twin else models:
        answers.expected += _run_all(reading_commands(kind, scratch))
    _run(["streams", "sqlite:nowhere.db"])
    os.chdir(request.directory)
    subprocess.run(["find", request.scratch, "-mindepth", "1", "-delete"], check=True)
    if as_nobody:
        os.setgroups([])
        os.setgid(nobody)
        os.setuid(nobody)
    answers.logs.append({kind: whole_log(kind) for kind in request.kinds})
    for kind in request.kinds:
        answers.found += _run_all(reading_commands(kind, scratch))
    answers.found += _run_all(request.commands)
    answers.logs.append({kind: whole_log(kind) for kind in request.kinds})
    return answers


def whole_log(kind: str) -> dict[str, list[str]]:
    """By stream, the seq and id of every event."""
    with runstate.open(url_of(kind), models[kind], create=False) as store:
        streams = [info.stream for info in store.log.streams()]
        return {stream: [f"{r.seq} {r.event_id}" for r in stored(store.log, stream)] for stream in streams}


def _run_all(commands: list[list[str]]) -> list[Outcome]:
    return [_run(command) for command in commands]


def _run(command: list[str]) -> Outcome:
    """Run a command in this process."""
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    argv, stdout, stdin, code = sys.argv, sys.stdout, sys.stdin, 0
    sys.argv, sys.stdout, sys.stdin = ["runstate", *command], out, io.TextIOWrapper(io.BytesIO(_input(command)))
    try:
        with redirect_stderr(err):
            commands.main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - a test compares the answer with the one that it should have been
        code = -1
        err.write(traceback.format_exc())
    finally:
        sys.argv, sys.stdout, sys.stdin = argv, stdout, stdin
    return Outcome(command, code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def _input(command: list[str]) -> bytes:
    """A new run for `append`; nothing for any other command."""
    kind = command[1].partition(":")[0] if command[0] == "append" else ""
    return b"\n".join(next(iter(histories(models[kind], 9, 1).values()))) if kind else b""


if __name__ == "__main__":
    if sys.argv[1] == "write":
        os.chdir(sys.argv[3])
        _write(sys.argv[2], int(sys.argv[4]))
    else:
        asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
        sys.stdout.buffer.write(msgspec.json.encode(_answer(asked, as_nobody="as-nobody" in sys.argv)))
