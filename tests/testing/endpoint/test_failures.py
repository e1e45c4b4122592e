"""What goes wrong on demand, as the real SDKs see it."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from tests.testing.endpoint.sdks import FORMATS, talking

from perdure.testing.endpoint import fake_endpoint
from perdure.testing.provider_rules import Format

TURN = {"text": "one two three four five six"}
ANTHROPIC: dict[Any, tuple[type[Exception], int]] = {
    "rate_limit": (anthropic.RateLimitError, 429),
    "server_error": (anthropic.InternalServerError, 500),
    "overloaded": (anthropic.APIStatusError, 529),
    "key": (anthropic.AuthenticationError, 401),
    "quota": (anthropic.BadRequestError, 400),
    "context": (anthropic.BadRequestError, 400),
    "refused": (anthropic.BadRequestError, 400),
    "unknown_model": (anthropic.NotFoundError, 404),
    502: (anthropic.InternalServerError, 502),
}
OPENAI: dict[Any, tuple[type[Exception], int]] = {
    "rate_limit": (openai.RateLimitError, 429),
    "server_error": (openai.InternalServerError, 500),
    "overloaded": (openai.InternalServerError, 503),
    "key": (openai.AuthenticationError, 401),
    "quota": (openai.RateLimitError, 429),
    "context": (openai.BadRequestError, 400),
    "refused": (openai.BadRequestError, 400),
    "unknown_model": (openai.NotFoundError, 404),
    502: (openai.InternalServerError, 502),
}
ANY = (anthropic.AnthropicError, openai.OpenAIError, Exception)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("spoken", FORMATS)
def test_a_failure_comes_as_the_provider_sends_it_and_then_is_over(
    spoken: Format, streamed: bool
) -> None:
    """S0.25"""
    known = ANTHROPIC if spoken == "anthropic" else OPENAI
    turn = {**TURN, "fail": list(known)}
    with fake_endpoint([turn]) as endpoint, talking(endpoint.url, spoken) as talk:
        talk.streamed = streamed
        for error, status in known.values():
            with pytest.raises(error) as raised:
                talk.ask()
            assert getattr(raised.value, "status_code") == status  # noqa: B009 - of two SDKs
        talk.turn()
        assert "six" in json.dumps(talk.said)
        assert endpoint.request_count(0) == len(known) + 1
        assert endpoint.refused == []
        assert [one.fail for one in endpoint.requests] == [*known, None]


@pytest.mark.parametrize("spoken", FORMATS)
def test_retry_after_is_a_header(spoken: Format) -> None:
    fail = {"fail": "rate_limit", "retry_after": 1.5, "times": 2}
    turn = {**TURN, "fail": [fail]}
    with fake_endpoint([turn]) as endpoint, talking(endpoint.url, spoken) as talk:
        for _ in range(2):
            with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)) as raised:
                talk.ask()
            assert getattr(raised.value, "response").headers["retry-after"] == "1.5"  # noqa: B009
        talk.turn()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("fail", ["cut", "half_json", "drop"])
@pytest.mark.parametrize("spoken", FORMATS)
def test_an_answer_that_breaks_off_is_no_answer(spoken: Format, fail: str, streamed: bool) -> None:
    """S0.25"""
    turn = {**TURN, "fail": [{"fail": fail, "after": 4}]}
    with fake_endpoint([turn]) as endpoint, talking(endpoint.url, spoken) as talk:
        talk.streamed = streamed
        with pytest.raises(ANY):
            talk.take(talk.ask())  # what is not JSON some SDKs hand on as text
        talk.turn()
        assert "six" in json.dumps(talk.said)
        assert endpoint.request_count(0) == 2


@pytest.mark.parametrize("spoken", FORMATS)
def test_the_provider_may_give_up_in_the_middle_of_a_stream(spoken: Format) -> None:
    turn = {**TURN, "fail": [{"fail": "overloaded", "after": 4}]}
    with fake_endpoint([turn]) as endpoint, talking(endpoint.url, spoken) as talk:
        talk.streamed = True
        if spoken == "openai-responses":  # whose SDK leaves this event to its user
            with pytest.raises(RuntimeError, match="Didn't receive a"):
                talk.ask()
        else:
            with pytest.raises((anthropic.APIStatusError, openai.APIError), match="verloaded"):
                talk.ask()
        talk.turn()


@pytest.mark.parametrize("spoken", FORMATS)
def test_a_stalled_answer_goes_on_when_it_is_told_to(spoken: Format) -> None:
    turn = {**TURN, "fail": [{"fail": "stall", "after": 4}]}
    with (
        fake_endpoint([turn]) as endpoint,
        talking(endpoint.url, spoken) as talk,
        ThreadPoolExecutor(1) as pool,
    ):
        talk.streamed = True
        asked = pool.submit(talk.turn)
        endpoint.wait_for_stall()
        assert not asked.done()
        endpoint.go_on()
        asked.result(timeout=30)
        assert "six" in json.dumps(talk.said)


def test_whichever_request_comes_next_can_fail() -> None:
    with fake_endpoint([TURN]) as endpoint, talking(endpoint.url, "anthropic") as talk:
        endpoint.fail_next("overloaded")
        with pytest.raises(anthropic.APIStatusError):
            talk.ask()
        talk.turn()


def test_another_key_is_refused_and_no_key_is_written_down(tmp_path: Path) -> None:
    """G11"""
    log = tmp_path / "log"
    with (
        fake_endpoint([TURN], key="right", log=log) as endpoint,
        talking(endpoint.url, "openai-chat") as talk,
    ):
        with pytest.raises(openai.AuthenticationError):
            talk.ask()
        talk.client.api_key = "right"
        talk.turn()
    assert [json.loads(line)["status"] for line in log.read_text().splitlines()] == [401, 200]
    assert "key-of-a-test" not in log.read_text()
    assert "right" not in log.read_text()


def test_as_a_process_it_says_its_address_and_logs_each_request(tmp_path: Path) -> None:
    script, log = tmp_path / "script.json", tmp_path / "log"
    script.write_text(json.dumps([TURN]))
    command = [sys.executable, "-m", "perdure.testing.endpoint", str(script), "--log", str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with talking(url, "anthropic", streamed=True) as talk:
            talk.turn()
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    line = json.loads(log.read_text())
    assert (line["format"], line["turn"], line["status"]) == ("anthropic", 0, 200)
    assert line["body"]["messages"] == [{"role": "user", "content": "Look, please."}]


def test_as_a_process_it_says_what_is_wrong_with_its_script(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perdure.testing.endpoint", str(tmp_path / "none.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "none.json cannot be read" in done.stderr
    assert "Traceback" not in done.stderr
