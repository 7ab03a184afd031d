"""What a stranger writes, and the checks that hold for every command that reads it."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tests.commands import Cli, Outcome
from tests.fleets import histories

from runstate.logs.archive.directory import ArchiveDirectory
from runstate.logs.archive.writing import PackWriter
from runstate.logs.log import Record
from runstate.logs.registry import open_log
from runstate.store import open as open_store

evil_source = """
from pathlib import Path
Path({canary!r}).write_text("code ran")
from runstate.models.engine import ENGINE as Model
from runstate.runtimes.orchestrator import Graph
graph = Graph("stranger")
"""
places = ("evil.py:Model", "./evil.py:Model", "{here}/evil.py:Model", "evil:Model", "evil", "evil.py", "evil:graph")
"""What a stranger writes where a model or an application is named. `evil` is on the module path, too."""
seconds_max = 20.0


class Scene:
    """A working directory with a stranger's data in it, and a directory beside it that is somebody else's."""

    def __init__(self, root: Path, cli: Cli) -> None:
        self.here, self.outside, self.canary = root / "work", root / "outside", root / "canary"
        self._cli = cli
        self.here.mkdir()
        self.outside.mkdir()
        (self.outside / "precious.txt").write_text("precious")
        (self.here / "evil.py").write_text(evil_source.format(canary=str(self.canary)))

    def run(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        """Run a command, and check what holds for every command over hostile data."""
        started, before = time.monotonic(), listing(self.outside)
        done = self._cli(*arguments, stdin=stdin)
        assert time.monotonic() - started < seconds_max
        assert not self.canary.exists(), f"{arguments} ran a stranger's code"
        assert listing(self.outside) == before
        assert done.code in (0, 1, 2, 3, 4), done.err
        assert "Traceback" not in done.err
        return done


def listing(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def fill(url: str, model: str, seed: int = 0) -> str:
    """Write a small fleet; the id of its first stream."""
    found = histories(model, seed, 1)
    with open_store(url, model, on_alert=lambda alert: None) as store:
        for lines in found.values():
            store.append_events([store.model.parse(line) for line in lines])
    return next(iter(found))


def make_archive(to: Path, model: str = "engine") -> str:
    """An archive of a small fleet; the id of its first stream."""
    stream = fill(f"sqlite:{to}.db", "engine")
    with open_log(f"sqlite:{to}.db") as log:
        write_archive(to, model, stream, log.read(stream))
    return stream


def write_archive(to: Path, model: str, stream: str, records: list[Record]) -> None:
    directory = ArchiveDirectory(to)
    directory.prepare(model)
    writer = PackWriter(directory, model)
    writer.add(stream, records)
    writer.commit()


log_readers: list[Callable[[str, str], tuple[str, ...]]] = [
    lambda url, stream: ("streams", url),
    lambda url, stream: ("fetch", url, stream),
    lambda url, stream: ("tail", url),
    lambda url, stream: ("snapshot", url, stream, "--project"),
    lambda url, stream: ("diff", url, stream, "--from", "0", "--to", "1"),
    lambda url, stream: ("replay", url, "--check"),
    lambda url, stream: ("verify", url),
    lambda url, stream: ("repair", url, "--dry-run"),
    lambda url, stream: ("copy", url, "sqlite:copied.db"),
    lambda url, stream: ("copy", url, "ndjson:copied"),
    lambda url, stream: ("archive", url, "--to", "kept", "--keep", "--older-than", "0s"),
    lambda url, stream: ("project", url),
    lambda url, stream: ("lag", url),
]


own_readers: dict[str, list[Callable[[str, str], tuple[str, ...]]]] = {
    "ndjson": [lambda url, stream: ("status", stream, "--runs", "log")],
    "segments": [
        lambda url, stream: ("session", "list", url),
        lambda url, stream: ("session", "show", url, stream),
        lambda url, stream: ("session", "tree", url, stream),
        lambda url, stream: ("session", "verify", url),
        lambda url, stream: ("session", "export", url, stream),
        lambda url, stream: ("session", "gc", url, "--dry-run"),
    ],
    "wal": [
        lambda url, stream: ("daemon", "state", "log", "--name", stream),
        lambda url, stream: ("daemon", "verify", "log"),
        lambda url, stream: ("queue", "list", "log", "any", "--name", stream),
        lambda url, stream: ("queue", "stats", "log", "--name", stream),
    ],
    "archive": [lambda url, stream: ("restore", "log", "ndjson:copied")],
}


file_logs = {"ndjson": "rundir", "segments": "session", "wal": "daemon"}


def make_log(scheme: str, path: Path) -> str:
    """A log with a small fleet and its snapshots; the id of its first stream."""
    if scheme == "archive":
        return make_archive(path)
    return fill(f"{scheme}:{path}", file_logs.get(scheme, "engine"))


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def make_table(directory: Path, model: str) -> None:
    """An event table with one commit and no rows."""
    from tests.tables import change_info, new_table

    from runstate.pipeline.tables.table import Commit

    new_table(directory).commit(Commit(number=1, files=[], consumed={"urls": []}))
    change_info(directory, model=model)


def dangle(path: Path) -> None:
    path.symlink_to("nowhere")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def upwards(path: Path) -> None:
    path.symlink_to("..")


def fill_with(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


deep = 100_000
instead: dict[str, Callable[[Path], None]] = {
    "dangling link": dangle,
    "link to itself": loop,
    "link to an endless device": endless,
    "link to the directory above": upwards,
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "empty": fill_with(b""),
    "zeros": fill_with(bytes(10_000)),
    "deep array": fill_with(b"[" * deep + b"]" * deep + b"\n"),
    "deep object": fill_with(b'{"a":' * deep + b"1" + b"}" * deep + b"\n"),
    "escapes": fill_with(b'{"\x1b]0;owned\x07":"\xe2\x80\xae"}\n'),
    "not UTF-8": fill_with(b'\xff\xfe{"a":"\xff"}\n'),
}


nested = b"[" * deep + b"]" * deep
bodies: dict[str, Callable[[bytes], bytes]] = {
    "deep array": lambda body: nested,
    "deep member": lambda body: body[:-1] + b',"more":' + nested + b"}",
    "deep payload": lambda body: re.sub(rb'"(payload|data)":\{', rb'"\1":{"more":' + nested + b",", body, count=1),
    "deep key": lambda body: b'{"a":' * deep + b"1" + b"}" * deep,
    "a number": lambda body: b"1" * 5000,
    "an enormous exponent": lambda body: body[:-1] + b',"more":1e999999}',
    "a lone surrogate": lambda body: body[:-1] + b',"more":"\\ud800"}',
    "escapes": lambda body: body[:-1] + b',"\\u001b[31m\\u202e":"\\u0000\\u001b]0;owned\\u0007"}',
    "a long string": lambda body: body[:-1] + b',"more":"' + b"x" * 5_000_000 + b'"}',
    "many members": lambda body: body[:-1] + b"," + b",".join(b'"m%d":0' % n for n in range(100_000)) + b"}",
    "other types": lambda body: re.sub(rb':("[^"]*"|\d+)', b":[null]", body),
}
