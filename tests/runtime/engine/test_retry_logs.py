"""Log records of model requests that failed and are retried."""

import logging
import re
from typing import Any

import pytest

from perdure import Agent, Runtime
from perdure.core.driver.model_failures import retry_text
from perdure.core.log.events import Retry
from perdure.errors import ModelUnavailable
from perdure.runtime.models.base import Request
from perdure.testing import ScriptedModel


class Unreachable:
    """Model that cannot be reached the first time."""

    name = "far:away"

    def __init__(self) -> None:
        self.requests = 0
        self.scripted = ScriptedModel([{"text": "Here."}])

    async def answer(self, request: Request) -> Any:
        self.requests += 1
        if self.requests == 1:
            raise ModelUnavailable("far.example cannot be reached", retry_after_ms=1)
        async for item in self.scripted.answer(request):
            yield item


async def test_every_retry_is_logged_with_its_reason_and_the_next_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent("a", model=Unreachable())
    async with Runtime("memory:", agents=[agent]) as rt:
        with caplog.at_level(logging.WARNING, "perdure"):
            assert (await rt.session("s1", agent="a").run("hi")).output == "Here."
    (record,) = [r for r in caplog.records if "model request failed" in r.getMessage()]
    assert (record.name, record.levelname) == ("perdure", "WARNING")
    text = record.getMessage()
    assert "the model request failed (far.example cannot be reached)" in text
    assert re.search(r"; attempt 2 of 7 in \d\.\ds$", text)
    assert "s1" in text


@pytest.mark.parametrize(
    "retry, text",
    [
        (Retry(attempt=1, message="busy", next=2_250), "attempt 2 of 7 in 1.2s"),
        (Retry(attempt=6, message="busy", next=62_900), "attempt 7 of 7 in 1m1s"),
        (Retry(attempt=3, message="busy", next=0), "attempt 4 of 7 in 0.0s"),
        (Retry(attempt=1, message="busy", next=1_000, model="b:c"), "continuing with b:c"),
    ],
)
def test_a_retry_is_one_line(retry: Retry, text: str) -> None:
    assert retry_text(retry, 1_000, 7) == f"the model request failed (busy); {text}"
