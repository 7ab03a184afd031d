"""The tables of a Postgres log, and how an older schema becomes a newer one.

Migrations run in one transaction under an advisory lock, so many processes may open a new log at once.
"""

from __future__ import annotations

from typing import LiteralString

from psycopg import sql
from psycopg.errors import InsufficientPrivilege, ReadOnlySqlTransaction

from runstate.errors import InvalidUrl, LogFailed, LogNotFound, LogTooNew, NotALog
from runstate.logs.log import now
from runstate.logs.postgres.transactions import Connection, set_local

server_version_min = 130_000
"""Transaction ids of 64 bits, which never wrap around, came with Postgres 13."""
_migration_lock = 0x52554E53
"""`RUNS`, as an advisory lock of the whole database."""

_streams: LiteralString = """
CREATE TABLE streams (
    id                 bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream             text COLLATE "C" NOT NULL UNIQUE,
    tenant             text NOT NULL,
    last_seq           bigint NOT NULL,
    events             bigint NOT NULL,
    first_persisted_at text NOT NULL,
    last_persisted_at  text NOT NULL,
    transaction        xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (fillfactor = 80);
-- Room on each page for the next version of a head: it moves with every append, and no index of it changes.

"""

_event_columns: LiteralString = """
    transaction  xid8 NOT NULL DEFAULT pg_current_xact_id(),
    stream_id    bigint NOT NULL,
    seq          bigint NOT NULL,
    event_id     text NOT NULL,
    type         text NOT NULL,
    key          text COLLATE "C" NOT NULL,
    tenant       text NOT NULL,
    emitted_at   text NOT NULL,
    persisted_at text NOT NULL,
    crc          bigint NOT NULL,
    body         bytea NOT NULL,
    PRIMARY KEY (stream_id, seq),
    UNIQUE (stream_id, key)
"""

# The feed has its own index. A position alone is taken before its commit, and would let events appear behind a reader.
_events: LiteralString = (
    """
CREATE TABLE events (
    position     bigint GENERATED ALWAYS AS IDENTITY,"""
    + _event_columns
    + """);
CREATE UNIQUE INDEX events_feed ON events (transaction, position);
"""
)

# Postgres before 17 knows no identity column in a partitioned table, and a unique index there must hold the stream.
_partitioned_events: LiteralString = (
    """
CREATE SEQUENCE events_position_seq;
CREATE TABLE events (
    position     bigint NOT NULL DEFAULT nextval('events_position_seq'),"""
    + _event_columns
    + """) PARTITION BY HASH (stream_id);
ALTER SEQUENCE events_position_seq OWNED BY events.position;
CREATE INDEX events_feed ON events (transaction, position);
"""
)

_rest: LiteralString = """
CREATE TABLE snapshots (
    stream_id bigint NOT NULL,
    model     text NOT NULL,
    version   bigint NOT NULL,
    seq       bigint NOT NULL,
    digest    text NOT NULL,
    body      bytea NOT NULL,
    PRIMARY KEY (stream_id, model)
);

CREATE TABLE blobs (
    digest text COLLATE "C" PRIMARY KEY,
    data   bytea NOT NULL
);

-- FROM CURRENT: whoever deletes from psql has another search path, and the function must still find its tables.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    RAISE EXCEPTION 'events are append-only: correct a fact by a later fact' USING ERRCODE = 'restrict_violation';
END $$;

-- Retention removes whole streams: the row in streams goes first, and only then may its events go.
CREATE FUNCTION refuse_single_deletion() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM streams WHERE id = OLD.stream_id) THEN
        RAISE EXCEPTION 'events are append-only: delete the whole stream' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN OLD;
END $$;

CREATE TRIGGER events_are_never_updated BEFORE UPDATE ON events
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER events_are_never_truncated BEFORE TRUNCATE ON events
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER events_are_never_deleted_singly BEFORE DELETE ON events
FOR EACH ROW EXECUTE FUNCTION refuse_single_deletion();
"""

