"""A process that writes, for the kit to kill: `python -m runstate.conformance.writer`.

It reads the log's URL from the first line of stdin, then tasks, one JSON object per line. For each task it forks a
child that opens the log, appends, and reports every event once `append` has returned. So Python starts once for
hundreds of kills, while every child opens the log for itself. The line `kill` kills the child, and so does the end of
stdin: no writer outlives its test. On stdout:

    started
    stored SEQ KEY          by the child, after the append returned; whoever reads this may rely on the event
    ended STATUS            by the parent: 0, or minus the signal that killed the child
"""

from __future__ import annotations

import os
import random
import select
import signal
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from typing import NoReturn

import msgspec

from runstate.conformance.notes import as_held, note
from runstate.logs.log import EventLog
from runstate.logs.registry import entry_point_of, open_log
from runstate.models.model import Draft

kill_order = b"kill\n"
_batch_sizes = (1, 1, 1, 2, 5)


class Task(msgspec.Struct, frozen=True):
    """What to write. The same task always sends the same drafts in the same batches."""

    stream: str
    batches: int
    """How many appends each thread makes."""
    name: str = "w"
    """Whose keys these are: tasks of one name send the same keys."""
    threads: int = 1
    seed: int = 0
    text_bytes_max: int = 3000
    adopts: bool = False
    """The drafts are adopted, as another log would hold them, not appended. For one thread."""

    def sent(self, thread: int) -> Iterator[list[Draft]]:
        """The batches that one thread appends, in order."""
        chance = random.Random(f"{self.seed}/{thread}")
        for batch in range(self.batches):
            size, text = chance.choice(_batch_sizes), "x" * chance.choice((0, 0, 50, self.text_bytes_max))
            yield [note(f"{self.name}/{thread}/{batch}/{part}", text) for part in range(size)]


def main() -> None:
    with open(0, "rb", buffering=0, closefd=False) as orders:
        url = orders.readline().decode().removesuffix("\n")
        if (point := entry_point_of(url)) is not None:
            point.load()  # Once for all children: a driver may take a second to import.
        while line := orders.readline():
            if line != kill_order:  # One that comes too late finds nobody.
                _supervise(url, msgspec.json.decode(line, type=Task), orders)


def _supervise(url: str, task: Task, orders: FileIO) -> None:
    """Run a task in a child, and kill the child when told to.

    The child is killed by its parent alone: until the parent has waited for it, its number is nobody else's.
    """
    life, held_by_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        _say("started\n")
        _end_with(url, task)
    os.close(held_by_child)
    ready, _, _ = select.select([orders.fileno(), life], [], [])
    if life not in ready:
        orders.readline()
        os.kill(pid, signal.SIGKILL)
    os.close(life)
    _, status = os.waitpid(pid, 0)
    _say(f"ended {os.waitstatus_to_exitcode(status)}\n")


def _end_with(url: str, task: Task) -> NoReturn:
    """Do the task and end this process, without the parent's clean-up that a forked child has inherited."""
    status = 1
    try:
        with open_log(url) as log, ThreadPoolExecutor(task.threads) as pool:
            list(pool.map(lambda thread: _write(log, task, thread), range(task.threads)))
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it is told, and goes no further up than here
        traceback.print_exc()
    finally:
        os._exit(status)


def _write(log: EventLog, task: Task, thread: int) -> None:
    seq = 0
    for drafts in task.sent(thread):
        if task.adopts:
            records = as_held(task.stream, drafts, after_seq=seq)
            log.adopt(task.stream, records)
            seqs = [record.seq for record in records]
        else:
            seqs = [result.seq for result in log.append(task.stream, drafts)]
        seq = seqs[-1]
        _say("".join(f"stored {seq} {draft.key}\n" for draft, seq in zip(drafts, seqs, strict=True)))


def _say(lines: str) -> None:
    # One write, less than a pipe takes at once: a kill leaves no half line, and threads do not mix theirs.
    os.write(1, lines.encode())


if __name__ == "__main__":
    main()
