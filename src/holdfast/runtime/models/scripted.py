"""A model that plays turns from a list: for tests, demos and work without a network.

Turn *k* answers the request whose history already has *k* answers, so a restart changes nothing;
past the end it answers `done`. Text is streamed word by word. What a turn has as `summary` is said
if, instead of the turn, a summary of what was before is asked for.
"""

import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec

from holdfast.core.messages import Answer, AskedCall, AssistantMessage
from holdfast.errors import ConfigError, ModelError
from holdfast.runtime.models.base import Delta, DeltaKind, Request

SCRIPT_LOG: Final = "HOLDFAST_SCRIPT_LOG"
_KEYS: Final = frozenset({"text", "thinking", "calls", "output", "delay_ms", "error", "summary"})
_CALL_KEYS: Final = frozenset({"tool", "args", "id"})


class ScriptedModel:
    """Plays `turns`; `requests` is what it was asked."""

    def __init__(self, turns: Sequence[Mapping[str, Any]], *, name: str = "scripted") -> None:
        self.turns = [_checked(turn, number, name) for number, turn in enumerate(turns, 1)]
        self.requests: list[Request] = []
        self._name = name

    @classmethod
    def read(cls, path: Path) -> "ScriptedModel":
        """The script in a JSON file."""
        try:
            turns = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(
                f"the script {path} cannot be read: {error.strerror}",
                code="SCRIPT_INVALID",
                hint="write scripted:PATH, relative to where you are or to the YAML file",
            ) from error
        except ValueError as error:
            raise ConfigError(
                f"the script {path} is not JSON: {error}", code="SCRIPT_INVALID"
            ) from error
        if not isinstance(turns, list):
            raise ConfigError(f"the script {path} is not a list of turns", code="SCRIPT_INVALID")
        return cls(turns, name=f"scripted:{path.name}")

    @property
    def name(self) -> str:
        """What the log calls it."""
        return self._name

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Play the turn after those that the history has."""
        told = sum(isinstance(message, AssistantMessage) for message in request.messages)
        played = max(told, request.turn - 1)  # a summary may stand for answers
        self.requests.append(request)
        _log(request, played)
        turn: Mapping[str, Any] = (
            self.turns[played] if played < len(self.turns) else {"text": "done"}
        )
        if turn.get("delay_ms"):
            await anyio.sleep(turn["delay_ms"] / 1000)
        if request.purpose == "summary":
            turn = {
                "text": turn.get("summary") or f"The first {len(request.messages) - 1} messages."
            }
        if turn.get("error"):
            raise ModelError(turn["error"], hint="change the script, then resume the session")
        kinds: tuple[DeltaKind, ...] = ("thinking", "text")
        for kind in kinds:
            for word in re.findall(r"\S+\s*|\s+", turn.get(kind) or ""):
                yield Delta(request.session_id, request.turn, kind, word)
                await anyio.lowlevel.checkpoint()
        yield self._whole(turn, request, played)

    def _whole(self, turn: Mapping[str, Any], request: Request, played: int) -> Answer:
        calls = tuple(
            AskedCall(
                call.get("id") or f"call_{played + 1}_{n}", call["tool"], call.get("args", {})
            )
            for n, call in enumerate(turn.get("calls", ()), 1)
        )
        text = turn.get("text") or ""
        output = turn.get("output")
        return Answer(
            text=text,
            calls=calls,
            thinking=turn.get("thinking"),
            output=None if "output" not in turn else msgspec.json.encode(output),
            usage={
                "inputTokens": sum(len(repr(m)) for m in request.messages[-2:]) // 4,
                "outputTokens": len(text) // 4 + 8 * len(calls),
            },
            stop="tool_use" if calls else "end_turn",
            provider="scripted",
            model=self._name,
        )


def _checked(turn: Any, number: int, name: str) -> dict[str, Any]:
    where = f"turn {number} of the script {name}"
    if not isinstance(turn, Mapping):
        raise ConfigError(f"{where} is not an object", code="SCRIPT_INVALID")
    unknown = sorted(set(turn) - _KEYS)
    if unknown:
        raise ConfigError(
            f"{where} has unknown keys: {', '.join(unknown)}",
            code="SCRIPT_INVALID",
            hint=f"a turn has {', '.join(sorted(_KEYS))}",
        )
    for call in turn.get("calls", ()):
        named = isinstance(call, Mapping) and isinstance(call.get("tool"), str)
        if not named or set(call) - _CALL_KEYS or not isinstance(call.get("args", {}), Mapping):
            raise ConfigError(
                f"{where} has a call that is not {{tool, args, id}}: {call!r}",
                code="SCRIPT_INVALID",
            )
    return dict(turn)


def _log(request: Request, played: int) -> None:
    """Append one line, so that a repeated request can be counted from outside."""
    path = os.environ.get(SCRIPT_LOG)
    if not path:
        return
    asked = json.dumps([asdict(m) for m in request.messages], sort_keys=True, default=str)
    line = {
        "session": request.session_id,
        "turn": played,
        "messages": hashlib.sha256(asked.encode()).hexdigest()[:16],
        "purpose": request.purpose,
    }
    with Path(path).open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
