"""Whether the provider would take a request: its rules, and what it remembers of its answers."""

import hmac
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Final

from perdure.testing.endpoint.anthropic import ANTHROPIC
from perdure.testing.endpoint.exact import same_block
from perdure.testing.endpoint.failures import Problem
from perdure.testing.endpoint.openai_chat import CHAT
from perdure.testing.endpoint.openai_responses import RESPONSES
from perdure.testing.endpoint.play import Answered, Body, Change, Dialect, Private
from perdure.testing.endpoint.script import Script
from perdure.testing.provider_rules import Finding, Format, check

DIALECTS: Final[Mapping[Format, Dialect]] = {
    "anthropic": ANTHROPIC,
    "openai-chat": CHAT,
    "openai-responses": RESPONSES,
}
_PAUSED: Final = "pause_turn"
_PREFILL: Final = frozenset({"A60", "A61", "A62"})
_NOT_FOUND: Final = frozenset({"R02", "R08"})


class Judge:
    """Knows the script, and to which models its turns were sent."""

    def __init__(self, script: Script, *, strict: bool, asides: Collection[str]) -> None:
        self._script = script
        self._strict = strict
        self._asides = asides
        self._sent_to: dict[int, set[str]] = defaultdict(set)

    def sent(self, turn: int, model: str) -> None:
        """Remember who got a turn whole."""
        self._sent_to[turn].add(model)

    def answers(self, body: Body, format: Format) -> list[Answered]:  # noqa: A002
        """The answers in a history that a model gave; asides are the client's own."""
        found: list[Answered] = []
        for one in DIALECTS[format].answers(body):
            if not self._is_aside(one):
                found += self._parts(one, len(found))
        return found

    def _parts(self, answered: Answered, number: int) -> list[Answered]:
        """An answer with those that it went on from: each pause is a turn of the script."""
        turn = self._script.turn(number)
        if turn is None or turn.stop != _PAUSED:
            return [answered]
        length = len(turn.native.get("anthropic", ()))
        rest = answered.blocks[length:]
        if not rest:
            return [answered]
        paused = Answered(answered.where, answered.blocks[:length])
        return [paused, *self._parts(Answered(answered.where, rest), number + 1)]

    def _goes_on(self, body: Body, format: Format) -> bool:  # noqa: A002
        """Whether a request ends with an answer that was paused, which is no prefill."""
        last = body["messages"][-1:] if isinstance(body.get("messages"), list) else []
        is_answer = bool(last) and isinstance(last[0], dict) and last[0].get("role") == "assistant"
        turn = self._script.turn(len(self.answers(body, format)) - 1) if is_answer else None
        return turn is not None and turn.stop == _PAUSED

    def _is_aside(self, answered: Answered) -> bool:
        if len(answered.blocks) != 1 or not isinstance(answered.blocks[0], dict):
            return False
        block = answered.blocks[0]
        return block.get("text", block.get("content")) in self._asides

    def refusal(self, body: Body, format: Format) -> tuple[str, Problem] | None:  # noqa: A002
        """The first rule that a request breaks, and what the provider says to it."""
        findings = check(
            body,
            format,
            strict=self._strict,
            signed=lambda block: self._is_signed(block, str(body.get("model"))),
            led=self._is_led,
        )
        if self._goes_on(body, format):
            findings = [one for one in findings if one.rule not in _PREFILL]
        if findings:
            return findings[0].rule, _problem(findings[0], format)
        change = self._change(body, format)
        if change is not None:
            return "changed", _refused(change.where, change.says, format, change.code)
        return None

    def _change(self, body: Body, format: Format) -> Change | None:  # noqa: A002
        for number, answered in enumerate(self.answers(body, format)):
            sent = self._script.sent(number, format)
            if sent is None:
                continue
            whose = self._private(number, str(body.get("model")))
            for change in DIALECTS[format].changes(answered, sent, whose):
                return change
        return None

    def _private(self, turn: int, model: str) -> Private:
        got = self._sent_to[turn]
        if got == {model}:
            return "must"
        return "may" if model in got or not got else "not"

    def _is_signed(self, block: Mapping[str, Any], model: str) -> bool:
        """Whether this model made a thought, just so."""
        for number in range(len(self._script.turns)):
            blocks = self._script.sent(number, "anthropic") or ()
            if self._private(number, model) != "not" and any(
                same_block(block, sent) for sent in blocks
            ):
                return True
        return None in self._script.turns  # what somebody else thought is not known here

    def _is_led(self, item: Mapping[str, Any]) -> bool:
        """Whether an item was sent together with reasoning that led to it."""
        for number in range(len(self._script.turns)):
            reasoned = False
            for sent in self._script.sent(number, "openai-responses") or ():
                if sent.get("id") == item.get("id"):
                    return reasoned
                reasoned = reasoned or sent["type"] == "reasoning"
        return False


def is_key(given: str, wanted: str | None) -> bool:
    """Whether a request may be answered at all."""
    return wanted is None or hmac.compare_digest(given.encode(), wanted.encode())


def _problem(finding: Finding, format: Format) -> Problem:  # noqa: A002
    if finding.rule in _NOT_FOUND:
        return Problem(404, "invalid_request_error", finding.says, None, finding.where)
    return _refused(finding.where, finding.says, format)


def _refused(where: str, says: str, format: Format, code: str | None = None) -> Problem:  # noqa: A002
    if format == "anthropic":
        return Problem(400, "invalid_request_error", f"{where}: {says}")
    return Problem(400, "invalid_request_error", says, code, where)
