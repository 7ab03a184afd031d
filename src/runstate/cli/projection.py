"""project and lag: snapshots kept up to date with a log's feed, and how far behind they are."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from runstate.cli.interrupts import stop_on_signals
from runstate.cli.options import AsJson, ModelName, existing
from runstate.cli.output import counted, words, write_json, write_line
from runstate.cli.pipeline import check_spark
from runstate.cli.progress_display import Display, Progress, Watch
from runstate.cli.stream_stores import report_left_out
from runstate.cli.tables import write_table
from runstate.errors import InvalidUrl, LogNotFound, ModelMismatch, RunstateError, shown_url
from runstate.following import Follower, SinkOf, check_feed, store_sink
from runstate.logbook import Entry, Logbook
from runstate.logs.pairing import check_model_is_used, default_name
from runstate.logs.pending import Blocker, oldest_pending
from runstate.logs.registry import open_log
from runstate.metrics import serve_metrics
from runstate.models.canonical import digest
from runstate.models.registry import find_model
from runstate.projector import Projector, lag_high_s
from runstate.sinks import Projected, Sink, TellingSink
from runstate.storage.user_state import user_state_directory
from runstate.store import Store

Urls = Annotated[list[str], typer.Argument(help="Where the logs are: sqlite:PATH, postgresql://…", show_default=False)]
To = Annotated[
    str,
    typer.Option(
        "--to",
        help="Where snapshots go: store (the log itself), parquet:DIR (versions of a table; DIR is new, empty, or such "
        "a table), or console.",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        help="The directory of the projector's logbook: new, empty, or one that it has used before. "
        "Default: one for these logs in ~/.local/state/runstate.",
        show_default=False,
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", min=0, max=65535, help="Serve Prometheus metrics on this port of 127.0.0.1."),
]

watch_s = 0.5
"""How often `lag --watch` measures."""


def state_directory(urls: Sequence[str], model: str) -> Path:
    """Where the logbook of a projector of these logs is by default. Another password is not another place."""
    return (
        user_state_directory() / "projectors" / digest("\n".join([model, *sorted(map(shown_url, urls))]).encode())[:16]
    )


def project(
    urls: Urls,
    to: To = "store",
    model: ModelName = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until interrupted.")] = False,
    state: State = None,
    metrics_port: MetricsPort = None,
    as_json: AsJson = False,
) -> None:
    """Keep a snapshot of every stream up to date with the feed. It begins where the projector before it stopped."""
    sink_of = sink_named(to, as_json)
    with ExitStack() as stack:
        first = stack.enter_context(existing(urls[0], model))
        stores = {urls[0]: first} | {
            url: stack.enter_context(existing(url, first.model)) for url in urls if url != urls[0]
        }
        for url, store in stores.items():
            check_feed(url, store.log)
            check_model_is_used(url, store.log, first.model.name)
        directory = state or state_directory(urls, first.model.name)
        # Not before: what is refused leaves no logbook behind.
        book = stack.enter_context(closing(Logbook(directory)))
        stack.enter_context(book.kept_for(sink_name(to)))
        followers = []
        for url, store in stores.items():
            followers.append(Follower(url, store, book, sink_of))
            if book.is_after_restart:
                reconcile(followers[-1].projector, url)
        book.reconciled()
        offer_metrics(stack, book, metrics_port)
        words.print(f"logbook: {directory}")
        with _display("catching up", followers):
            for follower in followers:
                follower.catch_up()
                follower.note()
        if follow:
            words.print(f"caught up: {_events(followers)}; following, Ctrl-C ends")
            _follow(followers)
        for follower in followers:
            report_left_out(follower.left_out)
    words.print(f"{_events(followers)} projected" + ("" if follow else "; --follow goes on"))


def _events(followers: list[Follower]) -> str:
    return counted(sum(follower.events for follower in followers), "event")


def _display(doing: str, followers: list[Follower]) -> Display:
    progress = Progress(doing, unit="events")

    def count() -> Progress:
        progress.done = sum(follower.events for follower in followers)
        return progress

    return Display(count)


def offer_metrics(stack: ExitStack, book: Logbook, port: int | None) -> None:
    """Serve Prometheus metrics until the stack is closed, if there is a port for them."""
    if port is not None:
        actual, stop = serve_metrics(book, port)
        stack.callback(stop)
        words.print(f"metrics: http://127.0.0.1:{actual}/metrics")


def reconcile(projector: Projector, url: str) -> None:
    """After a restart of the machine, bring up to date what the sink may have lost."""
    behind = projector.reconcile()
    words.print(f"the machine was restarted: {behind} snapshots of {shown_url(url)} were behind, and are not any more")


def sink_name(to: str) -> str:
    """A sink by a name that is the same from wherever it is called."""
    scheme, colon, path = to.partition(":")
    return f"{scheme}:{Path(path).absolute()}" if colon else to


def sink_named(to: str, as_json: bool) -> SinkOf:
    """
    Raises:
        InvalidUrl: there is no such sink.
        Unsupported: it needs a package that is not installed.
        NotALog, LogFailed: its directory holds something else, or cannot be written.
    """
    if to == "store":
        return store_sink
    if to == "console":
        return lambda store, aside: TellingSink(lambda row: tell_row(row, as_json))
    if to.startswith("parquet:") and to != "parquet:":
        check_spark("Parquet tables need the packages of the pipeline")
        from runstate.pipeline.live.parquet_manifest import check_sink

        directory = Path(to.removeprefix("parquet:"))
        check_sink(directory)
        return lambda store, aside: _parquet_sink(directory, store, aside)
    raise InvalidUrl(f"{to[:80]!r} is no sink: write store, console or parquet:DIR")


def _parquet_sink(directory: Path, store: Store[Any, Any, Any], aside: str) -> Sink:
    from runstate.pipeline.live.parquet_sink import ParquetSink

    return ParquetSink(directory, store.model, aside=aside)


def tell_row(row: Projected, as_json: bool) -> None:
    if as_json:
        told = msgspec.to_builtins(msgspec.structs.replace(row, body=b""))
        write_json({**told, "stale": row.stale, "snapshot": msgspec.Raw(row.body)})
    else:
        stale = " STALE" if row.stale else ""
        write_line(f"{row.stream} {row.status} {row.last_event_seq}{stale}".encode())
    sys.stdout.flush()  # The next row may be a long time coming.


def _follow(followers: list[Follower]) -> None:
    """Every log in a thread of its own, until a signal, or until one of them fails for good."""
    stop, failures = threading.Event(), list[BaseException]()

    def run(follower: Follower) -> None:
        try:
            follower.run(stop)
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that can tell it
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=run, args=(follower,)) for follower in followers]
    with _display("following", followers), stop_on_signals(stop):
        for thread in threads:
            thread.start()
        while not stop.wait(0.2):
            pass
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def lag(
    urls: Urls,
    model: ModelName = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="A live table, until interrupted.")] = False,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show how far behind its logs a projector is now, and its open alerts. Exits with 1 if by more than 5 seconds."""
    name = _model_name(urls[0], model)
    directory = state or state_directory(urls, name)
    with closing(_logbook(directory, urls)) as book:
        if model is not None:
            _check_model(book, name)
        if watch and not as_json:
            _watch(urls, book)
            return
        found = _report(urls, book, as_json)
    if any(each.lag_s > lag_high_s for each in found):
        raise typer.Exit(1)


