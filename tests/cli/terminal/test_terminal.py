"""What a session used, as `sessions show` says it."""

import json
from pathlib import Path

import pytest
from tests.support.cli_project import Shop

from perdure.cli.terminal.terminal import usage_text


@pytest.mark.parametrize(
    "usage,told",
    [
        ({}, "none yet"),
        (
            {"requests": 1, "inputTokens": 7, "outputTokens": 2},
            "1 request, 7 tokens in, 2 out, cost unknown (no price for the model)",
        ),
        (
            {
                "requests": 3,
                "inputTokens": 1204.0,
                "outputTokens": 310,
                "cacheReadTokens": 800,
                "cacheWriteTokens": 100,
                "reasoningTokens": 120,
                "cost": 0.00421,
            },
            (
                "3 requests, 1,204 tokens in (800 read from the cache, 100 written to it), "
                "310 out (120 for reasoning), $0.0042"
            ),
        ),
        (
            {"requests": 3, "inputTokens": 1, "cost": 1234.5, "unpricedRequests": 2},
            "3 requests, 1 tokens in, 0 out, $1,234.50 and 2 requests without a known price",
        ),
    ],
)
def test_usage_is_one_line(usage: dict[str, float], told: str) -> None:
    assert usage_text(usage) == told


def test_prices_of_the_configuration_are_shown_as_cost(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "turns.json").write_text(json.dumps([{"text": "Hello there."}]))
    (tmp_path / "perdure.yaml").write_text(
        "agents:\n  a: {llm: 'scripted:turns.json'}\n"
        "prices:\n  'scripted:turns.json': {input: 1000000, output: 0}\n"
    )
    shop.run("run", "a", "hi", "-s", "s", app=None)
    session = shop.json("sessions", "show", "s", app=None)
    assert session["usage"]["cost"] == session["usage"]["inputTokens"] > 0
    shown = shop.run("sessions", "show", "s", app=None).stdout
    assert f"${session['usage']['cost']:,.2f}" in shown
