"""Prometheus metrics: those of a logbook over HTTP, for whatever projects (a process, Spark), and files of metrics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runstate.errors import LogFailed, Unsupported
from runstate.logbook import Logbook

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector


def serve_metrics(book: Logbook, port: int, address: str = "127.0.0.1") -> tuple[int, Callable[[], None]]:
    """Answer scrapes at `http://address:port/metrics` from a thread. Returns the port, and what ends it.

    Raises:
        Unsupported: the extra `metrics` is not installed.
        LogFailed: the port is taken.
    """
    _check_package()
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(BookCollector(book))
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise LogFailed(f"Metrics cannot be served on {address}:{port}: {error}") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, stop


def check_metrics_file(path: Path) -> None:
    """Check that metrics can be written to a file, before there are any.

    Raises:
        Unsupported: the extra `metrics` is not installed.
        LogFailed: its directory is not there, or cannot be written.
    """
    _check_package()
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise LogFailed(f"Metrics cannot be written to {path}: name a file in a directory that you may write to")


def write_metrics(collector: Collector, path: Path) -> None:
    """Write a file for node_exporter's textfile collector: a reader finds the old one or the new one, and whole.

    Its mode is left to the umask, since node_exporter is another user. OSError: it cannot be written.
    """
    from prometheus_client import CollectorRegistry, write_to_textfile

    registry = CollectorRegistry()
    registry.register(collector)
    write_to_textfile(str(path), registry)


def _check_package() -> None:
    """
    Raises:
        Unsupported: the extra `metrics` is not installed.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise Unsupported(f"Metrics need a package: pip install 'runstate[metrics]' ({error})") from error


class BookCollector:
    """Reads the logbook when it is asked. A log is a label; a run never is, since there are too many of them."""

    def __init__(self, book: Logbook) -> None:
        self._book = book

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["log", "model", "aside"]
        lag = GaugeMetricFamily(
            "runstate_projector_lag_seconds", "The age of the oldest event that is not projected.", labels=labels
        )
        stale = GaugeMetricFamily("runstate_projector_stale_streams", "Streams that wait for a resync.", labels=labels)
        events = CounterMetricFamily("runstate_projector_events", "Events that were projected.", labels=labels)
        resyncs = CounterMetricFamily("runstate_projector_resyncs", "Streams read again from the log.", labels=labels)
        for entry in self._book.entries():
            of = [entry.url, entry.model, str(entry.is_aside).lower()]
            lag.add_metric(of, entry.lag_s)
            stale.add_metric(of, entry.stale)
            events.add_metric(of, entry.events)
            resyncs.add_metric(of, entry.resyncs)
        raised = CounterMetricFamily("runstate_projector_alerts", "Alerts that were raised.", labels=["code"])
        is_open = GaugeMetricFamily("runstate_projector_alerts_open", "Alerts that are open.", labels=["code"])
        all_, open_ = self._book.alert_counts()
        for code in sorted(all_):
            raised.add_metric([code], all_[code])
            is_open.add_metric([code], open_[code])
        yield from (lag, stale, events, resyncs, raised, is_open)
