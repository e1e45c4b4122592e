"""A model that plays turns from a list: for tests, demos and work without a network.

Turn *k* answers the request whose history already has *k* answers, so a restart changes nothing;
past the end it answers `done`. Text is streamed word by word. What a turn has as `summary` is said
if, instead of the turn, a summary of what was before is asked for. A turn with an `error` fails:
with `{"text", "code", "transient", "retry_after_ms", "times", "after"}` as a provider would, after
so many words, and where `times` is given, only so often; then it is played.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec

from perdure.core.conversation.messages import Answer, AskedCall, AssistantMessage
from perdure.errors import ConfigError, ModelError, ModelUnavailable
from perdure.runtime.models.base import Delta, DeltaKind, Request

SCRIPT_LOG: Final = "PERDURE_SCRIPT_LOG"
_KEYS: Final = frozenset(
    {"text", "thinking", "calls", "output", "delay_ms", "error", "summary", "stop"}
)
_CALL_KEYS: Final = frozenset({"tool", "args", "id"})
_ERROR_KEYS: Final = frozenset({"text", "code", "transient", "retry_after_ms", "times", "after"})


class ScriptedModel:
    """Plays `turns`; `requests` is what it was asked."""

    def __init__(self, turns: Sequence[Mapping[str, Any]], *, name: str = "scripted") -> None:
        self.turns = [_checked(turn, number, name) for number, turn in enumerate(turns, 1)]
        self.requests: list[Request] = []
        self._name = name
        self._failed: Counter[tuple[str, int]] = Counter()  # by session and turn, how often

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
        whole = self._whole(turn, request, played)
        error = self._error(turn.get("error"), request.session_id, played)
        left = None if error is None else int(error.get("after", 0))
        for kind, word, call_id in _words(whole):
            if left == 0:
                break
            left = None if left is None else left - 1
            yield Delta(request.session_id, request.turn, kind, word, call_id)
            await anyio.lowlevel.checkpoint()
        if error is not None:
            raise _raised(error)
        yield whole

    def _error(self, said: Any, session_id: str, played: int) -> Mapping[str, Any] | None:
        """What the turn fails with, this time."""
        if not said:
            return None
        error: Mapping[str, Any] = {"text": said} if isinstance(said, str) else said
        if self._failed[session_id, played] >= error.get("times", float("inf")):
            return None
        self._failed[session_id, played] += 1
        return error

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
            stop=turn.get("stop") or ("tool_use" if calls else "end_turn"),
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
    error = turn.get("error")
    if isinstance(error, Mapping) and (set(error) - _ERROR_KEYS or "text" not in error):
        raise ConfigError(
            f"{where} has an error that is not {{{', '.join(sorted(_ERROR_KEYS))}}}: {error!r}",
            code="SCRIPT_INVALID",
        )
    for call in turn.get("calls", ()):
        named = isinstance(call, Mapping) and isinstance(call.get("tool"), str)
        if not named or set(call) - _CALL_KEYS or not isinstance(call.get("args", {}), Mapping):
            raise ConfigError(
                f"{where} has a call that is not {{tool, args, id}}: {call!r}",
                code="SCRIPT_INVALID",
            )
    return dict(turn)


def _words(answer: Answer) -> Iterator[tuple[DeltaKind, str, str | None]]:
    """What an answer is streamed as."""
    said: list[tuple[DeltaKind, str | None, str | None]] = [
        ("thinking", answer.thinking, None),
        ("text", answer.text, None),
    ]
    said += [("args", json.dumps(call.params), call.id) for call in answer.calls if call.params]
    for kind, text, call_id in said:
        for word in re.findall(r"\S+\s*|\s+", text or ""):
            yield kind, word, call_id


def _raised(error: Mapping[str, Any]) -> ModelError:
    hint = "change the script, then resume the session"
    if error.get("transient"):
        return ModelUnavailable(error["text"], retry_after_ms=error.get("retry_after_ms"))
    return ModelError(error["text"], code=error.get("code"), hint=hint)


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
