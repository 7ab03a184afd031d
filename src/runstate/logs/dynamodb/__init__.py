"""A log in a DynamoDB table. The format is described in `docs/formats/dynamodb.md`."""

from runstate.logs.dynamodb.log import DynamoLog
from runstate.logs.dynamodb.url import open_url

__all__ = ["DynamoLog", "open_url"]
