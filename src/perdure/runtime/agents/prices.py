"""What requests cost, and how much a model takes in: as configured, else as genai-prices says.

That library comes with the model extras. It is imported when it is first needed and asks no
network: its table is the one of the version that is installed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.util import find_spec
from math import inf, isclose
from time import time
from typing import TYPE_CHECKING, Any, Final

from perdure.core.session.usage import Usage
from perdure.errors import ConfigError

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

_MILLION: Final = 1_000_000
_KEYS: Final = ("input", "output", "cache_read", "cache_write")
_RATES: Final = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
_PROBE: Final = {
    "inputTokens": 10_007,
    "outputTokens": 5_003,
    "cacheReadTokens": 3_001,
    "cacheWriteTokens": 2_003,
}
_DAY_S: Final = 86_400
_NO_TABLE: Final = frozenset({"", "scripted"})  # providers that nobody has prices of


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens; what is cached costs as other input unless it is said."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def cost(self, usage: Usage) -> float:
        """What one request cost."""
        read, written = usage.get("cacheReadTokens", 0), usage.get("cacheWriteTokens", 0)
        fresh = max(0, usage.get("inputTokens", 0) - read - written)
        dollars = (
            fresh * self.input
            + read * (self.input if self.cache_read is None else self.cache_read)
            + written * (self.input if self.cache_write is None else self.cache_write)
            + usage.get("outputTokens", 0) * self.output
        )
        return dollars / _MILLION


class Prices:
    """Prices by model, named as agents name theirs: `provider:model`."""

    def __init__(self, own: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._own = {name: _price(name, said) for name, said in (own or {}).items()}

    def priced(self, usage: Usage | None, *names: str) -> Usage | None:
        """The usage of a request with its cost, by the first of these models that has a price.

        Without one there is no cost. A model that says what it cost itself is believed.
        """
        if not usage or "cost" in usage:
            return usage
        for cost_of in (self._configured, _listed):
            for name in names:
                cost = cost_of(name, usage)
                if cost is not None:
                    return {**usage, "cost": round(cost, 12)}
        return usage

    def _configured(self, name: str, usage: Usage) -> float | None:
        price = self._own.get(name)
        return None if price is None else price.cost(usage)


def window(name: str) -> int | None:
    """How many tokens a model takes in; None if that is not known."""
    found = _found(name)
    return None if found is None else found[1].context_window


def _listed(name: str, usage: Usage) -> float | None:
    known = _rates(name, int(time() // _DAY_S))
    given = usage.get("inputTokens", 0)
    cached = usage.get("cacheReadTokens", 0) + usage.get("cacheWriteTokens", 0)
    if known is not None and cached <= given <= known[1]:
        return known[0].cost(usage)
    return _calculated(name, usage)


@lru_cache(maxsize=256)
def _rates(name: str, day: int) -> tuple[Price, float] | None:
    """The price of a model that costs the same all day, and up to how many tokens given.

    The library takes half a millisecond for each request, to find the same rates again.
    """
    prices = _of_the_day(name, day)
    said = [getattr(prices, key, None) for key in _RATES]
    rates = [getattr(one, "base", one) for one in said]  # longer requests may cost more
    if rates[0] is None or rates[1] is None:
        return None
    most = min((tier.start for one in said for tier in getattr(one, "tiers", ())), default=inf)
    price = Price(*(None if one is None else float(one) for one in rates))  # type: ignore[arg-type]
    cost = _calculated(name, _PROBE)
    is_all = cost is not None and isclose(price.cost(_PROBE), cost)
    return (price, most) if is_all and _PROBE["inputTokens"] <= most else None


def _of_the_day(name: str, day: int) -> Any:
    """What a model costs on a day since 1970; None if that depends on the hour, or is not known."""
    found = _found(name)
    if found is None:
        return None
    listed = found[1].prices
    rules = [one.constraint for one in listed] if isinstance(listed, list) else []
    if not all(one is None or type(one).__name__ == "StartDateConstraint" for one in rules):
        return None
    return found[1].get_prices(datetime.fromtimestamp(day * _DAY_S, UTC))


def _calculated(name: str, usage: Usage) -> float | None:
    """What the library says that it cost."""
    found = _found(name)
    if found is None:
        return None
    from genai_prices import Usage as Used

    provider, model = found
    try:
        used = Used(
            input_tokens=_count(usage, "inputTokens"),
            output_tokens=_count(usage, "outputTokens"),
            cache_read_tokens=_count(usage, "cacheReadTokens"),
            cache_write_tokens=_count(usage, "cacheWriteTokens"),
        )
        return float(model.calc_price(used, provider).total_price)
    except (LookupError, ValueError):  # no price, or counts that do not fit together
        return None


def _count(usage: Usage, name: str) -> int | None:
    return int(usage[name]) if name in usage else None


@cache
def _found(name: str) -> "tuple[Provider, ModelInfo] | None":
    """What the table has of a model; None if it has nothing, or is not installed."""
    provider, _, model = name.partition(":")
    if provider in _NO_TABLE or not model or find_spec("genai_prices") is None:
        return None
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(model, None, provider, None)
    except LookupError:
        return None


def _price(name: str, said: Mapping[str, Any]) -> Price:
    if ":" not in name:
        raise _invalid(name, "is not the name of a model", "name it as the agent does")
    unknown = sorted(set(said) - set(_KEYS))
    if unknown:
        raise _invalid(name, f"has an unknown key {unknown[0]!r}", f"it has {', '.join(_KEYS)}")
    for key in ("input", "output", *said):
        if not _is_amount(said.get(key)):
            raise _invalid(name, f"{key} is {said.get(key)!r}, and must be a number, 0 or more")
    return Price(**said)


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < inf


def _invalid(name: str, problem: str, hint: str | None = None) -> ConfigError:
    text = f"prices: {name!r}: {problem}"
    return ConfigError(text, code="PRICES_INVALID", hint=hint or "in US dollars a million tokens")
