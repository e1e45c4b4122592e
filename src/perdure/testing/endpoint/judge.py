"""Judge of requests: the provider's rules, and the responses it sent before."""

import hmac
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from perdure.testing.endpoint.anthropic import ANTHROPIC
from perdure.testing.endpoint.comparison import is_same_block
from perdure.testing.endpoint.exchange import (
    Body,
    Change,
    Dialect,
    EarlierResponse,
    Privacy,
    ReceivedRequest,
    ScriptedResponse,
)
from perdure.testing.endpoint.failures import CONNECTION_FAILURES, ProviderError, provider_error
from perdure.testing.endpoint.openai_chat import CHAT
from perdure.testing.endpoint.openai_responses import RESPONSES
from perdure.testing.endpoint.script import Failure, Script
from perdure.testing.provider_rules import Format, Violation, check


@dataclass(frozen=True, slots=True)
class RequestVerdict:
    """Refusal or failure (`error`), or a response, which may still fail while it is sent."""

    format: Format
    number: int
    turn: int = 0
    model: str = ""
    is_streamed: bool = False
    error: ProviderError | None = None
    refused: str | None = None
    response: ScriptedResponse | None = None
    failure: Failure | None = None

    def refuse(self, rule: str, error: ProviderError) -> "RequestVerdict":
        """Return the verdict on a request that breaks a rule."""
        where = f" at {error.param}" if error.param else ""
        return replace(self, error=error, refused=f"{rule}{where}: {error.message}")

    def respond(self, response: ScriptedResponse, failure: Failure | None) -> "RequestVerdict":
        """Return the verdict on a valid request; a failure may replace the response."""
        if failure is None or failure.name in CONNECTION_FAILURES:
            return replace(self, response=response, failure=failure)
        error = provider_error(failure.name, self.format, self.model)
        if failure.retry_after is not None:
            error = replace(error, headers={"retry-after": f"{failure.retry_after:g}"})
        if failure.after is not None and self.is_streamed:
            return replace(self, response=response, failure=failure, error=error)
        return replace(self, failure=failure, error=error)

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        return 200 if self.response is not None or self.error is None else self.error.status

    def received_request(self, body: Body) -> ReceivedRequest:
        """Return the request as the log keeps it."""
        fail: Any = self.failure.name if self.failure is not None else None
        return ReceivedRequest(
            self.number,
            self.format,
            self.model,
            self.turn,
            self.is_streamed,
            self.status,
            body,
            self.refused,
            fail,
        )


DIALECTS: Final[Mapping[Format, Dialect]] = {
    "anthropic": ANTHROPIC,
    "openai-chat": CHAT,
    "openai-responses": RESPONSES,
}
_PAUSED: Final = "pause_turn"
_PREFILL: Final = frozenset({"A60", "A61", "A62"})
_NOT_FOUND: Final = frozenset({"R02", "R08"})


