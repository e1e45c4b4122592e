"""What somebody is told whose PostgreSQL cannot be used as they said: one line, and no password."""

import json
from collections.abc import Iterator

import anyio
import pytest
from tests.servers.fixtures import wanted
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.postgres import PostgresServer
from tests.support.cli_project import Shop

from perdure.errors import StoreError
from perdure.store.postgres.connections import check_server
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.url import parse_address

SECRET = "top-secret"  # noqa: S105 - of nobody
COMMANDS = (["db", "stats"], ["doctor"], ["db", "migrate"], ["sessions", "list"], ["db", "copy"])


def told(shop: Shop, url: str) -> Iterator[tuple[int, str, str]]:
    """What every command says to a store: exit code, code and text."""
    for words in COMMANDS:
        where = [url, "sqlite:///copy.db"] if words[-1] == "copy" else ["--store", url]
        done = shop.run(*words, *where, "--json", app=None)
        assert SECRET not in done.output
        assert "Traceback" not in done.output
        said = json.loads(done.stderr or done.stdout)
        if "findings" in said:  # of a doctor who could look at something
            wrong = said["findings"][0]
            text, *notes = wrong["text"].split("\n")
            said = {"error": text, "hint": "; ".join(notes), "code": wrong["code"]}
        assert said["hint"]
        assert "\n" not in said["error"]
        yield done.exit_code, said["code"], said["error"]


@pytest.fixture(scope="module")
def visitor(postgres: PostgresServer) -> str:
    """Somebody who may come in and nothing else."""
    postgres.psql(f"CREATE ROLE visitor LOGIN PASSWORD '{SECRET}'")
    return f"postgresql://visitor:{SECRET}@127.0.0.1:{postgres.place.port}"


def test_a_server_that_is_not_there(shop: Shop) -> None:
    for exit_code, code, text in told(shop, f"postgresql://ana:{SECRET}@127.0.0.1:1/d"):
        assert (exit_code, code) == (1, "STORE_UNAVAILABLE")
        assert text.startswith("127.0.0.1:1/d cannot be reached: ")


def test_a_wrong_password(shop: Shop, postgres: PostgresServer) -> None:
    url = f"postgresql://perdure:{SECRET}@127.0.0.1:{postgres.place.port}/postgres"
    for exit_code, code, text in told(shop, url):
        assert (exit_code, code) == (1, "STORE_ACCESS_DENIED")
        assert "refused the login" in text


def test_a_database_that_is_not_there(shop: Shop, visitor: str) -> None:
    for exit_code, code, text in told(shop, f"{visitor}/nowhere"):
        assert (exit_code, code) == (1, "STORE_NOT_FOUND")
        assert "nowhere does not exist" in text


def test_a_user_who_may_not_use_what_is_there(
    shop: Shop, postgres: PostgresServer, visitor: str
) -> None:
    url = postgres.new_database()
    database = url.rpartition("/")[2]
    anyio.run(PostgresStore(url).migrate)
    answers = list(told(shop, f"{visitor}/{database}"))
    assert {answer[:2] for answer in answers} == {(1, "STORE_ACCESS_DENIED")}
    postgres.psql(
        "GRANT USAGE ON SCHEMA perdure TO visitor;"
        "GRANT SELECT ON ALL TABLES IN SCHEMA perdure TO visitor",
        database,
    )
    reading = ("--store", f"{visitor}/{database}")
    for words in (["db", "stats"], ["doctor"], ["sessions", "list"]):  # reading is enough for these
        assert shop.run(*words, *reading, app=None).exit_code == 0
    done = shop.run("db", "copy", "sqlite:///shop.db", reading[1], "--json", app=None)
    assert done.exit_code != 0


def test_an_option_that_makes_no_sense(shop: Shop, visitor: str) -> None:
    for option in ("sslmode=bogus", "sslrootcert=/nowhere/ca.pem", "target_session_attrs=any-one"):
        assert {answer[:2] for answer in told(shop, f"{visitor}/postgres?{option}")} == {
            (2, "CONFIG_INVALID")
        }
    for _, code, text in told(shop, f"{visitor}/postgres?connect_timeout=3"):
        assert code == "CONFIG_INVALID"
        assert "connect_timeout" in text


def test_tls_that_the_server_has_not(shop: Shop, visitor: str) -> None:
    for exit_code, code, text in told(shop, f"{visitor}/postgres?sslmode=require"):
        assert (exit_code, code) == (1, "STORE_UNAVAILABLE")
        assert "SSL" in text


def test_a_source_that_is_not_there_is_not_made(shop: Shop, postgres_url: str) -> None:
    done = shop.run("db", "copy", f"{postgres_url}?schema=typo", "files:copy", "--json", app=None)
    assert json.loads(done.stderr)["code"] == "STORE_NOT_FOUND"
    done = shop.run("db", "stats", "--store", f"{postgres_url}?schema=typo", "--json", app=None)
    assert json.loads(done.stderr)["code"] == "STORE_NOT_FOUND"


async def test_a_pooler_that_swallows_our_settings_is_named_as_such(
    pgbouncer_that_ignores: Pgbouncer, postgres_url: str
) -> None:
    """Else prepared statements would be missing now and then, and commits not be synced."""
    with pytest.raises(StoreError, match="is a pooler") as error:
        await PostgresStore(pgbouncer_that_ignores.through(postgres_url)).open()
    assert error.value.code == "STORE_POOLED"
    assert "listen=off&advisory=off" in str(error.value.hint)


@pytest.fixture
def pgbouncer_that_ignores(postgres: PostgresServer) -> Iterator[Pgbouncer]:
    """One that lets every connection say what it likes, and does not listen."""
    names = "lock_timeout, statement_timeout, jit, search_path, synchronous_commit, "
    names += "enable_seqscan, enable_hashjoin, enable_mergejoin, default_transaction_isolation, "
    names += "idle_in_transaction_session_timeout"
    pooler = wanted(lambda: Pgbouncer(postgres, f"ignore_startup_parameters = {names}"))
    yield pooler
    pooler.end()


def test_a_server_that_is_too_old_is_refused() -> None:
    address = parse_address(f"postgresql://ana:{SECRET}@h/d")
    with pytest.raises(StoreError, match="PostgreSQL 12; perdure needs 13 or newer") as error:
        check_server(address, 120_022, "UTF8", "perdure")
    assert error.value.code == "STORE_TOO_OLD"
    check_server(address, 130_000, "UTF8", "perdure")
