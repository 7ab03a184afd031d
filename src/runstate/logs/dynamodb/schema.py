"""The table itself: made if it is not there, recognised if it is ours, left alone if it is not."""

from __future__ import annotations

import time
from contextlib import suppress

from runstate.errors import LogBusy, LogFailed, LogNotFound, LogTooNew, NotALog
from runstate.logs.dynamodb.items import format_key
from runstate.logs.dynamodb.refusals import Refused, code_of
from runstate.logs.dynamodb.table import Table, absent, equal, pause
from runstate.logs.log import now

format_version = 3
"""Version 2: heads have the attribute `model`, which version 1 takes for a change by hand. Version 3: the entry of a
blob names the partition of its parts, where version 2 would not look for them."""
_key_schema = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]
_attributes = [{"AttributeName": "pk", "AttributeType": "S"}, {"AttributeName": "sk", "AttributeType": "S"}]


def prepare(table: Table, *, create: bool) -> None:
    """Make sure that the table is a log of a version that we know; make it, if it is not there.

    Raises:
        LogNotFound: it is not there, and `create` is false.
        NotALog: the table holds something else.
        LogTooNew: a newer Runstate wrote it.
        LogFailed: DynamoDB cannot be reached, or does not let us in.
    """
    try:
        item = table.get(format_key, is_patient=False)
    except LogNotFound:
        if not create:
            raise
        _create(table)
        item = table.get(format_key)
    except LogFailed as error:
        # It has other keys than ours.
        if code_of(error.__cause__) == "ValidationException":
            raise NotALog(f"The table {table.name} has other keys than a log; it was left untouched") from error
        raise
    if item is None:
        _found(table, create=create)
    elif item.get("log") != "runstate" or not isinstance(item.get("version"), int):
        raise NotALog(f"The table {table.name} belongs to another application; it was left untouched")
    elif item["version"] > format_version:
        raise LogTooNew(
            f"The table has format version {item['version']}, this Runstate knows up to {format_version}; "
            "upgrade Runstate to open it. It was left untouched",
            version=item["version"],
        )
    elif item["version"] < format_version:
        # Another process may be faster; who may only read leaves it to those who write.
        with suppress(Refused, LogFailed):
            table.transact([table.put(item | {"version": format_version}, equal(version=item["version"]))])


def _create(table: Table) -> None:
    try:
        table.call(
            "create_table",
            TableName=table.name,
            KeySchema=_key_schema,
            AttributeDefinitions=_attributes,
            BillingMode="PAY_PER_REQUEST",
        )
    except LogFailed as error:
        # Another process was faster.
        if code_of(error.__cause__) != "ResourceInUseException":
            raise
    deadline = time.monotonic() + max(table.busy_timeout_s, 60)
    attempt = 0
    while True:
        described = table.call("describe_table", TableName=table.name)["Table"]
        if described["TableStatus"] == "ACTIVE":
            return
        if time.monotonic() > deadline:
            raise LogBusy(f"The table {table.name} is still {described['TableStatus']}; try again")
        pause(attempt)
        attempt += 1


def _found(table: Table, *, create: bool) -> None:
    """Make an empty table a log: a new one, or one that an operator has prepared."""
    if table.call("scan", TableName=table.name, Limit=1, ConsistentRead=True)["Items"]:
        raced = table.get(format_key)
        if raced is None:
            raise NotALog(f"The table {table.name} holds items of another application; it was left untouched")
        return prepare(table, create=create)
    if not create:
        raise LogNotFound(f"There is no log in the table {table.name}", table=table.name)
    pk, sk = format_key
    marked = {"pk": pk, "sk": sk, "log": "runstate", "version": format_version, "made_at": now()}
    try:
        table.transact([table.put(marked, absent)])
    except Refused:
        return prepare(table, create=create)  # Another process was faster.
    return None
