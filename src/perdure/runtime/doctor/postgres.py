"""What is wrong with the PostgreSQL server of a store: what loses data, what makes it slow."""

from typing import Final

from perdure.core.durations import format_ms
from perdure.runtime.doctor.checks import Check, Checks, fine
from perdure.store.postgres.connections import OLDEST
from perdure.store.postgres.inspect import Server, known_schema

_SKEW_MS: Final = 5_000
_MANY_DEAD: Final = 100_000
_REPLICAS: Final = (
    "what is acknowledged survives a crash of the server, but a failover or the loss of its disk "
    "only with a synchronous replica"
)
# Settings that must be on, and what happens else.
_LOSES: Final = {
    "fsync": "a power cut can destroy the whole database",
    "full_page_writes": "a power cut can leave pages half written",
    "synchronous_commit": "commits of others can be lost (perdure turns it on for its own)",
}
_REMEDIES: Final = {
    "transaction": "end it: SELECT pg_terminate_backend({});",
    "prepared transaction": "end it: ROLLBACK PREPARED '{}';",
    "replication slot": "drop it, if nobody needs it: SELECT pg_drop_replication_slot('{}');",
}


def server_checks(server: Server) -> Checks:
    """Everything about the server, most dangerous first."""
    yield _version(server)
    yield from _settings(server)
    yield _replicas(server)
    yield _clock(server)
    yield from _indexes(server)
    yield from _vacuum(server)


def schema_check(schema: int) -> Check:
    """Whether the database has the schema that this program knows."""
    known = known_schema()
    if schema == known:
        return fine("SCHEMA", f"schema {known}, the newest")
    if schema > known:
        text = f"schema {schema}, which a newer perdure made; this one knows {known} and fits"
        return fine("SCHEMA", text)
    return fine("SCHEMA", f"schema {schema}; perdure db migrate makes it {known}")


def _version(server: Server) -> Check:
    version = server.settings.get("server_version", "?")
    if int(server.settings.get("server_version_num", "0")) >= OLDEST:
        return fine("POSTGRES", f"PostgreSQL {version}")
    text = f"PostgreSQL {version}; perdure needs 13 or newer"
    return Check("finding", "POSTGRES_OLD", text, "upgrade the server")


def _settings(server: Server) -> Checks:
    wrong = [name for name in _LOSES if server.settings.get(name) == "off"]
    for name in wrong:
        yield Check(
            "finding",
            name.upper(),
            f"{name} is off: {_LOSES[name]}",
            f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();",
            {"setting": name},
        )
    if not wrong:
        yield fine("SETTINGS", f"settings: {', '.join(_LOSES)} are on")


def _replicas(server: Server) -> Check:
    if server.synchronous:
        return fine("REPLICAS", f"replicas: {server.synchronous} synchronous of {server.replicas}")
    if server.settings.get("synchronous_standby_names"):
        text = "synchronous_standby_names is set, and none of them is here: no commit is answered"
        return Check("finding", "REPLICA_MISSING", text, "start the standby, or name another")
    return fine("REPLICAS", f"replicas: {server.replicas}, none synchronous; {_REPLICAS}")


def _clock(server: Server) -> Check:
    if abs(server.ahead_ms) <= _SKEW_MS:
        return fine("CLOCK_SKEW", "clock: this machine and the server agree")
    way = "ahead of" if server.ahead_ms > 0 else "behind"
    skew = format_ms(abs(server.ahead_ms) // 1000 * 1000)
    return Check(
        "finding",
        "CLOCK_SKEW",
        f"the server's clock is {skew} {way} this machine's; deadlines and leases count by the "
        "server's, whatever the workers' clocks say",
        "set the clocks (timedatectl)",
        {"aheadMs": server.ahead_ms},
    )


def _indexes(server: Server) -> Checks:
    for name, sql in server.missing.items():
        text = f"the index {name} is missing or not valid: lookups walk through the whole table"
        made = sql.replace("INDEX ", "INDEX CONCURRENTLY ", 1)
        remedy = f"DROP INDEX IF EXISTS {name}; {made}"
        yield Check("finding", "INDEX_MISSING", text, remedy, {"index": name})
    if not server.missing:
        yield fine("INDEXES", "indexes: all are there and valid")


def _vacuum(server: Server) -> Checks:
    found = [*_blockers(server), *_dead(server)]
    if server.settings.get("autovacuum") == "off":
        remedy = "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf();"
        found.append(Check("finding", "AUTOVACUUM", "autovacuum is off: tables only grow", remedy))
    yield from found or [fine("VACUUM", "vacuum: nothing is in its way")]


def _blockers(server: Server) -> Checks:
    for one in server.blockers:
        since = "" if one.age_ms is None else f" for {format_ms(one.age_ms // 1000 * 1000)}"
        yield Check(
            "finding",
            "VACUUM_BLOCKED",
            f"the {one.kind} {one.name} has kept dead rows from being removed{since}",
            _REMEDIES[one.kind].format(one.name),
            {"kind": one.kind, "name": one.name},
        )


def _dead(server: Server) -> Checks:
    for table in server.tables:
        if table.dead_rows > max(_MANY_DEAD, table.rows):
            text = f"{table.name} has {table.dead_rows:,} dead rows beside {table.rows:,} live ones"
            yield Check("finding", "DEAD_ROWS", text, f"VACUUM {table.name};")
