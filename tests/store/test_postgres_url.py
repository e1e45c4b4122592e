"""What the URL of a PostgreSQL store may say."""

import sys

import pytest

from holdfast import Runtime
from holdfast.errors import ConfigError, StoreError
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres_sql import packed, unpacked
from holdfast.store.postgres_url import address_of


def test_what_is_ours_is_taken_out_and_the_rest_is_left_to_postgresql() -> None:
    address = address_of("postgres://ana:p%40ss@h:5433/d?listen=off&sslmode=require&schema=agents")
    assert address.dsn == "postgres://ana:p%40ss@h:5433/d?sslmode=require"
    assert (address.schema, address.listen, address.advisory) == ("agents", False, True)
    assert not address.is_pooled
    assert address_of("postgresql:///d?listen=off&advisory=off").is_pooled


def test_where_it_is_can_be_shown() -> None:
    assert address_of("postgresql://ana:secret@h1,h2:5/shop?schema=x").where == "h1,h2:5/shop"
    assert address_of("postgresql:///shop").where == "localhost/shop"


@pytest.mark.parametrize("option", ["listen=no", "advisory=", "schema=a;b", "schema=", "schema=A"])
def test_an_option_that_makes_no_sense_is_refused_without_the_password(option: str) -> None:
    with pytest.raises(ConfigError) as error:
        Runtime(f"postgresql://ana:secret@h/d?{option}")
    assert "secret" not in f"{error.value.to_json()}"


async def test_without_its_driver_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError, match="asyncpg") as error:
        await PostgresStore("postgresql://h/d").open()
    assert error.value.hint == "pip install 'holdfast[postgres]'"


async def test_a_server_that_is_not_there_is_told_in_one_line_without_the_password() -> None:
    with pytest.raises(StoreError, match=r"^127\.0\.0\.1:1/d cannot be reached: ") as error:
        await PostgresStore("postgresql://ana:secret@127.0.0.1:1/d").open()
    assert error.value.code == "STORE_UNAVAILABLE"
    assert "secret" not in f"{error.value.to_json()}"


@pytest.mark.parametrize("text", ["", "plain", "a\0b", "\1", "\0\1\2", "\1\1", "é\0😀"])
def test_any_text_comes_back_as_it_was(text: str) -> None:
    assert "\0" not in packed(text)
    assert unpacked(packed(text)) == text


def test_the_order_of_texts_is_kept() -> None:
    texts = ["", "\0", "\0\0", "\0\1", "\0a", "\1", "\1\0", "\1a", "\2", "a", "a\0", "a\1", "ab"]
    assert sorted(texts, key=packed) == sorted(texts)