class Judge:
    """Judge of the requests of one endpoint; it remembers which model got which turn."""

    def __init__(self, script: Script, *, strict: bool, asides: Collection[str]) -> None:
        self._script = script
        self._strict = strict
        self._asides = asides
        self._sent_to: dict[int, set[str]] = defaultdict(set)

    def record_sent(self, turn: int, model: str) -> None:
        """Record that a model got a turn completely."""
        self._sent_to[turn].add(model)

    def earlier_responses(self, body: Body, format: Format) -> list[EarlierResponse]:  # noqa: A002
        """Return the responses of models in a history, without the client's asides."""
        responses: list[EarlierResponse] = []
        for response in DIALECTS[format].earlier_responses(body):
            if not self._is_aside(response):
                responses += self._split_pauses(response, len(responses))
        return responses

    def _split_pauses(self, response: EarlierResponse, number: int) -> list[EarlierResponse]:
        """Split a response at its pauses: each pause ends a turn of the script."""
        turn = self._script.turn(number)
        if turn is None or turn.stop != _PAUSED:
            return [response]
        length = len(turn.native.get("anthropic", ()))
        remaining = response.blocks[length:]
        if not remaining:
            return [response]
        paused = EarlierResponse(response.where, response.blocks[:length])
        continued = EarlierResponse(response.where, remaining)
        return [paused, *self._split_pauses(continued, number + 1)]

    def _is_continuation(self, body: Body, format: Format) -> bool:  # noqa: A002
        """Return True if a request ends with a paused response, which is not a prefill."""
        last = body["messages"][-1:] if isinstance(body.get("messages"), list) else []
        if not last or not isinstance(last[0], dict) or last[0].get("role") != "assistant":
            return False
        turn = self._script.turn(len(self.earlier_responses(body, format)) - 1)
        return turn is not None and turn.stop == _PAUSED

    def _is_aside(self, response: EarlierResponse) -> bool:
        if len(response.blocks) != 1 or not isinstance(response.blocks[0], dict):
            return False
        block = response.blocks[0]
        return block.get("text", block.get("content")) in self._asides

    def refusal(self, body: Body, format: Format) -> tuple[str, ProviderError] | None:  # noqa: A002
        """Return the first rule that a request breaks, with the provider's error."""
        violations = check(
            body,
            format,
            strict=self._strict,
            signed=lambda block: self._is_signed(block, str(body.get("model"))),
            led=self._is_led,
        )
        if self._is_continuation(body, format):
            violations = [violation for violation in violations if violation.rule not in _PREFILL]
        if violations:
            return violations[0].rule, _rule_error(violations[0], format)
        change = self._change(body, format)
        if change is not None:
            return "changed", _invalid_request(change.where, change.text, format, change.code)
        return None

    def _change(self, body: Body, format: Format) -> Change | None:  # noqa: A002
        for number, response in enumerate(self.earlier_responses(body, format)):
            sent = self._script.native_response(number, format)
            if sent is None:
                continue
            privacy = self._privacy(number, str(body.get("model")))
            for change in DIALECTS[format].find_changes(response, sent, privacy):
                return change
        return None

    def _privacy(self, turn: int, model: str) -> Privacy:
        models = self._sent_to[turn]
        if models == {model}:
            return "must"
        return "may" if model in models or not models else "not"

    def _is_signed(self, block: Mapping[str, Any], model: str) -> bool:
        """Return True for a thinking block exactly as this model produced it."""
        for number in range(len(self._script.turns)):
            blocks = self._script.native_response(number, "anthropic") or ()
            if self._privacy(number, model) != "not" and any(
                is_same_block(block, sent) for sent in blocks
            ):
                return True
        return None in self._script.turns  # another provider may have produced it

    def _is_led(self, item: Mapping[str, Any]) -> bool:
        """Return True if an item was sent after reasoning in the same response."""
        for number in range(len(self._script.turns)):
            has_reasoning = False
            for sent in self._script.native_response(number, "openai-responses") or ():
                if sent.get("id") == item.get("id"):
                    return has_reasoning
                has_reasoning = has_reasoning or sent["type"] == "reasoning"
        return False


def is_valid_key(key: str, expected: str | None) -> bool:
    """Return True for the expected API key, or for any if none is expected."""
    return expected is None or hmac.compare_digest(key.encode(), expected.encode())


def _rule_error(violation: Violation, format: Format) -> ProviderError:  # noqa: A002
    if violation.rule in _NOT_FOUND:
        return ProviderError(404, "invalid_request_error", violation.says, None, violation.where)
    return _invalid_request(violation.where, violation.says, format)


def _invalid_request(
    where: str,
    text: str,
    format: Format,  # noqa: A002
    code: str | None = None,
) -> ProviderError:
    if format == "anthropic":
        return ProviderError(400, "invalid_request_error", f"{where}: {text}")
    return ProviderError(400, "invalid_request_error", text, code, where)
