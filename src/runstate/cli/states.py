"""streams, snapshot, diff, replay: what the events add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer

from runstate.cli.options import AsJson, Limit, ModelName, Stream, Url, existing, parse_since, parse_time
from runstate.cli.output import counted, progress, words, write_json, write_line
from runstate.cli.tables import write_table
from runstate.errors import LogDamaged, RunstateError, StreamNotFound
from runstate.logs.log import StoredSnapshot, StreamInfo
from runstate.store import Store


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
    status: Annotated[str | None, typer.Option("--status", help="Only streams in this status: FAILED.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only streams of this tenant.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only streams written to since: 2h, 7d, 2026-11-15T09:30:00Z.")
    ] = None,
    like: Annotated[str | None, typer.Option("--like", help="Only ids that match this pattern: 'run-00*'.")] = None,
    sort: Annotated[SortBy, typer.Option("--sort", help="Sort by id, events, first or last event.")] = SortBy.STREAM,
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="Sort in descending order.")] = False,
    after: Annotated[str, typer.Option("--after", help="Only streams with a higher id.")] = "",
    limit: Limit = 1000,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """List streams: id, status, events, tenant and times. Filter, sort and limit them."""
    moment = None if since is None else parse_since(since)
    with existing(url, model) as store:
        chosen: Iterable[StreamInfo] = filter(
            lambda info: _is_chosen(info, tenant, moment, like), _all_streams(store, after)
        )
        if sort is not SortBy.STREAM or reverse:
            chosen = sorted(chosen, key=_sort_keys[sort], reverse=reverse)
        rows = ((info, _status(store, info.stream)) for info in chosen)
        wanted = ((info, found) for info, found in rows if status is None or found.lower() == status.lower())
        found = list(islice(wanted, limit + 1))
        more, found = len(found) > limit, found[:limit]
        if as_json:
            for info, stream_status in found:
                write_json({**msgspec.to_builtins(info), "status": stream_status})
        elif found:
            columns = ("stream", "status", "last seq", "events", "last stored", "tenant", "first stored")
            write_table(columns, (_row(info, stream_status) for info, stream_status in found))
    if not found:
        is_filtered = status or tenant or since or like or after
        words.print("0 streams" + (" match" if is_filtered else ""))
    if more:
        onward = f"continue with --after {found[-1][0].stream}" if sort is SortBy.STREAM and not reverse else "raise it"
        words.print(f"stopped at --limit {limit}; {onward}")


def _all_streams(store: Store[Any, Any, Any], after: str) -> Iterator[StreamInfo]:
    while page := store.log.streams(after=after):
        yield from page
        after = page[-1].stream


def _is_chosen(info: StreamInfo, tenant: str | None, since: datetime | None, like: str | None) -> bool:
    return (
        (tenant is None or info.tenant == tenant)
        and (since is None or datetime.fromisoformat(info.last_persisted_at) >= since)
        and (like is None or fnmatchcase(info.stream, like))
    )


def snapshot(
    url: Url,
    stream: Stream,
    project: Annotated[bool, typer.Option("--project", help="Fold the log now, whatever is kept.")] = False,
    at_seq: Annotated[int | None, typer.Option("--at-seq", min=0, help="The state after this event.")] = None,
    at_time: Annotated[
        str | None, typer.Option("--at-time", help="The state at this time: 2026-11-15T09:30:00Z.")
    ] = None,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """Print a stream's state: as kept with the last append, folded afresh, or as it was. --json: its exact bytes."""
    if at_seq is not None and at_time is not None:
        raise typer.BadParameter("--at-seq and --at-time are two ways to say one thing; give one of them")
    with existing(url, model) as store:
        if project or at_seq is not None or at_time is not None:
            _refuse_beyond(store, stream, at_seq)
            body = store.model.dump(
                store.snapshot_at(stream, seq=at_seq, at=None if at_time is None else parse_time(at_time))
            )
        else:
            body = _kept(store, stream).body
    write_line(body if as_json else msgspec.json.format(body, indent=2))


def diff(
    url: Url,
    stream: Stream,
    from_seq: Annotated[int, typer.Option("--from", min=0, help="The earlier place.", show_default=False)],
    to_seq: Annotated[int, typer.Option("--to", min=0, help="The later place.", show_default=False)],
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """Show what changed in a stream's state between two places in it."""
    with existing(url, model) as store:
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
    check: Annotated[bool, typer.Option("--check", help="Change nothing; compare with what is kept.")] = False,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild snapshots from the log; with --check compare them byte for byte. Exit code 1 when one differs."""
    done = compared = wrong = 0
    with existing(url, model) as store:
        for name in progress(_names(store, stream), "checking" if check else "replaying"):
            done += 1
            try:
                if not check:
                    store.rebuild_snapshot(name)
                elif (kept := store.snapshots.stored(name)) is not None:
                    compared += 1
                    if _again(store, name, kept) != kept.body:
                        raise LogDamaged(f"The snapshot at {kept.seq} is not what the log gives", seq=kept.seq)
            except RunstateError as error:  # One bad stream does not keep the others from being looked at.
                wrong += 1
                if as_json:
                    write_json({"stream": name, **error.as_data()})
                else:
                    write_line(f"{name}: {error.code}: {error}".encode())
    if check:
        words.print(
            f"{counted(done, 'stream')}: {compared} compared, {done - compared} without a snapshot, {wrong} wrong"
        )
    else:
        words.print(f"{counted(done - wrong, 'stream')} replayed" + (f", {wrong} could not be" if wrong else ""))
    raise typer.Exit(1 if wrong else 0)


def _refuse_beyond(store: Store[Any, Any, Any], stream: str, *seqs: int | None) -> None:
    """No state is shown as that of an event which has not happened."""
    info = store.log.stream(stream)
    for seq in seqs:
        if info is not None and seq is not None and seq > info.last_seq:
            raise typer.BadParameter(f"the stream {stream!r} ends at seq {info.last_seq}; it has no {seq}")


def _kept(store: Store[Any, Any, Any], stream: str) -> StoredSnapshot:
    """
    Raises:
        StreamNotFound: there is no stream, or nothing that this version of the model has kept of it.
    """
    if store.log.stream(stream) is None:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    model = store.model
    stored = store.log.load_snapshot(stream, model.name)
    if stored is None:
        raise StreamNotFound(f"No snapshot of {stream!r} is kept; --project folds it from the log", stream=stream)
    if stored.version != model.version:
        raise StreamNotFound(
            f"The snapshot of {stream!r} is of version {stored.version} of the model {model.name!r}, which is at "
            f"version {model.version} now; --project folds it from the log, `runstate replay` keeps it anew",
            stream=stream,
        )
    return stored


def _again(store: Store[Any, Any, Any], stream: str, kept: StoredSnapshot) -> bytes:
    return store.model.dump(store.snapshot_at(stream, seq=kept.seq))


def _names(store: Store[Any, Any, Any], stream: str | None) -> Iterator[str]:
    if stream is None:
        yield from (info.stream for info in _all_streams(store, ""))
        return
    if store.log.stream(stream) is None:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    yield stream


def _status(store: Store[Any, Any, Any], stream: str) -> str:
    state = store.get_snapshot(stream)
    return "" if state is None else store.model.status(state)


def _row(info: StreamInfo, status: str) -> tuple[Any, ...]:
    times = info.last_persisted_at, info.first_persisted_at
    return info.stream, status, info.last_seq, info.events, times[0], info.tenant, times[1]


def _brief(value: Any) -> str:
    text = "" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"
