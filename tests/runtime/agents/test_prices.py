"""What a request cost: by the configured price, else by the installed table, else not known."""

from typing import Any

import pytest
from msgspec.structs import replace

from perdure.errors import ConfigError
from perdure.options import Price
from perdure.runtime.agents import prices
from perdure.runtime.agents.prices import Prices, context_window
from perdure.runtime.models import Usage

USED = Usage(input_tokens=1_000_000, output_tokens=100_000)
CACHED = replace(USED, cache_read_tokens=500_000, cache_write_tokens=100_000)
OWN: Price = {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75}
SONNET = "anthropic:claude-sonnet-4-5"


@pytest.mark.parametrize(
    "price,usage,cost",
    [
        (OWN, USED, 4.5),
        (OWN, CACHED, 400_000 * 3e-6 + 0.15 + 0.375 + 1.5),
        ({"input": 3, "output": 15}, CACHED, 4.5),
        ({"input": 0, "output": 0}, CACHED, 0),
        (OWN, Usage(output_tokens=1), 15e-6),
    ],
)
def test_a_configured_price_is_for_a_million_tokens(
    price: Price, usage: Usage, cost: float
) -> None:
    priced = Prices({"acme:large": price}).with_cost(usage, "acme:large")
    assert priced == replace(usage, cost=pytest.approx(cost))


def test_the_table_knows_the_models_of_providers() -> None:
    usage = Usage(input_tokens=1000, output_tokens=100, cache_read_tokens=400)
    priced = Prices().with_cost(usage, SONNET)
    assert priced.cost is not None
    assert 0 < priced.cost < 1
    assert context_window(SONNET) == 200_000


@pytest.mark.parametrize(
    "name",
    [
        SONNET,
        "anthropic:claude-sonnet-4-6",
        "openai:gpt-4.1",
        "openai:gpt-5",
        "deepseek:deepseek-chat",
    ],
)
@pytest.mark.parametrize("tokens", [0, 10, 9_999, 150_000, 250_000, 1_000_000])
@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_a_cost_is_the_tables_however_it_is_found(name: str, tokens: int, share: float) -> None:
    usage = Usage(input_tokens=tokens, output_tokens=77, cache_read_tokens=int(tokens * share))
    priced = Prices().with_cost(usage, name)
    assert priced.cost == pytest.approx(prices._library_cost(name, usage))


def test_a_configured_price_counts_more_than_the_table() -> None:
    mine = Prices({SONNET: {"input": 1, "output": 0}})
    assert mine.with_cost(USED, "anthropic:claude-sonnet-4-5-20250929", SONNET) == replace(
        USED, cost=1
    )


@pytest.mark.parametrize("name", ["acme:large", "scripted:turns.json", "scripted", "None:None", ""])
def test_without_a_price_there_is_no_cost(name: str) -> None:
    assert Prices().with_cost(USED, name) == USED
    assert context_window(name) is None


def test_a_model_that_says_its_cost_is_believed() -> None:
    said = replace(USED, cost=7.0)
    assert Prices({"acme:large": OWN}).with_cost(said, "acme:large") == said


def test_counts_that_do_not_fit_together_have_no_cost() -> None:
    odd = Usage(input_tokens=10, output_tokens=1, cache_read_tokens=500)
    assert Prices().with_cost(odd, SONNET) == odd
    nothing = Usage(input_tokens=float("nan"))
    assert Prices().with_cost(nothing, SONNET).cost is None


def test_without_the_library_only_configured_prices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "find_spec", lambda _: None)
    forget()
    try:
        assert Prices().with_cost(USED, SONNET) == USED
        assert context_window(SONNET) is None
        assert Prices({SONNET: OWN}).with_cost(USED, SONNET) == replace(USED, cost=4.5)
    finally:
        forget()


def forget() -> None:
    prices._table_entry.cache_clear()
    prices._rates.cache_clear()


@pytest.mark.parametrize(
    "said,told",
    [
        ({"large": OWN}, "'large': is not the name of a model"),
        ({"acme:large": {"input": 1}}, "has no 'output', which it needs"),
        ({"acme:large": {**OWN, "input": -1}}, "input is -1"),
        ({"acme:large": {**OWN, "output": True}}, "output is True"),
        ({"acme:large": {**OWN, "cache_read": float("inf")}}, "cache_read is inf"),
        ({"acme:large": {**OWN, "cached": 1}}, "has an unknown key 'cached'"),
    ],
)
def test_a_price_that_cannot_be_one_is_refused(said: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        Prices(said)
    assert refused.value.code == "PRICES_INVALID"
