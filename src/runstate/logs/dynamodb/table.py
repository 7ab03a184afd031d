"""The one table: requests that are tried again while DynamoDB is busy, and items as plain values.

Retries are ours, not the driver's: they go on until a deadline, with full jitter, and they know which requests may
have been done though no answer came.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Condition
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoRegionError
from botocore.loaders import create_loader
from botocore.parsers import ResponseParserError
from botocore.session import get_session

from runstate.errors import AppendOutcomeUnknown, InvalidUrl, LogBusy, LogClosed, LogFailed
from runstate.logs.dynamodb.clock import ServerClock
from runstate.logs.dynamodb.refusals import Refused, Trouble, reasons_of, translate, trouble

Item = dict[str, Any]
"""An item's attributes: text, whole numbers, bytes."""
Key = tuple[str, str]
"""`pk` and `sk`."""
Action = dict[str, Any]
"""One part of a transaction."""

busy_timeout_default_s = 30.0
actions_max = 100
"""What DynamoDB takes in one transaction."""
_pause_min_s, _pause_max_s = 0.01, 1.0
_connect_timeout_s, _read_timeout_s = 3, 10
_get_max, _write_max = 100, 25
_descriptions = create_loader()


class Table:
    """A table by its name. Threads may share it; a forked child must make its own."""

    def __init__(self, name: str, *, region: str | None, endpoint: str | None, busy_timeout_s: float) -> None:
        self.name, self.busy_timeout_s, self.clock = name, busy_timeout_s, ServerClock()
        self._idle = Condition()
        self._under_way = 0
        self._closed = False
        settings = Config(
            connect_timeout=_connect_timeout_s,
            read_timeout=_read_timeout_s,
            retries={"total_max_attempts": 1},
            max_pool_connections=50,
            user_agent_extra="runstate",
        )
        try:
            # boto3's lower half: its upper one has nothing for us, and would read the service's description each time.
            session = get_session()
            session.register_component("data_loader", _descriptions)
            self._client = session.create_client("dynamodb", region_name=region, endpoint_url=endpoint, config=settings)
        except NoRegionError as error:
            raise InvalidUrl("No region is configured: add ?region=REGION to the URL, or set AWS_REGION") from error
        except (BotoCoreError, ValueError) as error:
            raise translate(error, name) from error

    def close(self) -> None:
        """Let requests that were sent come to their end, and no more be sent."""
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: self._under_way == 0)
        self._client.close()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._idle:
            if self._closed:
                raise LogClosed()
            self._under_way += 1
        try:
            yield
        finally:
            with self._idle:
                self._under_way -= 1
                self._idle.notify_all()

    # --- requests --------------------------------------------------------------------------------------

    def call(self, operation: str, **request: Any) -> Item:
        """`_call`, while the table is open.

        Raises:
            LogClosed: it is not; nothing was sent.
        """
        with self._counted():
            return self._call(operation, **request)

    def _call(self, operation: str, *, is_patient: bool = True, is_write: bool = False, **request: Any) -> Item:
        """Send a request, again and again while it is worth it; what is sent twice must do the same as once.

        Raises:
            Refused: a condition did not hold.
            AppendOutcomeUnknown: a write was sent, and no answer came until the deadline.
            LogBusy, LogFailed, …: nothing was done.
        """
        deadline = time.monotonic() + self.busy_timeout_s
        was_lost = False
        for attempt in range(1_000_000):
            try:
                sent_at = self.clock.time()
                answer: Item = getattr(self._client, operation)(**request)
                self.clock.note(answer["ResponseMetadata"]["HTTPHeaders"].get("date", ""), sent_at)
                return answer
            except (ClientError, BotoCoreError, ResponseParserError) as error:
                kind = trouble(error)
                if kind is Trouble.REFUSED:
                    failed = [reason.get("Code") == "ConditionalCheckFailed" for reason in reasons_of(error)]
                    raise Refused(failed, was_lost) from error
                was_lost = was_lost or (is_write and kind is Trouble.LOST)
                is_hopeless = kind is Trouble.FAILED or not (is_patient or kind is Trouble.BUSY)
                if is_hopeless or time.monotonic() > deadline:
                    raise self._given_up(kind, error, was_lost, is_patient) from error
            pause(attempt)
        raise LogBusy()

    def _given_up(self, kind: Trouble, error: Exception, was_lost: bool, is_patient: bool) -> Exception:
        if was_lost:
            return AppendOutcomeUnknown(
                f"It may or may not be written: no answer came ({error}); look, or send the same keys again"
            )
        if kind is Trouble.FAILED:
            return translate(error, self.name)
        if not is_patient and kind is not Trouble.BUSY:
            return LogFailed(f"DynamoDB cannot be reached: {error}; check the region, the endpoint and the network")
        return LogBusy(f"DynamoDB could not do it within {self.busy_timeout_s:g} s ({error}); try again")

    def get(self, key: Key, *, is_patient: bool = True) -> Item | None:
        answer = self.call(
            "get_item", TableName=self.name, Key=encoded_key(key), ConsistentRead=True, is_patient=is_patient
        )
        return decoded(answer["Item"]) if "Item" in answer else None

    def get_many(self, keys: Iterable[Key]) -> dict[Key, Item]:
        """Those that are there, each read after everything that was written before the call."""
        found: dict[Key, Item] = {}
        for some in chunks(list(dict.fromkeys(keys)), _get_max):
            rest = [encoded_key(key) for key in some]
            for attempt in range(1_000_000):
                asked = {self.name: {"Keys": rest, "ConsistentRead": True}}
                answer = self.call("batch_get_item", RequestItems=asked)
                for raw in answer["Responses"].get(self.name, ()):
                    item = decoded(raw)
                    found[item["pk"], item["sk"]] = item
                rest = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys")
                if not rest:
                    break
                if answer["Responses"].get(self.name):
                    continue  # The answer was full, 16 MB; DynamoDB is not busy.
                pause(attempt)
        return found

    def query(self, pk: str, low: str, high: str, *, limit: int | None = None, **options: Any) -> Iterator[list[Item]]:
        """Items with `low <= sk <= high`, ascending, in pages of up to 1 MB; at most `limit` of them."""
        request: Item = {
            "TableName": self.name,
            "ConsistentRead": True,
            "KeyConditionExpression": "pk = :pk AND sk BETWEEN :low AND :high",
            "ExpressionAttributeValues": encoded({":pk": pk, ":low": low, ":high": high}),
            **options,
        }
        if low > high:
            return
        while limit is None or limit > 0:
            if limit is not None:
                request["Limit"] = limit
            answer = self.call("query", **request)
            if answer["Items"]:
                yield [decoded(raw) for raw in answer["Items"]]
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
            limit = None if limit is None else limit - len(answer["Items"])

    def transact(self, actions: list[Action], token: str | None = None) -> None:
        """Do all or nothing. The same token makes a second sending of the same actions, after a lost answer, one."""
        named: Item = {} if token is None else {"ClientRequestToken": token}
        self.call("transact_write_items", TransactItems=actions, is_write=True, **named)

    def delete_many(self, keys: Iterable[Key]) -> None:
        for some in chunks(list(keys), _write_max):
            rest = {self.name: [{"DeleteRequest": {"Key": encoded_key(key)}} for key in some]}
            for attempt in range(1_000_000):
                rest = self.call("batch_write_item", RequestItems=rest).get("UnprocessedItems", {})
                if not rest:
                    break
                pause(attempt)

    # --- parts of transactions -------------------------------------------------------------------------

    def put(self, item: Item, condition: Item | None = None) -> Action:
        return {"Put": {"TableName": self.name, "Item": encoded(item), **(condition or {})}}

    def delete(self, key: Key, condition: Item | None = None) -> Action:
        return {"Delete": {"TableName": self.name, "Key": encoded_key(key), **(condition or {})}}

    def check(self, key: Key, condition: Item) -> Action:
        return {"ConditionCheck": {"TableName": self.name, "Key": encoded_key(key), **condition}}

    def update(self, key: Key, expression: str, names: Mapping[str, str], values: Item, condition: str = "") -> Action:
        update: Item = {
            "TableName": self.name,
            "Key": encoded_key(key),
            "UpdateExpression": expression,
            "ExpressionAttributeNames": dict(names),
            "ExpressionAttributeValues": encoded(values),
        }
        return {"Update": update | ({"ConditionExpression": condition} if condition else {})}


