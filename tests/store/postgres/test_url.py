"""What the URL of a PostgreSQL store may say."""

import re
import sys

import pytest
from tests.servers.pgbouncer import Pgbouncer

from perdure import Runtime
from perdure.errors import ConfigError, StoreError
from perdure.store.postgres.sql import pack_text, unpack_text
from perdure.store.postgres.store import PostgresStore
from perdure.store.postgres.url import parse_address


def test_what_is_ours_is_taken_out_and_the_rest_is_left_to_postgresql() -> None:
    address = parse_address(
        "postgres://ana:p%40ss@h:5433/d?listen=off&sslmode=require&schema=agents"
    )
    assert address.dsn == "postgres://ana:p%40ss@h:5433/d?sslmode=require"
    assert (address.schema, address.listen, address.advisory) == ("agents", False, True)
    assert not address.is_pooled
    assert parse_address("postgresql:///d?listen=off&advisory=off").is_pooled


def test_where_it_is_can_be_shown() -> None:
    assert parse_address("postgresql://ana:secret@h1,h2:5/shop?schema=x").where == "h1,h2:5/shop"
    assert parse_address("postgresql:///shop").where == "localhost/shop"


@pytest.mark.parametrize("option", ["listen=no", "advisory=", "schema=a;b", "schema=", "schema=A"])
def test_an_option_that_makes_no_sense_is_refused_without_the_password(option: str) -> None:
    with pytest.raises(ConfigError) as error:
        Runtime(f"postgresql://ana:secret@h/d?{option}")
    assert "secret" not in f"{error.value.to_json()}"


@pytest.mark.parametrize("letter", [*"/?#[]℀", "@x/", "@x?", "@x#"])
def test_no_part_of_a_password_is_taken_for_something_that_may_be_shown(letter: str) -> None:
    """G11: somebody has forgotten to encode it."""
    for url in (f"postgresql://ana:sec{letter}ret@h/d", f"postgresql://ana:123{letter}ret@h/d"):
        try:
            shown = f"{parse_address(url)!r} {parse_address(url).where}"
        except ConfigError as error:
            shown = f"{error.to_json()}"
        assert not {"sec", "ret", "123", "x"} & set(re.split(r"\W", shown))


def test_what_a_url_may_name_as_its_hosts() -> None:
    for hosts in ("h", "h:1", "h1:1,h2", "[::1]:5432", "10.0.0.1,[::1]", "ana:p%40@h:1"):
        assert parse_address(f"postgresql://{hosts}/d").dsn == f"postgresql://{hosts}/d"


async def test_without_its_driver_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError, match="asyncpg") as error:
        await PostgresStore("postgresql://h/d").open()
    assert error.value.hint == "pip install 'perdure[postgres]'"


async def test_a_server_that_is_not_there_is_told_in_one_line_without_the_password() -> None:
    with pytest.raises(StoreError, match=r"^127\.0\.0\.1:1/d cannot be reached: ") as error:
        await PostgresStore("postgresql://ana:secret@127.0.0.1:1/d").open()
    assert error.value.code == "STORE_UNAVAILABLE"
    assert "secret" not in f"{error.value.to_json()}"


async def test_a_pooler_that_is_not_told_of_is_named_as_such(
    pgbouncer: Pgbouncer, postgres_url: str
) -> None:
    with pytest.raises(StoreError, match="is a pooler") as error:
        await PostgresStore(parse_address(pgbouncer.through(postgres_url)).dsn).open()
    assert "listen=off&advisory=off" in str(error.value.hint)


@pytest.mark.parametrize("text", ["", "plain", "a\0b", "\1", "\0\1\2", "\1\1", "é\0😀"])
def test_any_text_comes_back_as_it_was(text: str) -> None:
    assert "\0" not in pack_text(text)
    assert unpack_text(pack_text(text)) == text


def test_the_order_of_texts_is_kept() -> None:
    texts = ["", "\0", "\0\0", "\0\1", "\0a", "\1", "\1\0", "\1a", "\2", "a", "a\0", "a\1", "ab"]
    assert sorted(texts, key=pack_text) == sorted(texts)


def test_a_switch_that_is_neither_on_nor_off_is_told_with_what_to_write() -> None:
    with pytest.raises(ConfigError, match="listen=maybe") as caught:
        parse_address("postgresql://127.0.0.1/x?listen=maybe")
    assert caught.value.hint == "write listen=off, or leave it out for on"
