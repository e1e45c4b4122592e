"""A model that plays turns from a list: for tests, demos and work without a network.

Turn *k* is the response to a request whose history already has *k* responses, so a restart changes
nothing; past the end the response is `done`. Text is streamed word by word. The `summary` of a turn
is the response if a summary is requested instead of the turn. A turn with an `error` of the form
`{"text", "code", "transient", "retry_after_ms", "times", "after"}` fails as a provider would, after
that many words; with `times` only that often, and then it is played.
"""

import asyncio
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.core.conversation.messages import Answer, AssistantMessage, RequestedCall
from perdure.core.conversation.repair.json_values import to_text
from perdure.errors import ConfigError, ModelError, ModelUnavailable
from perdure.runtime.models.base import Request
from perdure.views.events import Delta, DeltaKind
from perdure.views.usage import Usage

SCRIPT_LOG: Final = "PERDURE_SCRIPT_LOG"
_MESSAGES_KEPT: Final = 10_000
_KEYS: Final = frozenset(
    {"text", "thinking", "calls", "output", "delay_ms", "error", "summary", "stop"}
)
_CALL_KEYS: Final = frozenset({"tool", "args", "id"})
_ERROR_KEYS: Final = frozenset({"text", "code", "transient", "retry_after_ms", "times", "after"})


class ScriptedModel:
    """Plays `turns`; `requests` has the last requests that it got.

    It forgets the oldest ones beyond 10,000 messages, so that a server does not grow.
    """

    def __init__(self, turns: Sequence[Mapping[str, Any]], *, name: str = "scripted") -> None:
        self.turns = [_check_turn(turn, number, name) for number, turn in enumerate(turns, 1)]
        self.requests: list[Request] = []
        self._messages_kept = 0  # in those requests
        self._name = name
        self._failed: Counter[tuple[str, int]] = Counter()  # by session and turn

    @classmethod
    def read(cls, path: Path) -> "ScriptedModel":
        """Read the script in a JSON file. Raises ConfigError."""
        try:
            turns = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise ConfigError(
                f"the script {path} cannot be read: {error.strerror}",
                code="SCRIPT_INVALID",
                hint="write scripted:PATH, relative to the current folder or to the YAML file",
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
        """Name in the log."""
        return self._name

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Play the turn after those in the history."""
        responses = sum(isinstance(message, AssistantMessage) for message in request.messages)
        played = max(responses, request.turn - 1)  # a summary may have replaced responses
        self._keep(request)
        _log(request, played)
        turn: Mapping[str, Any] = (
            self.turns[played] if played < len(self.turns) else {"text": "done"}
        )
        if turn.get("delay_ms"):
            await asyncio.sleep(turn["delay_ms"] / 1000)
        if request.purpose == "summary":
            turn = {
                "text": turn.get("summary") or f"The first {len(request.messages) - 1} messages."
            }
        answer = self._answer(turn, request, played)
        error = self._error(turn.get("error"), request.session_id, played)
        words_left = None if error is None else int(error.get("after", 0))
        for kind, word, call_id in _words(answer):
            if words_left == 0:
                break
            words_left = None if words_left is None else words_left - 1
            yield Delta(request.session_id, request.turn, kind, word, call_id)
            await asyncio.sleep(0)
        if error is not None:
            raise _model_error(error)
        yield answer

    def _keep(self, request: Request) -> None:
        self.requests.append(request)
        self._messages_kept += len(request.messages)
        while self._messages_kept > _MESSAGES_KEPT and len(self.requests) > 1:
            self._messages_kept -= len(self.requests.pop(0).messages)

    def _error(self, entry: Any, session_id: str, played: int) -> Mapping[str, Any] | None:
        """Return the error of the turn, if it fails this time."""
        if not entry:
            return None
        error: Mapping[str, Any] = {"text": entry} if isinstance(entry, str) else entry
        if self._failed[session_id, played] >= error.get("times", float("inf")):
            return None
        self._failed[session_id, played] += 1
        return error

    def _answer(self, turn: Mapping[str, Any], request: Request, played: int) -> Answer:
        calls = tuple(
            RequestedCall(
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
            usage=Usage(
                input_tokens=sum(len(repr(m)) for m in request.messages[-2:]) // 4,
                output_tokens=len(text) // 4 + 8 * len(calls),
            ),
            stop_reason=turn.get("stop") or ("tool_use" if calls else "end_turn"),
            provider="scripted",
            model=self._name,
        )


def _check_turn(turn: Any, number: int, name: str) -> dict[str, Any]:
    label = f"turn {number} of the script {name}"
    if not isinstance(turn, Mapping):
        raise ConfigError(f"{label} is not an object", code="SCRIPT_INVALID")
    unknown = sorted(set(turn) - _KEYS)
    if unknown:
        raise ConfigError(
            f"{label} has unknown keys: {', '.join(unknown)}",
            code="SCRIPT_INVALID",
            hint=f"a turn has {', '.join(sorted(_KEYS))}",
        )
    error = turn.get("error")
    if isinstance(error, Mapping) and (set(error) - _ERROR_KEYS or "text" not in error):
        raise ConfigError(
            f"{label} has an error that is not {{{', '.join(sorted(_ERROR_KEYS))}}}: {error!r}",
            code="SCRIPT_INVALID",
        )
    for call in turn.get("calls", ()):
        has_tool = isinstance(call, Mapping) and isinstance(call.get("tool"), str)
        if not has_tool or set(call) - _CALL_KEYS or not isinstance(call.get("args", {}), Mapping):
            raise ConfigError(
                f"{label} has a call that is not {{tool, args, id}}: {call!r}",
                code="SCRIPT_INVALID",
            )
    return dict(turn)


def _words(answer: Answer) -> Iterator[tuple[DeltaKind, str, str | None]]:
    """Return the words of a response as they are streamed: kind, word and call id."""
    texts: list[tuple[DeltaKind, str | None, str | None]] = [
        ("thinking", answer.thinking, None),
        ("text", answer.text, None),
    ]
    texts += [("args", to_text(call.params), call.id) for call in answer.calls if call.params]
    for kind, text, call_id in texts:
        for word in re.findall(r"\S+\s*|\s+", text or ""):
            yield kind, word, call_id


def _model_error(error: Mapping[str, Any]) -> ModelError:
    hint = "change the script, then resume the session"
    if error.get("transient"):
        return ModelUnavailable(error["text"], retry_after_ms=error.get("retry_after_ms"))
    return ModelError(error["text"], code=error.get("code"), hint=hint)


def _log(request: Request, played: int) -> None:
    """Append one line to the script log, so that tests can count requests across processes."""
    path = os.environ.get(SCRIPT_LOG)
    if not path:
        return
    plain = [msgspec.to_builtins(item, builtin_types=(bytes,)) for item in request.messages]
    messages = json.dumps(plain, sort_keys=True, default=str)
    line = {
        "session": request.session_id,
        "turn": played,
        "messages": hashlib.sha256(messages.encode()).hexdigest()[:16],
        "purpose": request.purpose,
    }
    with Path(path).open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")