absent: Item = {"ConditionExpression": "attribute_not_exists(pk)"}


def equal(**values: str | int) -> Item:
    """The condition that an item is there and has these values."""
    return {
        "ConditionExpression": " AND ".join(f"#{name} = :{name}" for name in values),
        "ExpressionAttributeNames": {f"#{name}": name for name in values},
        "ExpressionAttributeValues": encoded({f":{name}": value for name, value in values.items()}),
    }


def pause(attempt: int) -> None:
    """Full jitter: anything between nothing and a time that doubles, so that those who collided meet no more."""
    time.sleep(random.uniform(0, min(_pause_max_s, _pause_min_s * 2 ** min(attempt, 10))))  # noqa: S311 - no secret


def chunks(things: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(things), size):
        yield things[start : start + size]


def encoded_key(key: Key) -> Item:
    return {"pk": {"S": key[0]}, "sk": {"S": key[1]}}


def encoded(values: Item) -> Item:
    return {name: _typed(value) for name, value in values.items()}


def _typed(value: str | int | bytes) -> Item:
    if isinstance(value, str):
        return {"S": value}
    return {"N": str(value)} if isinstance(value, int) else {"B": value}


def decoded(item: Item) -> Item:
    """Text, whole numbers and bytes as they are; whatever else somebody has put there stays as DynamoDB says it."""
    return {name: _plain(value) for name, value in item.items()}


def _plain(typed: Item) -> Any:
    ((kind, value),) = typed.items()
    if kind == "N" and value.removeprefix("-").isdecimal():
        return int(value)
    return value if kind in ("S", "B") else typed
