"""queue: work queues from the command line, through the daemon that serves them or without one."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from runstate.cli.daemon import Name, Place, reached, seen, show_stats
from runstate.cli.options import AsJson, Limit
from runstate.cli.output import Overlong, numbered_lines, words, write_json, write_line
from runstate.cli.tables import write_table
from runstate.errors import InvalidTransition
from runstate.models.canonical import parse
from runstate.models.daemon import MaterializedState, QueueItem, scoped
from runstate.models.daemon.events import default_daemon
from runstate.runtimes.daemon import Client, Daemon, RequestRefused
from runstate.runtimes.daemon.wire import request_bytes_max
from runstate.runtimes.daemon.work import items_in, stats_of

app = typer.Typer(name="queue", help="The work queues of a daemon.", no_args_is_help=True)

Queue = Annotated[str, typer.Argument(help="The queue.", show_default=False)]
Items = Annotated[list[str], typer.Argument(help="The items, by their ids.", show_default=False, metavar="ITEM...")]
Namespace = Annotated[str, typer.Option("--namespace", help="The project that the queue belongs to.")]
WorkerName = Annotated[str, typer.Option("--worker", "-w", help="Who holds it. Default: whoever does.")]

exit_nothing = 3


@app.command("push")
def push(
    place: Place,
    queue: Queue,
    data: Annotated[
        str | None,
        typer.Argument(help="What is to be done: JSON, or else text. Default: each line of standard input."),
    ] = None,
    item_id: Annotated[
        str, typer.Option("--id", help="The item's id, refused while the queue holds it. Default: a new one.")
    ] = "",
    event_id: Annotated[
        str, typer.Option("--event-id", help="The push's own id: sent again with it, it changes nothing.")
    ] = "",
    namespace: Namespace = "",
    name: Name = default_daemon,
    as_json: AsJson = False,
) -> None:
    """Put items at the end of a queue, and print their ids."""
    if data is None and (item_id or event_id):
        raise typer.BadParameter("an id is one item's; give its data too")
    given = [data.encode()] if data is not None else _input()
    if not given:
        words.print("nothing to push: standard input has no lines")
        return
    with reached(place, name, create=True) as daemon:
        for each in given:
            pushed = daemon.push(queue, _value(each), item_id=item_id, namespace=namespace, event_id=event_id)
            if as_json:
                write_json({"id": pushed})
            else:
                write_line(pushed.encode())


@app.command("take")
def take(
    place: Place,
    queue: Queue,
    worker: Annotated[str, typer.Option("--worker", "-w", help="Who takes it.", show_default=False)],
    start: Annotated[bool, typer.Option("--start", help="Start the worker first, if there is none.")] = False,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="With --start: items at once.")] = 1,
    lease: Annotated[
        float,
        typer.Option(
            "--lease",
            min=0.001,
            help="With --start: a daemon that serves takes it for gone after so many seconds without a word from it.",
        ),
    ] = 3600.0,
    wait: Annotated[float, typer.Option("--wait", min=0, help="Seconds to wait for an item.")] = 0.0,
    namespace: Namespace = "",
    name: Name = default_daemon,
    as_json: AsJson = False,
) -> None:
    """Take the next item of a queue for a worker, and print it. Exit code 3 if it gets none."""
    with reached(place, name) as daemon:
        try:
            item = daemon.take(worker, queue=queue, namespace=namespace, wait_s=wait)
        except InvalidTransition as error:
            key = scoped(namespace, worker)
            if key in daemon.state.workers:
                raise  # It is there, but works elsewhere or for somebody else: to start it anew would rob it.
            if not start:
                raise InvalidTransition(f"There is no worker {key!r}; start it with --start", worker=key) from error
            daemon.worker(worker, queue, concurrency=concurrency, namespace=namespace, lease_s=lease)
            item = daemon.take(worker, queue=queue, namespace=namespace, wait_s=wait)
        if item is None:
            words.print(_why_nothing(daemon.state, queue, worker, namespace))
            raise typer.Exit(exit_nothing)
    _show([item], as_json)


@app.command("stop")
def stop(
    place: Place,
    workers: Annotated[list[str], typer.Argument(help="The workers.", show_default=False, metavar="WORKER...")],
    namespace: Namespace = "",
    name: Name = default_daemon,
) -> None:
    """Send workers home. What they hold is given back, and nobody is blamed."""
    with reached(place, name) as daemon:
        known = daemon.state.workers
        for key in (scoped(namespace, worker) for worker in workers):
            if key not in known:
                raise InvalidTransition(f"There is no worker {key!r}: it was never started, or is gone", worker=key)
        for worker in workers:
            daemon.stop_worker(worker, namespace=namespace)
    words.print(f"{len(workers)} stopped")


@app.command("complete")
def complete(
    place: Place,
    queue: Queue,
    items: Items,
    worker: WorkerName = "",
    namespace: Namespace = "",
    name: Name = default_daemon,
) -> None:
    """Say that items are done. They leave the queue."""
    with reached(place, name) as daemon:
        for item_id in items:
            daemon.complete(queue, item_id, worker=worker, namespace=namespace)
    words.print(f"{len(items)} completed")


@app.command("fail")
def fail(
    place: Place,
    queue: Queue,
    items: Items,
    error: Annotated[str, typer.Option("--error", "-e", help="What went wrong.", show_default=False)],
    worker: WorkerName = "",
    namespace: Namespace = "",
    name: Name = default_daemon,
    as_json: AsJson = False,
) -> None:
    """Say that items have failed. They go back to the end of their line, or are dead if it was too often."""
    with reached(place, name) as daemon:
        failed = [daemon.fail(queue, item_id, error, worker=worker, namespace=namespace) for item_id in items]
    _show(failed, as_json)


@app.command("retry")
def retry(
    place: Place,
    queue: Queue,
    items: Annotated[
        list[str] | None, typer.Argument(help="The items, by their ids.", show_default=False, metavar="ITEM...")
    ] = None,
    dead: Annotated[bool, typer.Option("--dead", help="All that are dead.")] = False,
    namespace: Namespace = "",
    name: Name = default_daemon,
) -> None:
    """Let items that have failed, or are dead, begin anew."""
    if not items and not dead:
        raise typer.BadParameter("name the items, or say --dead")
    with reached(place, name) as daemon:
        chosen = items or [item.id for item in _dead(daemon, queue, namespace)]
        for item_id in chosen:
            daemon.retry(queue, item_id, namespace=namespace)
    words.print(f"{len(chosen)} to be tried again")


@app.command("list")
def list_items(
    place: Place,
    queue: Queue,
    status: Annotated[str, typer.Option("--status", help="Only pending, taken, failed or dead ones.")] = "",
    limit: Limit = 1000,
    namespace: Namespace = "",
    name: Name = default_daemon,
    as_json: AsJson = False,
) -> None:
    """Show the items of a queue in the order of their pushes."""
    if status not in ("", "pending", "taken", "failed", "dead"):
        raise typer.BadParameter(f"{status!r} is no status: pending, taken, failed, dead")
    found, _ = seen(place, name)
    _show(items_in(found, queue, namespace=namespace, status=status, limit=limit), as_json)
    if scoped(namespace, queue) not in found.queue_items:
        holding = ", ".join(sorted(found.queue_items)) or "none"
        words.print(f"no items in {scoped(namespace, queue)!r}; queues that hold some: {holding}")


@app.command("stats")
def stats(place: Place, name: Name = default_daemon, as_json: AsJson = False) -> None:
    """Show how all queues stand."""
    found, seq = seen(place, name)
    if not stats_of(found):
        words.print("no queue holds items or has workers" if seq else f"no daemon {name!r} has written anything there")
    elif as_json:
        for each in stats_of(found):
            write_json(each)
    else:
        show_stats(found)


def _why_nothing(found: MaterializedState, queue: str, worker: str, namespace: str) -> str:
    record = found.workers.get(scoped(namespace, worker))
    items = items_in(found, queue, namespace=namespace, status="taken", limit=1_000_000)
    held = [item.id for item in items if item.worker_name == worker]
    if record is None or len(held) < record.concurrency:
        return "nothing to take"
    return (
        f"{worker} holds {len(held)} of {record.concurrency}: {', '.join(held)}; complete or fail it first, "
        "or stop the worker and start it with a higher --concurrency"
    )


def _dead(daemon: Daemon | Client, queue: str, namespace: str) -> list[QueueItem]:
    return daemon.items(queue, namespace=namespace, status="dead", limit=1_000_000)


def _input() -> list[bytes]:
    lines = []
    for number, line in numbered_lines(sys.stdin.buffer, request_bytes_max):
        if isinstance(line, Overlong):
            raise RequestRefused(f"Line {number} is longer than {request_bytes_max} bytes; nothing was pushed")
        lines.append(line)
    return lines


def _value(text: bytes) -> Any:
    """JSON where it is JSON that everybody reads alike; anything else is text."""
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return text.decode("utf-8")
    return parse(text)


def _show(items: list[QueueItem], as_json: bool) -> None:
    if as_json:
        for item in items:
            write_json(item)
        return
    write_table(
        ("item", "status", "failures", "worker", "error", "data"),
        (
            (i.id, i.status, i.failure_count, i.worker_name, i.error, msgspec.json.encode(i.data).decode())
            for i in items
        ),
    )
