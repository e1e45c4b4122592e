"""Script of the endpoint: turns as the providers send them, and failures before them.

A turn is an object in the provider's own format: `content` (Anthropic's blocks), `message` (a chat
message), `output` (items of a response); or, for all three, `text` and `calls`
`[{"tool", "args", "id"?}]`. It may have `stop` (the provider's stop reason), `usage` (with the
provider's keys) and `fail`: a list of failures that are played first, one per request. A null turn
is a response of another provider, which is not compared.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from perdure.errors import ConfigError
from perdure.testing.endpoint.failures import CONNECTION_FAILURES, PROVIDER_FAILURES
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
    """Failure of a request: `name` is one of the failures, or an HTTP status."""

    name: str | int
    after: int | None = None  # number of events before it in a stream
    retry_after: float | None = None  # seconds, in the provider's header
    times: int = 1  # number of requests in a row

    @classmethod
    def read(cls, data: Any) -> "Failure":
        """Read a name, a status, or an object with `fail`."""
        fields = data if isinstance(data, Mapping) else {"fail": data}
        name = fields.get("fail")
        is_failure = name in (*PROVIDER_FAILURES, *CONNECTION_FAILURES) or (
            type(name) is int and 400 <= name < 600
        )
        if not is_failure or set(fields) - _FAILURE_KEYS:
            raise ConfigError(
                f"{data!r} is not a failure",
                code="SCRIPT_INVALID",
                hint=f"use an HTTP status, {', '.join((*PROVIDER_FAILURES, *CONNECTION_FAILURES))}",
            )
        return cls(**{"name" if key == "fail" else key: value for key, value in fields.items()})


@dataclass(frozen=True, slots=True)
class Turn:
    """Response of the script, in the formats that the script has."""

    native: Mapping[Format, Any]
    stop: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Script:
    """Turns in order; None for a response of another provider."""

    turns: tuple[Turn | None, ...]

    @classmethod
    def of(cls, turns: Sequence[Mapping[str, Any] | None]) -> "Script":
        """Return the script of a list of turns. Raises ConfigError."""
        return cls(tuple(_turn(turn, number) for number, turn in enumerate(turns)))

    @classmethod
    def read(cls, path: Path) -> "Script":
        """Read the script of a JSON file. Raises ConfigError."""
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
        """Return the turn that follows a history with so many responses."""
        if number < len(self.turns):
            return self.turns[number]
        return _turn({"text": "done"}, number)

    def native_response(self, number: int, format: Format) -> Any:  # noqa: A002
        """Return a turn in a format; None if the script does not have it."""
        turn = self.turn(number)
        return turn.native.get(format) if turn is not None else None


def _turn(data: Any, number: int) -> Turn | None:
    if data is None:
        return None
    where = f"turn {number + 1} of the script"
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is not an object", code="SCRIPT_INVALID")
    if unknown := sorted(set(data) - _KEYS):
        raise ConfigError(
            f"{where} has unknown keys: {', '.join(unknown)}",
            code="SCRIPT_INVALID",
            hint=f"a turn has {', '.join(sorted(_KEYS))}",
        )
    native = _all_formats(data, number) if {"text", "calls"} & set(data) else {}
    native |= {_NATIVE[key]: data[key] for key in data if key in _NATIVE}
    failures = tuple(map(Failure.read, data.get("fail", ())))
    return Turn(native, data.get("stop"), data.get("usage", {}), failures)


def _all_formats(data: Mapping[str, Any], number: int) -> dict[Format, Any]:
    """Return text and calls in the format of each provider."""
    text = data.get("text", "")
    calls = [
        (call.get("id", f"call_{number}_{n}"), call["tool"], call.get("args", {}))
        for n, call in enumerate(data.get("calls", ()))
    ]
    blocks: list[Any] = [{"type": "text", "text": text}] if text else []
    return {
        "anthropic": blocks
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