# The table's triggers for rows are also its partitions'; those for statements fire only for the table that was named.
_partition: LiteralString = """
CREATE TABLE {partition} PARTITION OF events FOR VALUES WITH (MODULUS {count}, REMAINDER {number});
CREATE TRIGGER events_are_never_updated BEFORE UPDATE ON {partition}
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER events_are_never_truncated BEFORE TRUNCATE ON {partition}
FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
"""

_version_2: LiteralString = """
ALTER TABLE streams ADD COLUMN model text NOT NULL DEFAULT '';

CREATE TABLE tombstones (
    stream     text COLLATE "C" PRIMARY KEY,
    tenant     text NOT NULL,
    last_seq   bigint NOT NULL,
    digest     text NOT NULL,
    archive    text NOT NULL,
    deleted_at text NOT NULL
);

-- The function below runs as its owner: without pg_temp at the end, a caller's temporary table would come first.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- An insert may have waited for the deletion to commit. Its own statement does not see the tombstone then; the query of
-- a volatile function does. As the owner: a policy may hide tombstones of other tenants, and stream ids are one set.
CREATE FUNCTION refuse_deleted_stream() RETURNS trigger LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tombstones WHERE stream = NEW.stream) THEN
        RAISE EXCEPTION 'the stream was deleted: restore it, or use another id' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER deleted_streams_are_never_begun_again AFTER INSERT ON streams
FOR EACH ROW EXECUTE FUNCTION refuse_deleted_stream();

-- Roles that were set up for version 1 keep working: the owner, privileges and policies are those of streams.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format(part, relowner::regrole) FROM pg_class, unnest(ARRAY[
            'ALTER TABLE tombstones OWNER TO %s', 'ALTER FUNCTION refuse_deleted_stream() OWNER TO %s'
        ]) AS part WHERE oid = 'streams'::regclass
        UNION ALL
        SELECT format(
            'GRANT %s ON tombstones TO %s',
            CASE privilege_type WHEN 'DELETE' THEN 'INSERT, DELETE' ELSE privilege_type END,
            CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
        ) FROM pg_class, aclexplode(relacl)
        WHERE oid = 'streams'::regclass AND privilege_type IN ('SELECT', 'DELETE')
        UNION ALL
        SELECT 'ALTER TABLE tombstones ENABLE ROW LEVEL SECURITY' FROM pg_class
        WHERE oid = 'streams'::regclass AND relrowsecurity
    LOOP
        EXECUTE command;
    END LOOP;
    FOR command IN
        SELECT concat(
            format('CREATE POLICY %I ON tombstones AS %s FOR %s TO ', policyname, permissive, cmd),
            (SELECT string_agg(CASE role WHEN 'public' THEN 'PUBLIC' ELSE quote_ident(role) END, ', ')
                FROM unnest(roles) AS role),
            ' USING (' || qual || ')', ' WITH CHECK (' || with_check || ')'
        ) FROM pg_policies WHERE schemaname = current_schema() AND tablename = 'streams'
    LOOP
        BEGIN
            EXECUTE command;
        EXCEPTION WHEN undefined_column OR undefined_table THEN
            RAISE WARNING 'Not done, write a policy for tombstones: %', command;
        END;
    END LOOP;
END $$;
"""
_version_3: LiteralString = """
-- A blob that nothing refers to is removed some time after it was put. Those from before count from now on.
ALTER TABLE blobs ADD COLUMN put_at timestamptz NOT NULL DEFAULT now();

-- Putting a blob again makes it new. Roles that put blobs keep working.
DO $$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format(
            'GRANT UPDATE (put_at) ON blobs TO %s',
            CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
        ) FROM pg_class, aclexplode(relacl) WHERE oid = 'blobs'::regclass AND privilege_type = 'INSERT'
    LOOP
        EXECUTE command;
    END LOOP;
END $$;
"""
migrations: list[LiteralString] = [_streams + _events + _rest, _version_2, _version_3]
"""The n-th turns version n into version n + 1. Published ones are never edited."""

