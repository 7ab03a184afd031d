"""streams, snapshot, diff, replay: what the events add up to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer

from runstate.cli.options import AsJson, Limit, ModelName, Stream, Url, parse_since, parse_time
from runstate.cli.output import counted, words, write_json, write_line
from runstate.cli.progress_display import track
from runstate.cli.stream_stores import StreamStores, open_stream, open_streams
from runstate.cli.tables import write_table
from runstate.errors import (
    LogDamaged,
    ModelMismatch,
    NotWritable,
    RunstateError,
    StreamNotFound,
    UnknownModel,
    Unsupported,
)
from runstate.logs.log import Capability, StoredSnapshot, StreamInfo
from runstate.logs.stream_models import find_whole_stream
from runstate.store import Store

_recent = timedelta(seconds=2)
_patience_s = 0.5


class SortBy(StrEnum):
    """What a list of streams is sorted by."""

    STREAM = "stream"
    EVENTS = "events"
    FIRST = "first"
    LAST = "last"


_sort_keys: dict[SortBy, Callable[[StreamInfo], Any]] = {
    SortBy.STREAM: lambda info: info.stream,
    SortBy.EVENTS: lambda info: info.events,
    SortBy.FIRST: lambda info: info.first_persisted_at,
    SortBy.LAST: lambda info: info.last_persisted_at,
}


def streams(
    url: Url,
    status: Annotated[
        str | None, typer.Option("--status", help="Only streams with this status, such as FAILED.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only streams of this tenant.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only streams with an event since: 2h, 7d, 2026-11-15T09:30:00Z.")
    ] = None,
    like: Annotated[str | None, typer.Option("--like", help="Only ids that match this pattern: 'run-00*'.")] = None,
    sort: Annotated[SortBy, typer.Option("--sort", help="Sort by id, events, first or last event.")] = SortBy.STREAM,
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="Sort in descending order.")] = False,
    after: Annotated[str, typer.Option("--after", help="Only streams with a higher id.")] = "",
    limit: Limit = 1000,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """List streams: id, status, model, events, tenant and times. Filter, sort and limit them."""
    moment = None if since is None else parse_since(since)
    with open_streams(url, model) as stores:
        chosen: Iterable[StreamInfo] = filter(lambda info: _is_chosen(info, tenant, moment, like), stores.all(after))
        if sort is not SortBy.STREAM or reverse:
            chosen = sorted(chosen, key=_sort_keys[sort], reverse=reverse)
        met: set[str] = set()
        rows = _with_status(stores, chosen, met)
        wanted = ((info, found) for info, found in rows if status is None or found.lower() == status.lower())
        found = list(islice(wanted, limit + 1))
        more, found = len(found) > limit, found[:limit]
        if as_json:
            for info, stream_status in found:
                write_json({**msgspec.to_builtins(info), "status": stream_status})
        elif found:
            columns = ("stream", "status", "last seq", "events", "last stored", "tenant", "model", "first stored")
            write_table(columns, (_row(info, stream_status) for info, stream_status in found))
        stores.report_left_out()
        _report_not_installed(stores, [info for info, _ in found])
    if not found:
        is_filtered = status or tenant or since or like or after
        others = f"; they are {', '.join(sorted(met - {''}))}" if status and met - {""} else ""
        words.print("0 streams" + (" match" if is_filtered else "") + others)
    if more:
        onward = f"continue with --after {found[-1][0].stream}" if sort is SortBy.STREAM and not reverse else "raise it"
        words.print(f"stopped at --limit {limit}; {onward}")


def _with_status(stores: StreamStores, infos: Iterable[StreamInfo], met: set[str]) -> Iterator[tuple[StreamInfo, str]]:
    """Streams with their statuses, each of which is put into `met`."""
    for info in infos:
        met.add(found := _status(stores, info))
        yield info, found


def _is_chosen(info: StreamInfo, tenant: str | None, since: datetime | None, like: str | None) -> bool:
    return (
        (tenant is None or info.tenant == tenant)
        and (since is None or datetime.fromisoformat(info.last_persisted_at) >= since)
        and (like is None or fnmatchcase(info.stream, like))
    )


def snapshot(
    url: Url,
    stream: Stream,
    project: Annotated[
        bool, typer.Option("--project", help="Fold the log from its first event, whatever is stored.")
    ] = False,
    stored: Annotated[
        bool, typer.Option("--stored", help="Print the stored snapshot as it is, and how far it is behind the log.")
    ] = False,
    at_seq: Annotated[int | None, typer.Option("--at-seq", min=0, help="The state after this event.")] = None,
    at_time: Annotated[
        str | None, typer.Option("--at-time", help="The state at this time: 2026-11-15T09:30:00Z.")
    ] = None,
    model: ModelName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write the exact bytes of the state, on one line.")] = False,
) -> None:
    """Print a stream's state: now, as stored, folded from its first event, or at an earlier point."""
    if sum([project, stored, at_seq is not None, at_time is not None]) > 1:
        raise typer.BadParameter("give one of --project, --stored, --at-seq and --at-time")
    with open_stream(url, stream, model) as store:
        if project or at_seq is not None or at_time is not None:
            _refuse_beyond(store, stream, at_seq)
            body = store.model.dump(
                store.snapshot_at(stream, seq=at_seq, at=None if at_time is None else parse_time(at_time))
            )
        elif stored:
            found = _load_stored(store, stream)
            info, body = store.log.stream(stream), found.body
            if info is not None and info.last_seq > found.seq:
                words.print(f"stored at seq {found.seq}; the log is at {info.last_seq}")
        else:
            state = store.get_snapshot(stream)
            if state is None:
                raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
            body = store.model.dump(state)
    write_line(body if as_json else msgspec.json.format(body, indent=2))


