"""Gemini through its own library: signatures of thoughts go back, also after a kill."""

import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.gemini import fake_gemini
from tests.support.models import KEY, look

from perdure import Agent, Delta, Runtime
from perdure.runtime.models.pydantic_ai.translation import dump_response
from perdure.runtime.models.resolve import named_model

SIGNED: Final = [b64encode(bytes([0, 255, 251, n])).decode() for n in (1, 2)]
ARGS: Final = {"name": "Zoë 東京", "zeal": 1.0, "deep": {"b": [], "a": None}}
TURNS: Final[list[list[dict[str, Any]]]] = [
    [
        {"text": "I should look.", "thought": True},
        {"text": "Let me look. "},
        {"functionCall": {"name": "look", "args": ARGS}, "thoughtSignature": SIGNED[0]},
    ],
    [{"text": "It is there.", "thoughtSignature": SIGNED[1]}],
    [{"text": "You are welcome."}],
]
BAD_KEY: Final[dict[str, Any]] = {
    "code": 400,
    "message": "API key not valid. Please pass a valid API key.",
    "status": "INVALID_ARGUMENT",
    "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
}
PROGRAM: Final = """
import os, signal, sys
from pathlib import Path
import anyio
from perdure import Agent, Runtime, tool
from perdure.runtime.models.resolve import named_model

@tool(idempotent=True)
def look(name: str = "", zeal: float = 0, deep: dict | None = None) -> str:
    if not Path("died").exists():
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"saw {name}"

async def main() -> None:
    model = named_model("google", "gemini-3-pro", "a", api_key="k", base_url=sys.argv[1])
    one = Agent("a", model=model, tools=[look])
    async with Runtime("sqlite:///h.db", agents=[one]) as rt:
        session = rt.session("s", agent=one)
        await session.run("Look.", key="one")
        print((await session.run("Thank you.", key="two")).output)

anyio.run(main)
"""


def agent_at(url: str) -> Agent[Any]:
    model = named_model("google", "gemini-3-pro", "a", api_key=KEY, base_url=url)
    return Agent("a", model=model, instructions="Look.", tools=[look])


async def test_what_gemini_sent_goes_back_with_its_signatures() -> None:
    """G6"""
    with fake_gemini(TURNS) as gemini:
        one = agent_at(gemini.url)
        async with Runtime("memory:", agents=[one]) as rt:
            session = rt.session("s", agent=one)
            items = [item async for item in session.stream("Look.")]
            last = await session.run("Thank you.")
            calls = [e.data["params"] for e in await session.events() if e.type == "tool_call"]
    assert (gemini.refused, gemini.asked) == ([], [0, 1, 2])
    assert last.output == "You are welcome."
    assert calls == [ARGS]
    deltas = [item for item in items if isinstance(item, Delta)]
    assert {item.kind for item in deltas} == {"text", "thinking", "args"}
    assert last.usage.requests == 3


def test_a_session_with_gemini_goes_on_after_a_kill(tmp_path: Path) -> None:
    """G2, G6"""
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path), "PERDURE_LEASE": "1s"}
    with fake_gemini(TURNS) as gemini:
        command = [sys.executable, "program.py", gemini.url]
        ended = [
            subprocess.run(
                command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
            )
            for _ in range(2)
        ]
    assert [one.returncode for one in ended] == [-9, 0], ended[-1].stderr
    assert ended[-1].stdout.strip() == "You are welcome."
    assert (gemini.refused, gemini.asked) == ([], [0, 1, 2])


async def test_a_signature_that_was_changed_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the fake can fail."""
    from perdure.runtime.models.pydantic_ai import request as asking

    def changed(response: Any) -> bytes:
        return dump_response(response).replace(SIGNED[0].encode(), SIGNED[1].encode())

    monkeypatch.setattr(asking, "dump_response", changed)
    with fake_gemini(TURNS) as gemini:
        one = agent_at(gemini.url)
        async with Runtime("memory:", agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("Look.")
    assert (result.state, len(gemini.refused)) == ("failed", 1)


@pytest.mark.parametrize(
    "error, code",
    [
        (BAD_KEY, "MODEL_KEY"),
        ({"code": 403, "message": "denied", "status": "PERMISSION_DENIED"}, "MODEL_KEY"),
        ({"code": 404, "message": "no such model", "status": "NOT_FOUND"}, "MODEL_UNKNOWN"),
    ],
)
async def test_what_gemini_refuses_is_told(error: dict[str, Any], code: str) -> None:
    with fake_gemini(TURNS) as gemini:
        gemini.fail_next.append(error)
        one = agent_at(gemini.url)
        async with Runtime("memory:", agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("Look.")
    assert result.error is not None
    assert result.error.code.startswith(code)
    assert "\n" not in result.error.message


async def test_gemini_that_is_busy_is_asked_again() -> None:
    with fake_gemini(TURNS[1:]) as gemini:
        busy = {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}
        gemini.fail_next.append(busy)
        one = agent_at(gemini.url)
        async with Runtime("memory:", agents=[one]) as rt:
            result = await rt.session("s", agent=one).run("Look.")
            retries = [e for e in await rt.session("s").events() if e.type == "retry"]
    assert (result.output, len(retries), gemini.asked) == ("It is there.", 1, [0, 0])
