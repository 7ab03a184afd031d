"""streams, snapshot, diff, replay: what the events add up to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from runstate.cli.options import AsJson, Limit, ModelName, Stream, Url, existing
from runstate.cli.output import counted, progress, words, write_json, write_line, write_table
from runstate.errors import LogDamaged, NotWritable, RunstateError, StreamNotFound
from runstate.logs.log import StoredSnapshot, StreamInfo
from runstate.store import Store


def streams(
    url: Url,
    after: Annotated[str, typer.Option("--after", help="Only streams with a higher id.")] = "",
    limit: Limit = 1000,
    model: ModelName = None,
    as_json: AsJson = False,
) -> None:
    """List the streams: their status as last kept, how many events, and when."""
    with existing(url, model) as store:
        found = store.log.streams(after=after, limit=limit)
        rows = [(info, _status(store, info.stream)) for info in found]
        if as_json:
            for info, status in rows:
                write_json({**msgspec.to_builtins(info), "status": status})
        else:
            columns = ("stream", "status", "last seq", "events", "tenant", "first stored", "last stored")
            write_table(columns, (_row(info, status) for info, status in rows))
        if not found:
            words.print("0 streams" + (f" after {after}" if after else ""))
        if len(found) == limit:
            words.print(f"stopped at --limit {limit}; go on with --after {found[-1].stream}")


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
            body = store.model.dump(store.snapshot_at(stream, seq=at_seq, at=_moment(at_time)))
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
                if isinstance(error, NotWritable) and done == 1:
                    raise  # Nor can any other be written, as a rule: say it once.
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


def _moment(text: str | None) -> datetime | None:
    try:
        moment = None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write it like 2026-11-15T09:30:00Z") from error
    if moment is not None and moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no zone; write it like 2026-11-15T09:30:00Z")
    return moment


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
    if stream is not None:
        if store.log.stream(stream) is None:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
        yield stream
        return
    after = ""
    while page := store.log.streams(after=after):
        yield from (info.stream for info in page)
        after = page[-1].stream


def _status(store: Store[Any, Any, Any], stream: str) -> str:
    state = store.get_snapshot(stream)
    return "" if state is None else store.model.status(state)


def _row(info: StreamInfo, status: str) -> tuple[Any, ...]:
    return (
        info.stream,
        status,
        info.last_seq,
        info.events,
        info.tenant,
        info.first_persisted_at,
        info.last_persisted_at,
    )


def _brief(value: Any) -> str:
    text = "" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"