def _model_name(url: str, model: str | None) -> str:
    """The name of the model that a log is projected with by default. Whether it is installed does not matter here."""
    if model is not None:
        return find_model(model).name
    with open_log(url, create=False) as log:
        return default_name(url, log)


def _check_model(book: Logbook, name: str) -> None:
    """
    Raises:
        ModelMismatch: the logbook is that of another model.
    """
    for entry in book.entries():
        if entry.model != name:
            raise ModelMismatch(
                f"The logbook {book.path} is that of a projector of the model {entry.model!r}, not of {name!r}. "
                "Leave out --model, or pass the logbook's directory with --state",
                recorded=entry.model,
                given=name,
            )


def _report(urls: Sequence[str], book: Logbook, as_json: bool) -> list[Entry]:
    found, alerts = _measured(urls, book), book.alerts(open_only=True)
    if as_json:
        for each in [*found, *alerts]:
            write_json(each)
        return found
    write_table(_lag_columns, map(_lag_row, found))
    if alerts:
        write_table(("alert", "level", "about", "since"), ([a.code, a.level, a.subject, a.raised_at] for a in alerts))
    for each in found:
        if each.lag_s > lag_high_s:
            words.print(f"{each.url} is {each.lag_s:.1f} s behind", style="bold red")
    return found


