"""The streams of a log, each read through the model that it records: what the reading commands share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from runstate.cli.output import counted, words
from runstate.errors import StreamNotFound, Truncated, UnknownModel, shown_url
from runstate.logs.archived_streams import stream_not_found
from runstate.logs.log import EventLog, StreamInfo
from runstate.logs.pairing import holds_others, model_for
from runstate.logs.registry import open_log
from runstate.logs.unfoldable import unfoldable
from runstate.models.model import Alert, AnyModel
from runstate.models.registry import find_model, resolve_model
from runstate.store import Store

AnyStore = Store[Any, Any, Any]


@contextmanager
def open_streams(url: str, model: str | None) -> Iterator[StreamStores]:
    """Open a log for reading: a log that is not there is an error, not a new file. `model` is what the caller named."""
    given = None if model is None else find_model(model)
    with open_log(url, create=False) as log:
        yield StreamStores(url, log, given)


@contextmanager
def open_stream(url: str, stream: str, model: str | None) -> Iterator[AnyStore]:
    """A store for reading one stream.

    Raises:
        StreamNotFound: there is no such stream.
        UnknownModel, ModelMismatch: as `StreamStores.of`.
    """
    with open_streams(url, model) as streams:
        yield streams.of(streams.find(stream))


class StreamStores:
    """A log, with a store for each model that its streams record."""

    def __init__(self, url: str, log: EventLog, given: AnyModel | None) -> None:
        self.log, self.given = log, given
        self.left_out: Counter[str] = Counter()
        """Streams of other models than the given one, by model, as far as they were met."""
        self._url = url
        self._stores: dict[str, AnyStore] = {}
        self._included: dict[str, bool] = {}
        self._described: dict[str, AnyModel | None] = {}

    def of(self, info: StreamInfo) -> AnyStore:
        """The store for a stream: of the given model, or of the one that it records. It saves no snapshots on the way.

        Raises:
            UnknownModel: the recorded model is not installed, and none was given.
            ModelMismatch: another model was given.
        """
        if info.model not in self._stores:
            if info.model:
                model = resolve_model(info.model, self.given, f"The stream {info.stream!r}")
            else:
                model = model_for(self._url, self.log, self.given)
            self._stores[info.model] = Store(self.log, model, snapshot_every=0, on_alert=print_alert)
        return self._stores[info.model]

    def model_of(self, info: StreamInfo) -> AnyModel | None:
        """The model to describe the events of a stream with; None if it is not installed: then they are shown as JSON.

        Raises:
            ModelMismatch: another model was given.
        """
        try:
            return self.of(info).model
        except UnknownModel:
            return None

    def find(self, stream: str) -> StreamInfo:
        """
        Raises:
            StreamNotFound: there is no such stream.
        """
        info = self.log.stream(stream)
        if info is None:
            error = stream_not_found(self.log, stream)
            if self.log.tombstone(stream) is None:
                error.args = (f"{error}; 'runstate streams {shown_url(self._url)}' lists those that are there",)
            raise error
        return info

    def rebuild_snapshot(self, stream: str) -> None:
        """Make the snapshot of what a repair has left. There may be nothing, or no model for it, or an event that
        cannot be folded: `verify` names that."""
        with suppress(StreamNotFound, UnknownModel, Truncated, *unfoldable):
            self.of(self.find(stream)).rebuild_snapshot(stream)

    def all(self, after: str = "") -> Iterator[StreamInfo]:
        """All streams in the order of their ids; those of the given model, where one was given.

        Raises:
            ModelMismatch: there are streams, and none of the given model.
        """
        is_empty = True
        while page := self.log.streams(after=after):
            for info in page:
                if self.is_chosen(info):
                    is_empty = False
                    yield info
            after = page[-1].stream
        if is_empty:
            self.refuse_others()

    def is_chosen(self, info: StreamInfo) -> bool:
        """Whether a stream is of the given model, or none was given. Others are counted as left out."""
        if self.given is None or info.model in ("", self.given.name):
            return True
        self.left_out[info.model] += 1
        return False

    def includes(self, stream: str) -> bool:
        """`is_chosen` for a stream of the feed, which is looked up once."""
        if self.given is None:
            return True
        if stream not in self._included:
            info = self.log.stream(stream)
            self._included[stream] = info is None or self.is_chosen(info)
        return self._included[stream]

    def describing_model(self, stream: str) -> AnyModel | None:
        """`model_of` for a stream of the feed, which is looked up once."""
        if stream not in self._described:
            info = self.log.stream(stream)
            self._described[stream] = None if info is None else self.model_of(info)
        return self._described[stream]

    def refuse_others(self) -> None:
        """
        Raises:
            ModelMismatch: streams were left out.
        """
        if self.left_out and self.given is not None:
            raise holds_others(self._url, self.left_out, self.given.name)

    def report_left_out(self) -> None:
        report_left_out(self.left_out)


def report_left_out(left_out: Mapping[str, int]) -> None:
    """Say how many streams of which other models a command has left out."""
    for name, count in sorted(left_out.items()):
        words.print(f"left out: {counted(count, 'stream')} of the model {name!r}")


def print_alert(alert: Alert) -> None:
    words.print(f"alert {alert.code}: {alert.subject}", style="yellow")
