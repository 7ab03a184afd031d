"""Blobs: an entry in the list of all, and parts in a partition that the entry names.

The parts are written before the entry, and removed after it. A blob that is put again after its removal gets another
partition, so that the removal of the old parts, which may be finished later and by others, never meets the new ones.
An entry without a time was put by an earlier version: a collection takes it for a new one.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import chain

from runstate.logs.blob_collection import Collected, Marked, refresh_s
from runstate.logs.blob_refs import blob_digest, checked_blob, mentioned_refs
from runstate.logs.dynamodb import deletion
from runstate.logs.dynamodb.items import blobs, garbage, last_text, pieces_of, set_aside
from runstate.logs.dynamodb.refusals import Refused
from runstate.logs.dynamodb.table import Item, Key, Table, absent, encoded, equal
from runstate.logs.log import BlobRef, now
from runstate.models.canonical import digest

_refresh = "SET #put_ms = :put_ms"
_names = {"#put_ms": "put_ms"}


def put_blob(table: Table, data: bytes) -> BlobRef:
    name = digest(data)
    entry, moment = table.get((blobs, name)), _milliseconds(table)
    if entry is not None and digest(blob_data(table, entry)) != name:  # It was changed.
        table.delete_many([(blobs, name), *_part_keys(entry)])
        entry = None
    if entry is None or not _is_kept(table, entry, moment):
        pieces = pieces_of(bytes(data))
        made = {"pk": blobs, "sk": name, "parts": len(pieces), "bytes": len(data), "put_ms": moment}
        made["partition"] = f"blob:{name}.{secrets.token_hex(8)}"
        for key, piece in zip(_part_keys(made), pieces, strict=True):
            table.call("put_item", TableName=table.name, Item=encoded({"pk": key[0], "sk": key[1], "data": piece}))
        try:
            # Last: what stands in the list is there as a whole.
            table.transact([table.put(made, absent)])
        except Refused:  # Another one was faster, or it was this one, and only the answer was lost.
            entry = table.get((blobs, name))
            if entry is not None and entry.get("partition") != made["partition"]:
                table.delete_many(_part_keys(made))
    return BlobRef(f"sha256:{name}")


def _is_kept(table: Table, entry: Item, moment: int) -> bool:
    """Whether a blob is there, and counts as new from now on."""
    if moment - entry.get("put_ms", 0) < refresh_s * 1000:
        return True
    try:
        key = (entry["pk"], entry["sk"])
        table.transact([table.update(key, _refresh, _names, {":put_ms": moment}, "attribute_exists(pk)")])
    except Refused:  # It was removed meanwhile.
        return False
    return True


def get_blob(table: Table, ref: BlobRef) -> bytes:
    """
    Raises:
        BlobNotFound: there is none of that digest.
        LogDamaged: its bytes no longer have that digest.
    """
    name = blob_digest(ref)
    entry = table.get((blobs, name)) if name else None
    return checked_blob(ref, None if entry is None else blob_data(table, entry))


def blob_data(table: Table, entry: Item) -> bytes:
    """The bytes of a blob in the list, as far as they are there."""
    keys = _part_keys(entry)
    found = table.get_many(keys)
    return b"".join(found[key]["data"] for key in keys if key in found)


def list_blobs(table: Table) -> Iterator[Item]:
    """The entries of all blobs."""
    return chain.from_iterable(table.query(blobs, "0", "g"))


def mark_set_aside(table: Table, marked: Marked) -> None:
    """Mark what the events that repairs have set aside refer to."""
    for notes in table.query(set_aside, "0", last_text):
        for note in notes:
            for pages in table.query(note["sk"], "e", "f"):
                for page in pages:
                    for value in page.values():
                        if isinstance(value, bytes):
                            marked.refs.update(mentioned_refs(value))


def collect(table: Table, marked: Marked, *, dry_run: bool) -> Collected:
    """Remove what is not marked and was put long enough ago, or say what that is."""
    put_before = int(marked.put_before * 1000)
    entries = {BlobRef(f"sha256:{entry['sk']}"): entry for entry in list_blobs(table)}

    def is_removed(ref: BlobRef, entry: Item) -> bool:
        put_ms = entry.get("put_ms")
        if put_ms is None and not dry_run:
            _is_kept(table, entry, _milliseconds(table))
        if put_ms is None or put_ms >= put_before or ref in marked.refs:
            return False
        return dry_run or _remove(table, entry)

    found = [(ref, entry["bytes"], is_removed(ref, entry)) for ref, entry in entries.items()]
    if not dry_run:
        deletion.collect(table)
    return marked.sort(found, dry_run=dry_run)


def _remove(table: Table, entry: Item) -> bool:
    """Take a blob out of the list, unless it was put again; its parts are noted as garbage in the same step."""
    note = {"pk": garbage, "sk": _partition(entry), "at": now()}
    try:
        table.transact([table.delete((entry["pk"], entry["sk"]), equal(put_ms=entry["put_ms"])), table.put(note)])
    except Refused:
        return table.get((entry["pk"], entry["sk"])) is None
    return True


def _partition(entry: Item) -> str:
    """Where the parts are. Earlier versions did not write it into the entry."""
    return str(entry.get("partition", f"blob:{entry['sk']}"))


def _part_keys(entry: Item) -> list[Key]:
    return [(_partition(entry), f"{number:06d}") for number in range(entry["parts"])]


def _milliseconds(table: Table) -> int:
    return int(table.clock.time() * 1000)