_tables = "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s"
_exists = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
_partition_count = """
SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = 'events'
"""
_newest = "SELECT coalesce(max(version), 0) FROM $schema.runstate_version"


def prepare(connection: Connection, schema: str, *, create: bool, partitions: int | None) -> int:
    """Bring the schema to the newest version; make it, and its tables, if it is not there.

    Returns the version that it has then: an older one if this role may not change the tables. They can be read.

    Raises:
        LogNotFound: there is no log, and `create` is false.
        NotALog: the schema holds tables of somebody else.
        LogTooNew: a newer Runstate wrote it.
        LogFailed: the server is too old, or does not keep text in UTF-8.
        InvalidUrl: the log is there, with another number of partitions.
    """
    _check_server(connection)
    version = _version(connection, schema)
    if not create and version == 0:
        raise LogNotFound(f"There is no log in the schema {schema}", schema=schema)
    if version < len(migrations):
        try:
            with connection.transaction():
                # To see what was done while it waited for the lock: another process may have been faster.
                connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                connection.execute(set_local)
                # For this transaction alone: the migrations name their tables without the schema.
                connection.execute("SELECT set_config('search_path', %s, true)", (schema,))
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_migration_lock,))
                _migrate(connection, schema, partitions)
                version = len(migrations)
        except (InsufficientPrivilege, ReadOnlySqlTransaction):
            if not version:
                raise
    there = connection.execute(_partition_count, (schema,)).fetchone()
    if partitions is not None and there is not None and there[0] != partitions:
        raise InvalidUrl(
            f"The log has {there[0]} partitions, not {partitions}: they are chosen when a log is made. Leave them out "
            "of the URL, or copy the log to a new one"
        )
    return version


def _migrate(connection: Connection, schema: str, partitions: int | None) -> None:
    version = _version(connection, schema)
    if connection.execute(_exists, (schema,)).fetchone() is None:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    if version == 0:
        connection.execute("CREATE TABLE runstate_version (version bigint PRIMARY KEY, applied_at text NOT NULL)")
    for number in range(version, len(migrations)):
        if number == 0 and partitions:
            connection.execute(_streams + _partitioned_events + _rest)
            for part in range(partitions):
                names = {"partition": sql.Identifier(f"events_{part}"), "count": partitions, "number": part}
                connection.execute(sql.SQL(_partition).format(**names))
        else:
            connection.execute(migrations[number])
        connection.execute("INSERT INTO runstate_version VALUES (%s, %s)", (number + 1, now()))


def check_migrated(version: int) -> None:
    """
    Raises:
        LogFailed: the schema is of an older version, which can only be read.
    """
    if version < len(migrations):
        raise LogFailed(
            f"The schema has format version {version} and must be migrated to {len(migrations)} before it is written. "
            "Open the log once as the owner of its tables",
            version=version,
        )


def _check_server(connection: Connection) -> None:
    if connection.info.server_version < server_version_min:
        raise LogFailed(f"The server is Postgres {connection.info.server_version // 10_000}; a log needs 13 or newer")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise LogFailed(f"The database keeps text as {encoding}; a log needs one that was made with ENCODING 'UTF8'")


def _version(connection: Connection, schema: str) -> int:
    """The schema's version: 0 for a new one."""
    relations = {name for (name,) in connection.execute(_tables, (schema,))}
    if "runstate_version" not in relations:
        if relations:
            raise NotALog(f"The schema {schema} holds tables of another application; it was left untouched")
        return 0
    row = connection.execute(_newest).fetchone()
    version = int(row[0]) if row else 0
    if version > len(migrations):
        raise LogTooNew(
            f"The schema has format version {version}, this Runstate knows up to {len(migrations)}; "
            "upgrade Runstate to open it. It was left untouched",
            version=version,
        )
    return version
