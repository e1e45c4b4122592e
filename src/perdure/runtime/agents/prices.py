"""Prices and context windows of models: as configured, else from the genai-prices library.

That library comes with the model extras. It is imported at first use and makes no network
requests: its table is part of the installed version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.util import find_spec
from math import inf, isclose
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace as vary

from perdure import host
from perdure.core.options import check_options
from perdure.errors import ConfigError
from perdure.options import Price
from perdure.views.usage import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

_MILLION: Final = 1_000_000
_RATES: Final = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
_PROBE: Final = Usage(
    input_tokens=10_007, output_tokens=5_003, cache_read_tokens=3_001, cache_write_tokens=2_003
)
_EXAMPLE: Final = 'write {"openai:gpt-5.2": {"input": 1.75, "output": 14}}'
_DAY_S: Final = 86_400
_NO_TABLE: Final = frozenset({"", "scripted"})  # providers without prices


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """US dollars per million tokens; cache reads and writes cost as much as input by default."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def cost(self, usage: Usage) -> float:
        """Return the cost of one request."""
        read, written = usage.cache_read_tokens, usage.cache_write_tokens
        fresh = max(0, usage.input_tokens - read - written)
        dollars = (
            fresh * self.input
            + read * (self.input if self.cache_read is None else self.cache_read)
            + written * (self.input if self.cache_write is None else self.cache_write)
            + usage.output_tokens * self.output
        )
        return dollars / _MILLION


class Prices:
    """Prices by model, named as agents name theirs: `provider:model`."""

    def __init__(self, own: Mapping[str, Price] | None = None) -> None:
        prices = {} if own is None else own
        if not isinstance(prices, Mapping):
            problem = f"prices is {prices!r:.100} and must be a mapping from models to their prices"
            raise ConfigError(problem, code="PRICES_INVALID", hint=_EXAMPLE)
        self._own = {name: _price(name, rates) for name, rates in prices.items()}

    def with_cost(self, usage: Usage, *names: str) -> Usage:
        """Return the usage with its cost, at the price of the first of these models that has one.

        Without a price it has no cost. A cost that the provider reported is kept.
        """
        if usage.cost is not None:
            return usage
        for cost_of in (self._configured, _table_cost):
            for name in names:
                cost = cost_of(name, usage)
                if cost is not None:
                    return vary(usage, cost=round(cost, 12))
        return usage

    def _configured(self, name: str, usage: Usage) -> float | None:
        price = self._own.get(name)
        return None if price is None else price.cost(usage)


def context_window(name: str) -> int | None:
    """Return the context window of a model in tokens; None if it is not known."""
    entry = _table_entry(name)
    return None if entry is None else entry[1].context_window


def _table_cost(name: str, usage: Usage) -> float | None:
    daily = _rates(name, host.instant_ns() // (_DAY_S * 1_000_000_000))
    cached = usage.cache_read_tokens + usage.cache_write_tokens
    if daily is not None and cached <= usage.input_tokens <= daily[1]:
        return daily[0].cost(usage)
    return _library_cost(name, usage)


@lru_cache(maxsize=256)
def _rates(name: str, day: int) -> tuple[TokenPrice, float] | None:
    """Return a price that is constant for the day, and the input tokens up to which it holds.

    Cached, because the library takes half a millisecond to look up the same rates per request.
    """
    prices = _daily_prices(name, day)
    listed = [getattr(prices, key, None) for key in _RATES]
    rates = [getattr(rate, "base", rate) for rate in listed]  # longer requests may cost more
    if rates[0] is None or rates[1] is None:
        return None
    max_tokens = min(
        (tier.start for rate in listed for tier in getattr(rate, "tiers", ())), default=inf
    )
    price = TokenPrice(*(None if rate is None else float(rate) for rate in rates))  # type: ignore[arg-type]
    cost = _library_cost(name, _PROBE)
    is_complete = cost is not None and isclose(price.cost(_PROBE), cost)
    return (price, max_tokens) if is_complete and _PROBE.input_tokens <= max_tokens else None


def _daily_prices(name: str, day: int) -> Any:
    """Return the prices of a model on a day since 1970; None if unknown or not constant."""
    entry = _table_entry(name)
    if entry is None:
        return None
    listed = entry[1].prices
    rules = [price.constraint for price in listed] if isinstance(listed, list) else []
    if not all(rule is None or type(rule).__name__ == "StartDateConstraint" for rule in rules):
        return None
    return entry[1].get_prices(datetime.fromtimestamp(day * _DAY_S, UTC))


def _library_cost(name: str, usage: Usage) -> float | None:
    """Return the cost that the library calculates."""
    entry = _table_entry(name)
    if entry is None:
        return None
    from genai_prices import Usage as Used

    provider, model = entry
    try:
        used = Used(
            input_tokens=int(usage.input_tokens),
            output_tokens=int(usage.output_tokens),
            cache_read_tokens=int(usage.cache_read_tokens) or None,
            cache_write_tokens=int(usage.cache_write_tokens) or None,
        )
        return float(model.calc_price(used, provider).total_price)
    except (LookupError, ValueError):  # no price, or counts that do not fit together
        return None


@cache
def _table_entry(name: str) -> "tuple[Provider, ModelInfo] | None":
    """Return the library's entry of a model; None without one or without the library."""
    provider, _, model = name.partition(":")
    if provider in _NO_TABLE or not model or find_spec("genai_prices") is None:
        return None
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None


def _price(name: str, rates: Price) -> TokenPrice:
    if not isinstance(name, str) or ":" not in name:
        raise _invalid(name, "is not the name of a model", "name it as the agent does")
    check_options(rates, Price, f"prices: {name!r}", "PRICES_INVALID")
    for key, rate in rates.items():
        if not _is_amount(rate):
            raise _invalid(name, f"{key} is {rate!r} and must be a number, 0 or more")
    return TokenPrice(**rates)


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf


def _invalid(name: str, problem: str, hint: str | None = None) -> ConfigError:
    text = f"prices: {name!r}: {problem}"
    return ConfigError(text, code="PRICES_INVALID", hint=hint or "in US dollars per million tokens")
