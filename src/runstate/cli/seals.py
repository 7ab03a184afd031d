"""seal, and what `verify` compares with seals: proof that a log was not changed since it was sealed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from runstate.cli.output import counted, numbered_lines, words, write_line
from runstate.cli.progress_display import track
from runstate.cli.seal_keys import create_key, read_key
from runstate.errors import InvalidSeals, StreamNotFound, Truncated
from runstate.logs.keyed_seals import (
    Seal,
    SealKey,
    check_seal,
    check_seals,
    decode_seals,
    encode_seals,
    seal_line_bytes_max,
    seal_stream,
)
from runstate.logs.log import EventLog, Finding
from runstate.logs.registry import open_log
from runstate.storage.disk import RealDisk, write_new

KeyFile = Annotated[
    Path | None,
    typer.Option("--key-file", help="The secret key of the seals. Only its owner may read it.", show_default=False),
]
SealsFile = Annotated[
    Path | None,
    typer.Option("--seals", help="Also compare with the seals in this file (see `seal`).", show_default=False),
]


def seal(
    url: Annotated[str | None, typer.Argument(help="Where the log is, as for `verify`.", show_default=False)] = None,
    stream: Annotated[str | None, typer.Argument(help="One stream; default: every stream.", show_default=False)] = None,
    key_file: KeyFile = None,
    new_key: Annotated[
        Path | None,
        typer.Option("--new-key", help="Only create a new key in this file, and exit.", show_default=False),
    ] = None,
    previous: Annotated[
        Path | None,
        typer.Option("--previous", help="Continue these earlier seals: read newer events only.", show_default=False),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", help="Write the seals to this new file, not to stdout.", show_default=False)
    ] = None,
) -> None:
    """Seal a log with a secret key, so that `verify --seals` can later prove that it was not changed."""
    if new_key is not None:
        if url is not None or key_file is not None:
            raise typer.BadParameter("--new-key only creates a key; seal in a second step, with --key-file")
        words.print(f"created the key {create_key(new_key).id} in {new_key}; keep it away from the log")
        return
    if url is None or key_file is None:
        raise typer.BadParameter("give the URL of a log and --key-file, or --new-key alone")
    if to is not None and to.exists():
        raise typer.BadParameter(f"{to} exists; seals are proof, and are never overwritten")
    key = read_key(key_file)
    earlier = {} if previous is None else {seal.stream: seal for seal in _read_seals(previous, key)}
    seals = _seal_streams(url, stream, key, earlier)
    lines = [*encode_seals(seals, key)]
    if to is None:
        for line in lines:
            write_line(line)
    else:
        write_new(RealDisk(), to, b"".join(line + b"\n" for line in lines))
        RealDisk().sync_directory(to.parent)
    events = sum(each.events for each in seals)
    words.print(f"sealed {counted(len(seals), 'stream')}, {counted(events, 'event')}, with the key {key.id}")


def read_seals_for(stream: str | None, seals: Path | None, key_file: Path | None) -> tuple[list[Seal], SealKey] | None:
    """The seals that `verify` is to compare with, and their key; None where it was not asked to.

    Raises:
        InvalidSealKey, InvalidSeals: nothing can be compared.
    """
    if seals is None and key_file is None:
        return None
    if seals is None or key_file is None:
        raise typer.BadParameter("--seals and --key-file need each other")
    key = read_key(key_file)
    found = [seal for seal in _read_seals(seals, key) if stream in (None, seal.stream)]
    if not found:
        raise InvalidSeals(f"Nothing was compared: {seals} has no seal of the stream {stream!r}")
    return found, key


def seal_findings(log: EventLog, stream: str | None, seals: list[Seal], key: SealKey) -> Iterator[Finding]:
    """How the log differs from its seals: the whole log, or one stream."""
    if stream is None:
        return check_seals(log, seals, key)
    return (finding for seal in seals if (finding := check_seal(log, seal, key)) is not None)


def _seal_streams(url: str, stream: str | None, key: SealKey, earlier: dict[str, Seal]) -> list[Seal]:
    with open_log(url, create=False) as log:
        if stream is not None and log.stream(stream) is None:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
        every = earlier.keys() | {head.stream for head in log.heads(versions=False)}
        names = sorted(every) if stream is None else [stream]
        found = [_seal(log, name, key, earlier.get(name)) for name in track(names, "sealing", len(names))]
    seals = [each for each in found if each is not None]
    if not seals:
        raise InvalidSeals("Nothing was sealed: the log has no events")
    return seals


def _seal(log: EventLog, stream: str, key: SealKey, previous: Seal | None) -> Seal | None:
    try:
        return seal_stream(log, stream, key, previous)
    except Truncated as error:
        raise Truncated(
            f"The stream {stream!r} cannot be sealed, because the log was compacted: {error} "
            "To seal a compacted log, continue from a seal made before the compaction, with --previous",
            **error.details,
        ) from error


def _read_seals(path: Path, key: SealKey) -> list[Seal]:
    with path.open("rb") as file:
        return decode_seals([line for _, line in numbered_lines(file, seal_line_bytes_max)], key)
