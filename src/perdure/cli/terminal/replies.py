"""Replies at a decision prompt: a word, a reason, changed arguments or an output."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.core.log.events import RAISED
from perdure.core.pending.answers import parse_answer, parse_decision
from perdure.errors import Refused
from perdure.views.calls import PendingCall

_FLAGS: Final = re.IGNORECASE | re.DOTALL
# "no because it is late", "deny: too much". A word alone, or with other text, gives no reason.
_REASON: Final = re.compile(r"(?:no|n|deny)(?:\s*[:,]\s*|\s+because\s+)(\S.*)", _FLAGS)
_LEAVE: Final = ("/later", "/exit", "/quit", "/q")
_LEAVE_WORDS: Final = (*_LEAVE, "later", "exit", "quit")
_REMEMBERED: Final = {"always": "approve", "never": "deny"}


@dataclass(frozen=True, slots=True)
class PromptReply:
    """A verb of a call with its options, or a word of the prompt, as the approver typed it."""

    verb: str  # also: later, show, help, and remember, whose rule is still to be checked
    options: Mapping[str, Any] = field(default_factory=dict)


def offered_words(call: PendingCall) -> list[str]:
    """Return the words that a prompt about this call offers: those that the call accepts."""
    allowed = call.allowed_decisions or ("approve", "deny")
    may_remember = call.reason != RAISED
    words = {
        "yes": "approve" in allowed,
        "no": "deny" in allowed,
        "edit": "edit" in allowed,
        "respond": "respond" in allowed,
        "always": "approve" in allowed and may_remember and call.min_approvals == 1,
        "never": "deny" in allowed and may_remember,
        "later": True,
    }
    return [word for word, is_offered in words.items() if is_offered]


_HELP: Final = {
    "yes": "yes                     run the call",
    "no": "no, no because REASON   do not run it; the model gets the reason",
    "edit": "edit KEY=VALUE …        run it with changed arguments; also edit {JSON}",
    "respond": "respond TEXT or JSON    do not run it; this is its result",
    "always": "always, always RULE     run it, and all calls like it in this session",
    "never": "never, never RULE       deny it, and all calls like it in this session",
    "later": "later                   leave it waiting; show prints its arguments in full",
}


def help_text(call: PendingCall) -> str:
    """Return what can be typed about this call, one line per word."""
    return "\n".join(f"  {_HELP[word]}" for word in offered_words(call))


def parse_reply(text: str, call: PendingCall) -> PromptReply:
    """Return the reply about an approval. Raises Refused for a text that is none."""
    stripped = text.strip()
    if stripped.casefold() in _LEAVE_WORDS:
        return PromptReply("later")
    verb = parse_decision(text)
    if verb is not None:
        return PromptReply(verb)
    if reason := _REASON.fullmatch(stripped):
        return PromptReply("deny", {"reason": reason[1].strip()})
    return _parse_words(*stripped.partition(" ")[::2], call)


def _parse_words(word: str, rest: str, call: PendingCall) -> PromptReply:
    match word.casefold().removeprefix("/"):
        case "edit" if rest.strip():
            return PromptReply("approve", {"args": parse_edit(rest.strip())})
        case "respond" if rest.strip():
            return PromptReply("respond", {"output": _json_or_text(rest.strip())})
        case "always" | "never" as remembered:
            rule = rest.strip() or None
            return PromptReply("remember", {"verb": _REMEMBERED[remembered], "rule": rule})
        case "show" | "help" as shown if not rest:
            return PromptReply(shown)
        case _:
            words = ", ".join(offered_words(call))
            raise Refused(f"type one of {words}; help explains them")


def parse_answer_reply(text: str, call: PendingCall) -> PromptReply:
    """Return the reply to a question: an answer, unless it begins with a slash and a word."""
    word, _, rest = text.strip().partition(" ")
    if text.strip() in _LEAVE:
        return PromptReply("later")
    if word == "/deny":
        return PromptReply("deny", {"reason": rest.strip() or None})
    if not text.strip() or text.strip() == "/help":
        raise Refused("type an answer, /deny REASON to decline, or /later")
    return PromptReply("respond", {"output": parse_answer(text, call.schema, call.choices)})


def parse_edit(text: str) -> dict[str, Any]:
    """Return changed arguments from a JSON object, or from key=value pairs. Raises Refused."""
    if text.startswith("{"):
        changes = _json_or_text(text)
        if not isinstance(changes, dict):
            raise Refused(f"{text!r} is not valid JSON")
        return changes
    return dict(_change(pair) for pair in _words(text))


def _words(text: str) -> Sequence[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Refused(f"{text!r} has an open quote") from error


def _change(pair: str) -> tuple[str, Any]:
    key, equals, value = pair.partition("=")
    if not key or not equals:
        raise Refused(f"{pair!r} is not of the form KEY=VALUE, such as edit cents=4000")
    return key, _json_or_text(value)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
