"""A log in a schema of a Snowflake database. The format is described in `docs/formats/snowflake.md`."""

from runstate.logs.snowflake.log import SnowflakeLog
from runstate.logs.snowflake.url import open_url

__all__ = ["SnowflakeLog", "open_url"]
