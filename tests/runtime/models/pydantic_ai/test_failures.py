"""What a provider fails at or refuses, told as one line with what to do."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import gaierror
from threading import Thread
from typing import Any

import httpx2
import pytest
from pydantic_ai.exceptions import ModelAPIError
from tests.support.models import FORMATS, KEY, model_at

from perdure.core.conversation.messages import Answer, UserMessage
from perdure.errors import ModelError, ModelUnavailable
from perdure.runtime.models.base import Request
from perdure.runtime.models.pydantic_ai.failures import failure
from perdure.testing.endpoint import fake_endpoint
from perdure.testing.provider_rules import Format

REQUEST = Request("s1", "a", 1, "Be brief.", [UserMessage("hello")])


@pytest.mark.parametrize(
    "code, ours",
    [
        ("invalid_prompt", "MODEL_REFUSED"),
        ("invalid_image_url", "MODEL_ERROR"),
        ("vector_store_timeout", "MODEL_UNAVAILABLE"),
    ],
)
def test_a_response_that_failed_in_its_stream_is_asked_for_again_only_if_that_may_help(
    code: str, ours: str
) -> None:
    error = ModelAPIError(model_name="m", message=f"{code}: no", provider_error_code=code)
    found = failure(error, "openai-responses:m", "s1")
    assert found is not None
    assert found.code == ours
    assert found.message.endswith(f"{code}: no")


async def failed(format_: Format, failure: Any) -> ModelError:
    with fake_endpoint([{"text": "Hello there", "fail": [failure]}]) as endpoint:
        model = model_at(endpoint.url, format_)
        try:
            with pytest.raises(ModelError) as caught:
                _ = [piece async for piece in model.answer(REQUEST)]
            assert len(endpoint.requests) == 1  # the library itself did not try again
            pieces = [piece async for piece in model.answer(REQUEST)]
        finally:
            await model.close()
    last = pieces[-1]
    assert isinstance(last, Answer)
    assert last.text == "Hello there"
    assert KEY not in str(caught.value.to_json())
    return caught.value


@FORMATS
@pytest.mark.parametrize(
    "failure",
    [
        *("rate_limit", "server_error", "overloaded", 408, 409, 502, 503, "drop"),
        {"fail": "cut", "after": 0},
        {"fail": "cut", "after": 2},
        {"fail": "half_json", "after": 1},
        {"fail": "overloaded", "after": 2},
    ],
    ids=str,
)
async def test_what_may_pass_is_told_as_unavailable(format_: Format, failure: Any) -> None:
    error = await failed(format_, failure)
    assert isinstance(error, ModelUnavailable)
    assert error.code == "MODEL_UNAVAILABLE"


@FORMATS
async def test_who_could_not_be_reached_is_told_and_why(format_: Format) -> None:
    error = await unreached(format_, "http://user:secret@127.0.0.1:9/x?key=secret")
    assert isinstance(error, ModelUnavailable)
    told = "the connection to 127.0.0.1:9 failed: Connection refused"
    assert error.message.partition(": ")[2] == told


def test_a_name_that_is_not_known_is_told_with_its_reason() -> None:
    error = httpx2.ConnectError("no", request=httpx2.Request("POST", "https://nowhere.invalid/v1"))
    error.__cause__ = gaierror(-2, "Name or service not known")
    error.__cause__.__context__ = BlockingIOError(115, "in progress")
    found = failure(error, "m", "s1")
    assert found is not None
    reason = "Name or service not known"
    assert found.message == f"m: the connection to nowhere.invalid failed: {reason}"


@FORMATS
async def test_an_address_that_is_none_is_not_asked_again(format_: Format) -> None:
    error = await unreached(format_, "nowhere")
    assert (error.code, isinstance(error, ModelUnavailable)) == ("MODEL_ERROR", False)
    assert error.hint is not None
    assert "check base_url" in error.hint


async def unreached(format_: Format, url: str) -> ModelError:
    model = model_at(url, format_)
    with pytest.raises(ModelError) as caught:
        _ = [piece async for piece in model.answer(REQUEST)]
    await model.close()
    return caught.value


@FORMATS
async def test_the_provider_says_when_to_come_back(format_: Format) -> None:
    error = await failed(format_, {"fail": "rate_limit", "retry_after": 7})
    assert isinstance(error, ModelUnavailable)
    assert error.retry_after_ms == 7000


@FORMATS
@pytest.mark.parametrize(
    "failure, code",
    [
        ("key", "MODEL_KEY"),
        ("quota", "MODEL_QUOTA"),
        ("context", "MODEL_CONTEXT"),
        ("refused", "MODEL_REFUSED"),
        ("unknown_model", "MODEL_UNKNOWN"),
        (422, "MODEL_ERROR"),
    ],
)
async def test_what_lasts_has_a_code_and_says_what_to_do(
    format_: Format, failure: Any, code: str
) -> None:
    error = await failed(format_, failure)
    assert not isinstance(error, ModelUnavailable)
    assert error.code == code
    assert error.hint is not None
    assert error.hint.endswith("; then: perdure sessions resume s1")
    assert "\n" not in error.message


async def test_a_connection_that_cannot_be_made_is_unavailable() -> None:
    model = model_at("http://127.0.0.1:9", "anthropic")
    with pytest.raises(ModelUnavailable, match="connection"):
        _ = [piece async for piece in model.answer(REQUEST)]
    await model.close()


@pytest.mark.parametrize(
    "format_, turn",
    [
        ("anthropic", {"content": [{"type": "text", "text": "I"}], "stop": "refusal"}),
        ("openai-chat", {"message": {"role": "assistant", "content": None, "refusal": "No."}}),
    ],
)
async def test_an_answer_that_is_a_refusal_is_told_as_one(
    format_: Format, turn: dict[str, Any]
) -> None:
    with fake_endpoint([turn]) as endpoint:
        model = model_at(endpoint.url, format_)
        with pytest.raises(ModelError) as caught:
            _ = [piece async for piece in model.answer(REQUEST)]
        await model.close()
    assert caught.value.code == "MODEL_REFUSED"


class _Server(BaseHTTPRequestHandler):
    """Refuses everything with the same words."""

    status = 400
    kind = "text/plain"
    says = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.status)
        self.send_header("content-type", self.kind)
        self.send_header("content-length", str(len(self.says)))
        self.end_headers()
        self.wfile.write(self.says)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@FORMATS
@pytest.mark.parametrize(
    "status, kind, says, told",
    [
        (400, "text/plain", f"no tool parser, {KEY}", "request with 400: no tool parser, ***"),
        (400, "application/json", '{"error": "no such tool"}', "request with 400: no such tool"),
        (422, "application/json", '{"detail": [{"msg": "bad"}]}', 'with 422: [{"msg": "bad"}]'),
        (413, "text/html", "<html><h1>Too large</h1></html>", "refused the request with 413"),
    ],
)
async def test_what_other_servers_refuse_is_told_in_their_words_without_the_key(
    format_: Format, status: int, kind: str, says: str, told: str
) -> None:
    """G11"""
    error = await answered(format_, status, kind, says)
    assert error.code == "MODEL_ERROR"
    assert error.message.endswith(told)
    assert KEY not in str(error.to_json())


@FORMATS
async def test_a_web_page_is_told_as_one(format_: Format) -> None:
    error = await answered(format_, 200, "text/html; charset=utf-8", "<html>Sign in</html>")
    assert isinstance(error, ModelUnavailable)
    assert error.message.endswith("the server sent a web page, not a response")
    assert "check base_url" in (error.hint or "")


@FORMATS
async def test_a_stream_that_ends_without_a_word_is_no_answer(format_: Format) -> None:
    said = 'data: {"choices": []}\n\ndata: [DONE]\n\n'
    error = await answered(format_, 200, "text/event-stream", said)
    assert isinstance(error, ModelUnavailable)
    assert error.message.endswith("the response was cut off")


@FORMATS
@pytest.mark.parametrize(
    "kind, code", [("overloaded", "UNAVAILABLE"), ("insufficient_quota", "QUOTA")]
)
async def test_an_error_that_a_gateway_puts_into_the_stream_is_told(
    format_: Format, kind: str, code: str
) -> None:
    error = {"message": "It is too much.", "code": kind, "type": kind}
    said = f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n"
    found = await answered(format_, 200, "text/event-stream", said)
    assert found.message.endswith("It is too much.")
    assert found.code == f"MODEL_{code}"


@FORMATS
@pytest.mark.parametrize("event", ["null", "[1]", '"word"', '{"choices": [{"delta": 3}]}'])
async def test_a_stream_of_another_make_is_no_crash(format_: Format, event: str) -> None:
    said = f"data: {event}\n\ndata: [DONE]\n\n"
    error = await answered(format_, 200, "text/event-stream", said)
    assert isinstance(error, ModelUnavailable)


async def answered(format_: Format, status: int, kind: str, says: str) -> ModelError:
    handler = type("Handler", (_Server,), {"status": status, "kind": kind, "says": says.encode()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            return await unreached(format_, f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
