"""OpenLineage events about the work items of a run (extra `openlineage`): START, then COMPLETE, FAIL or ABORT.

Each attempt of a work item is a run of OpenLineage. Its id is made from the event that queued it, so it is the same
after a resume. Lineage never fails the run that it tells about and never makes it wait.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from runstate.errors import InvalidUrl, LogFailed, RunstateError, Unsupported, redact
from runstate.models.rundir.events import RunEvent
from runstate.runtimes.telemetry.datasets import Dataset, Datasets
from runstate.runtimes.telemetry.trouble import unfailing

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.event_v2 import RunEvent as LineageEvent
    from openlineage.client.generated.base import RunFacet

Warn = Callable[[str], None]

_timeout_s = 5.0
_retries = {"total": 1, "connect": 1, "read": 1}
_queue_max = 10_000
_message_max = 8_000
_warning_max = 300
namespace_default = "runstate"
_producer = f"urn:runstate:{version('runstate')}"


class _Item(msgspec.Struct):
    worker: str
    scope: str
    run_id: str


class OpenLineageTelemetry:
    """Sends an event when a work item starts and when it ends, in the background and in order.

    `emit` and `close` never raise. The first event that cannot be delivered is reported to `warn`; the others are not.
    """

    def __init__(self, client: OpenLineageClient, *, job: str, datasets: Datasets, warn: Warn) -> None:
        """`job` begins the names of the jobs: `job.WORKER.SCOPE`."""
        self._client, self._job, self._datasets, self._warn = client, job, datasets, warn
        self._items: dict[str, _Item] = {}
        self._queue: queue.Queue[LineageEvent | None] = queue.Queue(_queue_max)
        self._has_warned = threading.Lock()
        self._sender = threading.Thread(target=self._send, name="runstate-openlineage", daemon=True)
        self._sender.start()

    def recall(self, events: Iterable[RunEvent]) -> None:
        """Learn what an earlier process has queued, before resuming its run. Never raises."""
        with unfailing("The events before this could not be read for OpenLineage"):
            for event in events:
                self._learn(event)

    def emit(self, event: RunEvent) -> None:
        """Take note of an event, as the log stored it. Returns at once and never raises."""
        with unfailing("An event could not be sent to OpenLineage"):
            self._learn(event)
            item = self._items.get(str(event.payload.get("work_item_id")))
            if item is None or event.type not in ("WORK_ITEM_STARTED", "WORK_ITEM_FINISHED"):
                return
            try:
                self._queue.put_nowait(self._lineage_event(item, event))
            except queue.Full:
                self._warn_once("too many wait to be sent")

    def close(self, timeout_s: float = _timeout_s) -> None:
        """Send what can be sent within that time. Never raises."""
        with unfailing("OpenLineage could not be closed"):
            self._queue.put_nowait(None)
            self._sender.join(timeout_s)
            if self._sender.is_alive():
                self._warn_once("no answer in time")

    def _learn(self, event: RunEvent) -> None:
        if event.type == "WORK_ITEM_QUEUED":
            from openlineage.client.uuid import generate_static_uuid

            payload = event.payload
            made = generate_static_uuid(datetime.fromisoformat(str(event.ts)), event.event_id.encode())
            self._items[payload["work_item_id"]] = _Item(payload["worker"], payload["scope_key"], str(made))

    def _lineage_event(self, item: _Item, event: RunEvent) -> LineageEvent:
        from openlineage.client.event_v2 import Job, Run, RunState
        from openlineage.client.event_v2 import RunEvent as LineageEvent
        from openlineage.client.facet_v2 import error_message_run, job_type_job

        worker, scope, status = item.worker, item.scope, event.payload.get("status")
        error = event.payload.get("error") or {}
        facets: dict[str, RunFacet] = _parent()
        if event.type == "WORK_ITEM_STARTED":
            state = RunState.START
            self._datasets.start(worker, scope)
        elif status == "finished":
            state = RunState.COMPLETE
        else:
            state = RunState.ABORT if status == "skipped" or error.get("code") == "CANCELLED" else RunState.FAIL
            message = redact(f"{error.get('code', 'FAILED')}: {error.get('message', '')}")[:_message_max]
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message, "PYTHON", producer=_producer)
        written = self._datasets.writes(worker, scope)
        if state == RunState.COMPLETE:
            # What cannot be counted is told without counts.
            with suppress(RunstateError, OSError):
                written = self._datasets.written(worker, scope)
        name = ".".join([self._job, worker] if scope == "-" else [self._job, worker, scope])
        job_type = job_type_job.JobTypeJobFacet("BATCH", "RUNSTATE", "STAGE", producer=_producer)
        return LineageEvent(
            eventType=state,
            eventTime=str(event.ts),
            run=Run(runId=item.run_id, facets=facets),
            job=Job(namespace=_namespace(), name=name, facets={"jobType": job_type}),
            inputs=[_input(each) for each in self._datasets.reads(worker, scope)],
            outputs=[_output(each) for each in written],
            producer=_producer,
        )

    def _send(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                self._client.emit(event)
            except Exception as error:  # noqa: BLE001 - a transport may raise anything, and no run fails for it
                self._warn_once(f"{type(error).__name__}: {error}")
        self._client.close(0)

    def _warn_once(self, why: str) -> None:
        if self._has_warned.acquire(blocking=False):
            self._warn(f"lineage is not delivered; the pipeline goes on without it: {redact(why)[:_warning_max]}")


def open_client(target: str) -> OpenLineageClient:
    """The client for `http://…` or `https://…`, or for a file that events are appended to, one JSON object a line.

    The OPENLINEAGE_* variables and `openlineage.yml` set up everything but the address: the API key, headers, timeouts,
    filters, and the endpoint's path unless the address has one.

    Raises:
        Unsupported: the extra `openlineage` is not installed.
        InvalidUrl: the target is neither, or its URL holds a password.
        LogFailed: the file cannot be written, or OpenLineage's own settings are wrong.
    """
    try:
        from openlineage.client import OpenLineageClient

        from runstate.adapters.openlineage_file import FileTransport
    except ImportError as error:
        raise Unsupported(f"Lineage needs a package: pip install 'runstate[openlineage]' ({error})") from error
    try:
        if target.startswith(("http:", "https:")):
            return OpenLineageClient(transport=_http(_checked(target)))
        if "://" in target:
            raise InvalidUrl(f"Lineage goes to a file, http://… or https://…, not to {target[:80]!r}")
        return OpenLineageClient(transport=FileTransport(Path(target)))
    except OSError as error:
        raise LogFailed(f"Lineage cannot be written to {target}: {error.strerror or error}") from error
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        raise LogFailed(f"OpenLineage cannot be set up: {error}") from error


def _checked(url: str) -> str:
    """
    Raises:
        InvalidUrl: it has no host, or holds a password.
    """
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise InvalidUrl("The lineage endpoint cannot be read: write http://HOST:PORT or https://HOST")
    if "@" in parts.netloc:
        raise InvalidUrl("The lineage endpoint must not hold a password; set OPENLINEAGE_API_KEY instead")
    return url


def _http(url: str) -> Any:
    from openlineage.client import OpenLineageClient
    from openlineage.client.transport.http import HttpConfig, HttpTransport
    from openlineage.client.transport.noop import NoopConfig, NoopTransport

    # Its settings, without its choice of a transport.
    found = OpenLineageClient(transport=NoopTransport(NoopConfig())).config.transport or {}
    settings: dict[str, Any] = dict(found) if found.get("type") in ("http", "async_http") else {}
    if path := urlsplit(url).path.strip("/"):
        settings["endpoint"] = f"/{path}"  # The caller has named the whole address.
    elif endpoint := os.environ.get("OPENLINEAGE_ENDPOINT"):
        settings.setdefault("endpoint", endpoint)
    if key := os.environ.get("OPENLINEAGE_API_KEY"):
        settings.setdefault("auth", {"type": "api_key", "apiKey": key})
    settings["timeout"] = float(settings.get("timeout", _timeout_s))
    settings.setdefault("retry", _retries)
    return HttpTransport(HttpConfig.from_dict({**settings, "url": url}))


def _namespace() -> str:
    return os.environ.get("OPENLINEAGE_NAMESPACE") or namespace_default


def _parent() -> dict[str, RunFacet]:
    """The facet of the run that has started this one, as schedulers hand it over: NAMESPACE/JOB/RUN-ID."""
    from openlineage.client.facet_v2 import parent_run

    given = os.environ.get("OPENLINEAGE_PARENT_ID", "")
    namespace, _, rest = given.partition("/")
    job, _, run = rest.rpartition("/")
    if not (namespace and job and run):
        return {}
    try:
        return {
            "parent": parent_run.ParentRunFacet(
                run=parent_run.Run(runId=run),
                job=parent_run.Job(namespace=namespace, name=job),
                producer=_producer,
            )
        }
    except ValueError:  # No UUID: another program's variable is not worth an event.
        return {}


def _facets(dataset: Dataset) -> dict[str, Any]:
    from openlineage.client.facet_v2 import dataset_version_dataset, datasource_dataset

    source = datasource_dataset.DatasourceDatasetFacet(dataset.namespace, dataset.uri, producer=_producer)
    facets: dict[str, Any] = {"dataSource": source}
    if dataset.version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(dataset.version, producer=_producer)
    return facets


def _input(dataset: Dataset) -> InputDataset:
    from openlineage.client.event_v2 import InputDataset

    return InputDataset(namespace=dataset.namespace, name=dataset.name, facets=_facets(dataset))


def _output(dataset: Dataset) -> OutputDataset:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    counts: dict[str, Any] = {}
    if any(count is not None for count in (dataset.rows, dataset.bytes, dataset.files)):
        counts["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(
            rowCount=dataset.rows, size=dataset.bytes, fileCount=dataset.files, producer=_producer
        )
    return OutputDataset(namespace=dataset.namespace, name=dataset.name, facets=_facets(dataset), outputFacets=counts)
