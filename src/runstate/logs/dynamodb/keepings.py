"""The snapshots that a log keeps beside events, in parts where one item would be too small."""

from __future__ import annotations

import secrets

from runstate.errors import StreamNotFound
from runstate.logs.dynamodb.appends import read_head
from runstate.logs.dynamodb.items import Head, pieces_of
from runstate.logs.dynamodb.refusals import Refused
from runstate.logs.dynamodb.table import Item, Key, Table, encoded, equal
from runstate.logs.log import StoredSnapshot, is_outdated, is_same_stream
from runstate.models.canonical import digest


def load_snapshot(table: Table, stream: str, model: str) -> StoredSnapshot | None:
    head = read_head(table, stream)
    for _ in range(3):
        item = None if head is None else table.get(snapshot_key(head, model))
        if item is None:
            return None
        if not _is_whole(item, model):
            return StoredSnapshot(model, 0, 0, "", b"")  # It was changed by hand: not intact.
        parts = _part_keys(item)
        found = table.get_many(parts)
        if len(found) == len(parts):
            body = b"".join(found[key]["data"] for key in parts) if parts else item.get("body", b"")
            return StoredSnapshot(model, item["version"], item["seq"], item["digest"], body)
        # A newer snapshot has taken its place, and its parts away.
    return None


def _is_whole(item: Item, model: str) -> bool:
    """Whether everything that a snapshot has is there, and is of its kind."""
    kinds = {"version": int, "seq": int, "digest": str} | ({"parts": int, "token": str} if "parts" in item else {})
    return item.get("model") == model and all(isinstance(item.get(name), kind) for name, kind in kinds.items())


def save_snapshot(table: Table, stream: str, snapshot: StoredSnapshot) -> None:
    """
    Raises:
        StreamNotFound: there is no such stream.
    """
    head = read_head(table, stream)
    if head is None:
        raise StreamNotFound(f"There is no stream {stream!r}", stream=stream)
    if not is_same_stream(head.first_at, snapshot.first_persisted_at):
        return
    is_there = table.check(head.key, equal(id=head.id))
    pk, sk = snapshot_key(head, snapshot.model)
    values: Item = {
        "pk": pk,
        "sk": sk,
        "model": snapshot.model,
        "version": snapshot.version,
        "seq": snapshot.seq,
        "digest": snapshot.digest,
    }
    old = table.get((pk, sk))
    if old is not None and not _is_whole(old, snapshot.model):
        table.delete_many([(pk, sk)])
        old = None
    # Stale already: its parts need not be written first. Whether it is newer is decided by the condition below.
    if old is not None and is_outdated(snapshot, old["version"], old["seq"], head.last_seq):
        return
    pieces = pieces_of(snapshot.body)
    if len(pieces) > 1:
        values |= {"parts": len(pieces), "token": secrets.token_hex(8)}
    else:
        values["body"] = snapshot.body
    try:
        for key, piece in zip(_part_keys(values), pieces, strict=False):
            table.transact([is_there, table.put({"pk": key[0], "sk": key[1], "data": piece})])
        table.transact([is_there, table.put(values, _newer_than_kept(snapshot, head.last_seq))])
    except Refused as refused:
        table.delete_many(_part_keys(values))
        if refused.failed[0]:
            raise StreamNotFound(f"There is no stream {stream!r}", stream=stream) from refused
        return
    if old is not None:
        table.delete_many(_part_keys(old))


def _newer_than_kept(snapshot: StoredSnapshot, last_seq: int) -> Item:
    return {
        "ConditionExpression": "attribute_not_exists(pk) OR #version <> :version OR #seq <= :seq OR #seq > :last",
        "ExpressionAttributeNames": {"#version": "version", "#seq": "seq"},
        "ExpressionAttributeValues": encoded({":version": snapshot.version, ":seq": snapshot.seq, ":last": last_seq}),
    }


def snapshot_key(head: Head, model: str) -> Key:
    return head.id, f"s{digest(model.encode('utf-8', 'surrogatepass'))}"


def _part_keys(snapshot: Item) -> list[Key]:
    return [(snapshot["pk"], f"p{snapshot['token']}{part:06d}") for part in range(snapshot.get("parts", 0))]