def diff(
    url: Url,
    stream: Stream,
    from_seq: Annotated[int, typer.Option("--from", min=0, help="The earlier seq.", show_default=False)],
    to_seq: Annotated[int, typer.Option("--to", min=0, help="The later seq.", show_default=False)],
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed in a stream's state between two places in it."""
    with open_stream(url, stream, model) as store:
        _refuse_beyond(store, stream, from_seq, to_seq)
        found = store.diff(stream, from_seq=from_seq, to_seq=to_seq)
    if as_json:
        for change in found:
            write_json(change)
    else:
        write_table(
            ("path", "", "before", "after"), ((c.path, c.kind, _brief(c.before), _brief(c.after)) for c in found)
        )


def replay(
    url: Url,
    stream: Annotated[str | None, typer.Argument(help="One stream; default: all.", show_default=False)] = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; compare with what is stored.")] = False,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild snapshots from the log. --check compares the stored ones byte for byte instead.

    Exit code 1 if a stream could not be folded; with --check also if a snapshot is missing or wrong, or if there was
    nothing to compare.
    """
    done = wrong = behind = 0
    with open_streams(url, model) as stores:
        if Capability.SNAPSHOTS not in stores.log.capabilities:
            raise Unsupported(f"{url[:80]!r} stores no snapshots; 'runstate verify' checks its events")
        infos = stores.all() if stream is None else iter([stores.find(stream)])
        for info in track(infos, "checking" if check else "replaying"):
            done, name = done + 1, info.stream
            try:
                store = stores.of(info)
                if check:
                    behind += _check_snapshot(store, name)
                else:
                    store.rebuild_snapshot(name)
            except RunstateError as error:  # One bad stream does not keep the others from being checked.
                if isinstance(error, NotWritable) and done == 1:
                    raise  # Nor can any other be written, as a rule: say it once.
                if isinstance(error, ModelMismatch | UnknownModel) and stream is not None:
                    raise
                wrong += 1
                if as_json:
                    write_json({"stream": name, **error.as_data()})
                else:
                    write_line(f"{name}: {error.code}: {error}".encode())
        stores.report_left_out()
    if not done:
        words.print(f"nothing to {'compare' if check else 'replay'}: the log has no streams")
    elif check:
        late = f" ({behind} behind the log, right as far as they go)" if behind else ""
        words.print(f"{counted(done, 'stream')}: {done - wrong} right{late}, {wrong} wrong")
    else:
        words.print(f"{counted(done - wrong, 'stream')} replayed" + (f", {wrong} failed" if wrong else ""))
    raise typer.Exit(1 if wrong or (check and not done) else 0)


def _check_snapshot(store: Store[Any, Any, Any], stream: str) -> bool:
    """Compare a stored snapshot with what the log gives at its seq. Returns whether it is behind the log.

    Raises:
        LogDamaged: it differs, was changed, or none is stored.
    """
    stored = _load_stored(store, stream)
    if store.model.dump(store.snapshot_at(stream, seq=stored.seq)) != stored.body:
        raise LogDamaged(
            f"The snapshot at seq {stored.seq} differs from what the log gives; rebuild it with 'runstate replay'",
            seq=stored.seq,
        )
    info = store.log.stream(stream)
    return info is not None and stored.seq < info.last_seq


def _refuse_beyond(store: Store[Any, Any, Any], stream: str, *seqs: int | None) -> None:
    """No state is shown as that of an event which has not happened."""
    info = store.log.stream(stream)
    for seq in seqs:
        if info is not None and seq is not None and seq > info.last_seq:
            raise typer.BadParameter(f"the stream {stream!r} ends at seq {info.last_seq}; it has no {seq}")


def _load_stored(store: Store[Any, Any, Any], stream: str) -> StoredSnapshot:
    """The stored snapshot of a stream.

    Raises:
        StreamNotFound: there is no such stream.
        LogDamaged: no snapshot is stored, or it is not what was saved, or it is of another version of the model.
    """
    info = find_whole_stream(store.log, stream, store.model.name)
    if info is None:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    stored = store.snapshots.stored(stream)
    until = time.monotonic() + _patience_s
    # The writer of a stream that was just begun saves its first snapshot a moment after the event.
    while stored is None and _is_recent(info) and time.monotonic() < until:
        time.sleep(0.05)
        stored = store.snapshots.stored(stream)
    # Looked up again: a snapshot may be of events that were stored since.
    info = store.log.stream(stream) or info
    if stored is None or stored.seq > info.last_seq:
        raise LogDamaged(f"{_why_unusable(store, stream)}; rebuild it with 'runstate replay'", stream=stream)
    return stored


def _is_recent(info: StreamInfo) -> bool:
    try:
        return datetime.now(UTC) - datetime.fromisoformat(info.last_persisted_at) < _recent
    except (ValueError, TypeError):  # Anything may stand in a damaged log.
        return False


def _why_unusable(store: Store[Any, Any, Any], stream: str) -> str:
    model, stored = store.model, store.log.load_snapshot(stream, store.model.name)
    if stored is not None and stored.version != model.version:
        return f"The snapshot is of version {stored.version} of the model {model.name!r}, which is at {model.version}"
    if stored is not None and stored.is_intact:
        return f"The snapshot is at seq {stored.seq}, beyond the end of the stream"
    changed = next((finding for finding in store.log.verify(stream) if finding.code.startswith("snapshot.")), None)
    if stored is not None or changed is not None:
        return "The stored snapshot is not what was saved"
    return "No snapshot is stored"


def _status(stores: StreamStores, info: StreamInfo) -> str:
    try:
        store = stores.of(info)
        state = store.get_snapshot(info.stream)
    except RunstateError as error:  # A list shows what is there, also what cannot be folded.
        return f"? {error.code}"
    return "" if state is None else store.model.status(state)


def _row(info: StreamInfo, status: str) -> tuple[Any, ...]:
    times = info.last_persisted_at, info.first_persisted_at
    return info.stream, status, info.last_seq, info.events, times[0], info.tenant, info.model, times[1]


def _report_not_installed(stores: StreamStores, infos: list[StreamInfo]) -> None:
    absent = Counter(info.model for info in infos if info.model and stores.model_of(info) is None)
    for name, count in sorted(absent.items()):
        words.print(
            f"no status: {counted(count, 'stream')} of the model {name!r}, which is not installed. "
            "Pass --model FILE.py:CLASS"
        )


def _brief(value: Any) -> str:
    text = "" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"
