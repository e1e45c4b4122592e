"""Loop of model turns in its own process: `python -m bench.model_loops JOB`.

A job names the client (`sdk`: only the provider's library, or `perdure`), the format, the URL of
the endpoint, the folder and the number of sessions.
"""

import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import anyio

from perdure import Agent, Runtime, tool
from perdure.app import around_store
from perdure.runtime.models.resolve import named_model
from perdure.store.base import Check, Heads, Put, Store, Write

TURNS = 20  # per session, each with one call; a last turn without a call follows
SCHEMA = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
NAMES = {
    "anthropic": ("anthropic", "claude-sonnet-4-6"),
    "openai-chat": ("openai", "gpt-4.1"),
    "openai-responses": ("openai-responses", "gpt-5"),
}
KEY = "bench"
PROMPT = "Take all steps."
RunSession = Callable[[], Awaitable[None]]


def script() -> list[dict[str, Any]]:
    """Return the turns that the endpoint plays in every session."""
    turns: list[dict[str, Any]] = [
        {"text": f"Step {n}.", "calls": [{"tool": "step", "args": {"number": n}}]}
        for n in range(TURNS)
    ]
    return [*turns, {"text": "All steps are taken."}]


# --- the provider's library alone --------------------------------------------------------------


async def run_sdk(
    format_: str, url: str, folder: Path, measure_sessions: Callable[[RunSession], Awaitable[None]]
) -> None:
    """Run sessions with a minimal loop around the provider's library."""
    if format_ == "anthropic":
        import anthropic

        async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0) as client:
            await measure_sessions(lambda: _run_anthropic(client))
        return
    import openai

    async with openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0) as client:
        run_session = _run_chat if format_ == "openai-chat" else _run_responses
        await measure_sessions(lambda: run_session(client))


async def _run_anthropic(client: Any) -> None:
    tools = [{"name": "step", "description": "Take a step.", "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    model = NAMES["anthropic"][1]
    while True:
        options = {"model": model, "max_tokens": 4096, "tools": tools, "messages": messages}
        blocks = await _read_blocks(await client.messages.create(**options, stream=True))
        messages.append({"role": "assistant", "content": blocks})
        calls = [(b["id"], b["input"]["number"]) for b in blocks if b["type"] == "tool_use"]
        if not calls:
            return
        kind = "tool_result"
        results = [{"type": kind, "tool_use_id": id_, "content": _take_step(n)} for id_, n in calls]
        messages.append({"role": "user", "content": results})


async def _read_blocks(stream: Any) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    arguments = ""
    async for event in stream:
        if event.type == "content_block_start":
            blocks.append(event.content_block.to_dict())
            arguments = ""
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            blocks[-1]["text"] += event.delta.text
        elif event.type == "content_block_delta":
            arguments += event.delta.partial_json
        elif event.type == "content_block_stop" and blocks[-1]["type"] == "tool_use":
            blocks[-1]["input"] = json.loads(arguments)
    return blocks


async def _run_chat(client: Any) -> None:
    function = {"name": "step", "description": "Take a step.", "parameters": SCHEMA}
    tools = [{"type": "function", "function": function}]
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    model = NAMES["openai-chat"][1]
    while True:
        options = {"model": model, "tools": tools, "messages": messages}
        stream_options = {"include_usage": True}
        text, calls = "", list[dict[str, Any]]()
        stream = await client.chat.completions.create(
            **options, stream=True, stream_options=stream_options
        )
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for piece in choice.delta.tool_calls or ():
                    if piece.id:
                        calls.append({"id": piece.id, "name": piece.function.name, "args": ""})
                    calls[-1]["args"] += piece.function.arguments or ""
        if not calls:
            return
        functions = [{"name": call["name"], "arguments": call["args"]} for call in calls]
        tool_calls = [
            {"id": call["id"], "type": "function", "function": function}
            for call, function in zip(calls, functions, strict=True)
        ]
        messages.append({"role": "assistant", "content": text, "tool_calls": tool_calls})
        for call in calls:
            result = _take_step(json.loads(call["args"])["number"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def _run_responses(client: Any) -> None:
    function = {"name": "step", "description": "Take a step.", "parameters": SCHEMA}
    tools = [{"type": "function", "strict": False, **function}]
    items: list[Any] = [{"role": "user", "content": PROMPT}]
    model = NAMES["openai-responses"][1]
    while True:
        options = {"model": model, "tools": tools, "input": items, "store": False}
        output: list[Any] = []
        async for event in await client.responses.create(**options, stream=True):
            if event.type == "response.completed":
                output = event.response.output
        items += [item.to_dict(exclude_none=True) for item in output]
        calls = [item for item in output if item.type == "function_call"]
        if not calls:
            return
        for call in calls:
            result = _take_step(json.loads(call.arguments)["number"])
            kind = "function_call_output"
            items.append({"type": kind, "call_id": call.call_id, "output": result})


def _take_step(number: int) -> str:
    return f"taken: {number}"


# --- perdure ----------------------------------------------------------------------------------


class CountingStore:
    """Store that counts its commits."""

    commits = 0

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(
        self, writes: Sequence[Write], puts: Sequence[Put] = (), checks: Sequence[Check] = ()
    ) -> Heads:
        """Count the commit and pass it on."""
        CountingStore.commits += 1
        return await self._store.commit(writes, puts, checks)


@tool
async def step(number: int) -> str:
    """Take a step."""
    return _take_step(number)


async def run_perdure(
    format_: str, url: str, folder: Path, measure_sessions: Callable[[RunSession], Awaitable[None]]
) -> None:
    """Run durable sessions in one SQLite file."""
    provider, name = NAMES[format_]
    base_url = url if format_ == "anthropic" else f"{url}/v1"
    model = named_model(provider, name, "bench", api_key=KEY, base_url=base_url)
    agent = Agent("bench", model=model, tools=[step])
    around_store.set(lambda store: cast("Store", CountingStore(store)))
    async with Runtime(f"sqlite:///{folder / 'perdure.db'}", agents=[agent]) as rt:

        async def run_session() -> None:
            result = await rt.session(agent=agent).run(PROMPT)
            assert result.state == "completed", result.error

        await measure_sessions(run_session)
    await model.close()


LOOPS = {"sdk": run_sdk, "perdure": run_perdure}


async def measure(job: dict[str, Any]) -> dict[str, float]:
    """Return CPU time, wall time and commits per turn, without the first session: it warms up.

    CPU time outside this thread (`cpu_ms` - `loop_ms`) is that of the store's commit thread.
    """
    costs: dict[str, float] = {}

    async def measure_sessions(run_session: RunSession) -> None:
        await run_session()
        commits, wall = CountingStore.commits, time.perf_counter()
        cpu, loop = time.process_time(), time.thread_time()
        for _ in range(job["sessions"]):
            await run_session()
        turns = job["sessions"] * (TURNS + 1)
        costs["cpu_ms"] = (time.process_time() - cpu) * 1000 / turns
        costs["loop_ms"] = (time.thread_time() - loop) * 1000 / turns
        costs["wall_ms"] = (time.perf_counter() - wall) * 1000 / turns
        costs["commits"] = (CountingStore.commits - commits) / turns

    await LOOPS[job["client"]](job["format"], job["url"], Path(job["folder"]), measure_sessions)
    return costs


if __name__ == "__main__":
    print(json.dumps(anyio.run(measure, json.loads(sys.argv[1]))))
