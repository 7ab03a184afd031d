"""pipeline stream: the live projection on Spark."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated

import typer

from runstate.cli.interrupts import stop_on_signals
from runstate.cli.options import AsJson, ModelName, existing
from runstate.cli.output import words
from runstate.cli.pipeline import Conf, Master, Remote, check_spark, spark_settings, start_spark
from runstate.cli.progress_display import showing
from runstate.cli.projection import (
    MetricsPort,
    State,
    To,
    Urls,
    offer_metrics,
    reconcile,
    sink_name,
    sink_named,
    state_directory,
    tell_row,
)
from runstate.logbook import Logbook, check_state
from runstate.projector import Projector


def stream(
    urls: Urls,
    to: To = "store",
    model: ModelName = None,
    state: State = None,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End once it has caught up, instead of following the feed.")
    ] = False,
    trigger_ms: Annotated[
        int, typer.Option("--trigger-ms", min=1, help="Look for new events every so many milliseconds.")
    ] = 100,
    events_per_batch: Annotated[
        int, typer.Option("--events-per-batch", min=1, help="A backlog is worked off in batches of so many events.")
    ] = 10_000,
    metrics_port: MetricsPort = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Keep a snapshot of every stream up to date with the feeds, on Spark, until interrupted.

    It does what `runstate project --follow` does, for feeds that are too much for one process.
    """
    check_spark()
    from runstate.pipeline.source.origins import model_of

    name = model_of(urls, model)
    directory = state or state_directory(urls, name)
    _check(urls, to, directory, as_json)
    stop = threading.Event()
    with ExitStack() as stack:
        shown = stack.enter_context(showing("stream: starting Spark", unit="events"))
        spark = stack.enter_context(start_spark(spark_settings(master, remote, conf), "stream", urls))
        stack.enter_context(stop_on_signals(stop))  # Not before: Spark takes SIGINT over when it starts.
        from runstate.pipeline.live.stream import live_projection

        _reconcile(stack, directory, urls, to, name)
        projection = stack.enter_context(
            live_projection(
                *(spark, urls, to, directory),
                model=name,
                trigger_ms=trigger_ms,
                events_per_batch=events_per_batch,
                available_now=available_now,
                tell=lambda row: tell_row(row, as_json),
            )
        )
        offer_metrics(stack, projection.book, metrics_port)
        words.print(f"logbook: {directory}")
        shown.doing = "catching up" if available_now else "following"
        while not stop.is_set() and not projection.wait(0.2):
            shown.done = projection.events
        projection.stop()
        events = projection.events
    words.print(f"{events} events projected")


def _reconcile(stack: ExitStack, directory: Path, urls: list[str], to: str, model: str) -> None:
    """Open the logbook for as long as the stack lives. After a restart of the machine, bring lost snapshots back."""
    book = stack.enter_context(closing(Logbook(directory)))
    stack.enter_context(book.kept_for(sink_name(to)))
    for url in urls if book.is_after_restart and to == "store" else ():
        with existing(url, model) as store:
            reconcile(Projector(store), url)
    book.reconciled()


def _check(urls: list[str], to: str, state: Path, as_json: bool) -> None:
    """What is refused is told before Spark is started, and leaves no logbook behind."""
    sink_named(to, as_json)
    check_state(state)
    from runstate.pipeline.live.feed_reader import open_feed

    for url in urls:
        open_feed(url).close()