def _logbook(directory: Path, urls: Sequence[str]) -> Logbook:
    try:
        return Logbook(directory, create=False)
    except LogNotFound:
        _check_there(urls)
        raise


def _check_there(urls: Sequence[str]) -> None:
    """Of a log that is not there, this is what to tell: not that nobody projects it."""
    for url in urls:
        open_log(url, create=False).close()


_lag_columns = ("log", "model", "version", "lag", "events", "resyncs", "stale", "projector last seen")


def _lag_row(entry: Entry) -> list[Any]:
    version = f"{entry.version}, aside" if entry.is_aside else entry.version
    return [
        entry.url,
        entry.model,
        version,
        f"{entry.lag_s:.1f} s",
        *(entry.events, entry.resyncs, entry.stale),
        entry.measured_at,
    ]


def _measured(urls: Sequence[str], book: Logbook) -> list[Entry]:
    """The lag of each log as it is now, whether its projector lives or not."""
    by_shown = {shown_url(url): url for url in urls}
    found = [entry for entry in book.entries() if entry.url in by_shown]
    unknown = sorted(by_shown.keys() - {entry.url for entry in found})
    if unknown:
        _check_there(urls)
        raise LogNotFound(f"The logbook {book.path} knows nothing of {unknown[0]}; 'runstate project' first")
    return [msgspec.structs.replace(entry, lag_s=_lag_s(by_shown[entry.url], entry)) for entry in found]


def _lag_s(url: str, entry: Entry) -> float:
    """The age of the oldest event that waits; if the log cannot say, what was last known, grown by the time since."""
    now = datetime.now(UTC)
    try:
        with open_log(url, create=False) as log:
            oldest = oldest_pending(log, entry.position)
    except RunstateError as error:
        words.print(f"{entry.url}: {error}")
        return entry.lag_s + (now - datetime.fromisoformat(entry.measured_at)).total_seconds()
    if oldest is None:
        return 0.0
    if oldest.blocked_by is not None:
        words.print(f"{entry.url}: the feed is held back by {_named(oldest.blocked_by)}. End it to release the feed")
    return max(0.0, (now - datetime.fromisoformat(oldest.persisted_at)).total_seconds())


def _named(blocker: Blocker) -> str:
    pid = "an open transaction" if blocker.pid is None else f"the open transaction of pid {blocker.pid}"
    age = "" if blocker.age_s is None else f", open for {blocker.age_s:.0f} s"
    found = {"application": blocker.application, "database": blocker.database, "user": blocker.user}
    return pid + age + "".join(f", {name} {value!r}" for name, value in found.items() if value)


def _watch(urls: Sequence[str], book: Logbook) -> None:
    with Watch() as watched, stop_on_signals(stop := threading.Event()):
        while not stop.is_set():
            with watched.frame():
                _report(urls, book, as_json=False)
            stop.wait(watch_s)
    _report(urls, book, as_json=False)
