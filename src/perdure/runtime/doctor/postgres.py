"""Checks of a store's PostgreSQL server: settings that lose data, or make it slow."""

from typing import Final

from perdure.findings.severities import Findings, failure, fine, warning
from perdure.store.postgres.connections import OLDEST
from perdure.store.postgres.inspect import PostgresServerInfo, known_schema
from perdure.views.durations import format_ms
from perdure.views.findings import Finding, Step

_SKEW_MS: Final = 5_000
_MANY_DEAD: Final = 100_000
_REPLICAS: Final = (
    "what is acknowledged survives a crash of the server, but a failover or the loss of its disk "
    "only with a synchronous replica"
)
# Settings that must be on, and what happens if they are off.
_REQUIRED: Final = {
    "fsync": "a power cut can destroy the whole database",
    "full_page_writes": "a power cut can leave pages half written",
    "synchronous_commit": "commits of other programs can be lost (perdure turns it on for its own)",
}
_REMEDIES: Final = {
    "transaction": ("end it", "SELECT pg_terminate_backend({});"),
    "prepared transaction": ("end it", "ROLLBACK PREPARED '{}';"),
    "replication slot": ("drop it if it is not needed", "SELECT pg_drop_replication_slot('{}');"),
}


def server_checks(server: PostgresServerInfo) -> Findings:
    """Yield all checks of the server, the most dangerous first."""
    yield _version(server)
    yield from _settings(server)
    yield _replicas(server)
    yield _clock(server)
    yield from _indexes(server)
    yield from _vacuum(server)


def schema_check(schema: int) -> Finding:
    """Compare the schema of the database with the newest that this program knows."""
    newest = known_schema()
    if schema == newest:
        return fine("SCHEMA", f"schema {newest}, the newest")
    if schema > newest:
        text = f"schema {schema}, of a newer perdure; this one knows {newest} and can use it"
        return fine("SCHEMA", text)
    return fine("SCHEMA", f"schema {schema}; perdure db migrate upgrades it to {newest}")


def _version(server: PostgresServerInfo) -> Finding:
    version = server.settings.get("server_version", "?")
    if int(server.settings.get("server_version_num", "0")) >= OLDEST:
        return fine("POSTGRES", f"PostgreSQL {version}")
    text = f"PostgreSQL {version}; perdure needs 13 or newer"
    return failure("POSTGRES_OLD", text, "upgrade the server")


def _settings(server: PostgresServerInfo) -> Findings:
    wrong = [name for name in _REQUIRED if server.settings.get(name) == "off"]
    for name in wrong:
        sql = f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();"
        text = f"{name} is off: {_REQUIRED[name]}"
        yield warning(name.upper(), text, steps=[_sql("turn it on", sql)])
    if not wrong:
        yield fine("SETTINGS", f"settings: {', '.join(_REQUIRED)} are on")


def _replicas(server: PostgresServerInfo) -> Finding:
    if server.synchronous:
        return fine("REPLICAS", f"replicas: {server.synchronous} synchronous of {server.replicas}")
    if server.settings.get("synchronous_standby_names"):
        text = "synchronous_standby_names is set, but no standby is connected: no commit returns"
        return failure("REPLICA_MISSING", text, "start the standby, or name another")
    return fine("REPLICAS", f"replicas: {server.replicas}, none synchronous; {_REPLICAS}")


def _clock(server: PostgresServerInfo) -> Finding:
    if abs(server.ahead_ms) <= _SKEW_MS:
        return fine("CLOCK_SKEW", "clock: this machine and the server agree")
    way = "ahead of" if server.ahead_ms > 0 else "behind"
    skew = format_ms(abs(server.ahead_ms) // 1000 * 1000)
    text = (
        f"the server's clock is {skew} {way} this machine's; deadlines and leases count by the "
        "server's, whatever the workers' clocks say"
    )
    show = Step(label="show the clock", command="timedatectl")
    return warning("CLOCK_SKEW", text, "set the clocks", steps=[show])


def _indexes(server: PostgresServerInfo) -> Findings:
    for name, sql in server.missing.items():
        text = f"the index {name} is missing or not valid: lookups read the whole table"
        create = sql.replace("INDEX ", "INDEX CONCURRENTLY ", 1)
        again = _sql("create it again", f"DROP INDEX IF EXISTS {name}; {create}")
        yield warning("INDEX_MISSING", text, steps=[again])
    if not server.missing:
        yield fine("INDEXES", "indexes: all exist and are valid")


def _vacuum(server: PostgresServerInfo) -> Findings:
    findings = [*_blockers(server), *_dead_rows(server)]
    if server.settings.get("autovacuum") == "off":
        sql = "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf();"
        text = "autovacuum is off: tables only grow"
        findings.append(warning("AUTOVACUUM", text, steps=[_sql("turn it on", sql)]))
    yield from findings or [fine("VACUUM", "vacuum: nothing blocks it")]


def _blockers(server: PostgresServerInfo) -> Findings:
    for blocker in server.blockers:
        age = blocker.age_ms
        since = "" if age is None else f" for {format_ms(age // 1000 * 1000)}"
        label, sql = _REMEDIES[blocker.kind]
        yield warning(
            "VACUUM_BLOCKED",
            f"the {blocker.kind} {blocker.name} has kept dead rows from being removed{since}",
            steps=[_sql(label, sql.format(blocker.name))],
        )


def _dead_rows(server: PostgresServerInfo) -> Findings:
    for table in server.tables:
        if table.dead_rows > max(_MANY_DEAD, table.rows):
            text = f"{table.name} has {table.dead_rows:,} dead rows beside {table.rows:,} live ones"
            yield warning("DEAD_ROWS", text, steps=[_sql("remove them", f"VACUUM {table.name};")])


def _sql(label: str, statement: str) -> Step:
    return Step(label=label, command=statement)
