"""What the endpoint plays: turns just as the providers would send them, and failures before them.

A turn is an object with what the provider sends, in its own words: `content` (Anthropic's blocks),
`message` (a chat message), `output` (items of a response); or, for all three, `text` and `calls`
`[{"tool", "args", "id"?}]`. Beside it `stop` (the provider's word for why it ended), `usage` (its
own keys) and `fail`: a list of failures that are played first, one per request. A turn that is
null was said by somebody else, and is not compared.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from perdure.errors import ConfigError
from perdure.testing.endpoint.failures import BROKEN, REFUSED
from perdure.testing.provider_rules import Format

_NATIVE: Final[Mapping[str, Format]] = {
    "content": "anthropic",
    "message": "openai-chat",
    "output": "openai-responses",
}
_KEYS: Final = frozenset({*_NATIVE, "text", "calls", "stop", "usage", "fail"})
_FAILURE_KEYS: Final = frozenset({"fail", "after", "retry_after", "times"})


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that goes wrong: `name` is one of `failures`, or a bare HTTP status."""

    name: str | int
    after: int | None = None  # so many events of the stream come first
    retry_after: float | None = None  # seconds, as the provider's header says it
    times: int = 1  # so many requests in a row

    @classmethod
    def read(cls, given: Any) -> "Failure":
        """A name, a status, or an object with `fail`."""
        told = given if isinstance(given, Mapping) else {"fail": given}
        name = told.get("fail")
        known = name in (*REFUSED, *BROKEN) or (type(name) is int and 400 <= name < 600)
        if not known or set(told) - _FAILURE_KEYS:
            raise ConfigError(
                f"{given!r} is no failure",
                code="SCRIPT_INVALID",
                hint=f"there are {', '.join((*REFUSED, *BROKEN))}, and any HTTP status",
            )
        return cls(**{"name" if key == "fail" else key: value for key, value in told.items()})


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer, in as many formats as the script has it."""

    native: Mapping[Format, Any]
    stop: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """The turns in their order; None for one that somebody else said."""

    turns: tuple[Turn | None, ...]

    @classmethod
    def of(cls, turns: Sequence[Mapping[str, Any] | None]) -> "Script":
        """The script that a list of turns is. Raises ConfigError."""
        return cls(tuple(_turn(turn, number) for number, turn in enumerate(turns)))

    @classmethod
    def read(cls, path: Path) -> "Script":
        """The script in a JSON file. Raises ConfigError."""
        try:
            turns = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"the script {path} cannot be read: {error}", code="SCRIPT_INVALID"
            ) from error
        if not isinstance(turns, list):
            raise ConfigError(f"the script {path} is not a list of turns", code="SCRIPT_INVALID")
        return cls.of(turns)

    def turn(self, number: int) -> Turn | None:
        """The answer to a history with so many answers."""
        if number < len(self.turns):
            return self.turns[number]
        return _turn({"text": "done"}, number)

    def sent(self, number: int, format: Format) -> Any:  # noqa: A002 - as the rules call it
        """What a turn is in a format; None if the script does not say."""
        turn = self.turn(number)
        return turn.native.get(format) if turn is not None else None


def _turn(given: Any, number: int) -> Turn | None:
    if given is None:
        return None
    where = f"turn {number + 1} of the script"
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} is not an object", code="SCRIPT_INVALID")
    if unknown := sorted(set(given) - _KEYS):
        raise ConfigError(
            f"{where} has unknown keys: {', '.join(unknown)}",
            code="SCRIPT_INVALID",
            hint=f"a turn has {', '.join(sorted(_KEYS))}",
        )
    native = _plain(given, number) if {"text", "calls"} & set(given) else {}
    native |= {_NATIVE[key]: given[key] for key in given if key in _NATIVE}
    failures = tuple(map(Failure.read, given.get("fail", ())))
    return Turn(native, given.get("stop"), given.get("usage", {}), failures)


def _plain(given: Mapping[str, Any], number: int) -> dict[Format, Any]:
    """Text and calls, in the words of each provider."""
    text = given.get("text", "")
    calls = [
        (call.get("id", f"call_{number}_{n}"), call["tool"], call.get("args", {}))
        for n, call in enumerate(given.get("calls", ()))
    ]
    said: list[Any] = [{"type": "text", "text": text}] if text else []
    return {
        "anthropic": said
        + [{"type": "tool_use", "id": id_, "name": tool, "input": a} for id_, tool, a in calls],
        "openai-chat": _message(text, calls),
        "openai-responses": ([_item(text, number)] if text else [])
        + [
            {
                "id": f"fc_{number}_{n}",
                "type": "function_call",
                "status": "completed",
                "arguments": _dumps(args),
                "call_id": call_id,
                "name": tool,
            }
            for n, (call_id, tool, args) in enumerate(calls)
        ],
    }


def _message(text: str, calls: Sequence[tuple[str, str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None}
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": tool, "arguments": _dumps(args)}}
            for id_, tool, args in calls
        ]
    return message


def _item(text: str, number: int) -> dict[str, Any]:
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": text}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "status": "completed",
        "content": [part],
        "role": "assistant",
    }


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
