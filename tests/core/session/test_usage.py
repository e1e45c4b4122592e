"""Sums of what requests used, and what is told of their cost."""

import json

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.session.usage import (
    add_request,
    check_usage,
    display_usage,
    sum_usage,
    total_tokens,
    usage_amounts,
)
from perdure.views.usage import Usage

AMOUNTS = st.floats(0, 1e6, allow_nan=False)
USAGES = st.none() | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("inputTokens", "outputTokens", "cost"), AMOUNTS)
)


def test_a_request_more_is_counted_with_all_that_it_used() -> None:
    once = add_request({}, {"inputTokens": 10, "outputTokens": 2, "cost": 0.1})
    twice = add_request(once, {"inputTokens": 5, "reasoningTokens": 1, "cost": 0.2})
    assert twice == {
        "requests": 2,
        "inputTokens": 15,
        "outputTokens": 2,
        "reasoningTokens": 1,
        "cost": 0.3,
    }


def test_where_only_a_part_has_a_price_it_is_said_how_many_have_none() -> None:
    partly = add_request(add_request({}, {"inputTokens": 1, "cost": 0.5}), {"inputTokens": 1})
    assert display_usage(partly) == {
        "requests": 2,
        "inputTokens": 2,
        "cost": 0.5,
        "unpricedRequests": 1,
    }


def test_without_any_price_there_is_no_cost_and_nothing_to_explain() -> None:
    assert display_usage(add_request(add_request({}, {"inputTokens": 1}), None)) == {
        "requests": 2,
        "inputTokens": 1,
    }


def test_what_went_in_and_came_out_is_what_a_budget_counts() -> None:
    used = {"inputTokens": 10, "outputTokens": 2, "cacheReadTokens": 9, "reasoningTokens": 1}
    assert (total_tokens(used), total_tokens(None)) == (12, 0)


@given(st.lists(USAGES))
def test_requests_and_unpriced_ones_add_up(usages: list[dict[str, float] | None]) -> None:
    total: dict[str, float] = {}
    for usage in usages:
        total = add_request(total, usage)
    assert total.get("requests", 0) == len(usages)
    priced = sum("cost" in (usage or {}) for usage in usages)
    assert total.get("unpricedRequests", 0) == len(usages) - priced
    assert sum_usage([total]) == total


def test_counts_are_shown_as_whole_numbers() -> None:
    shown = display_usage({"requests": 2, "inputTokens": 121.0, "cost": 0.25})
    assert json.dumps(shown) == '{"requests": 2, "inputTokens": 121, "cost": 0.25}'


@given(USAGES)
def test_each_usage_of_known_amounts_is_valid(amounts: dict[str, float] | None) -> None:
    usage = None if amounts is None else Usage.of(amounts)
    check_usage(usage, "acme:own")
    recorded = usage_amounts(usage) or {}
    assert {name: recorded.get(name, 0) for name in amounts or ()} == (amounts or {})
