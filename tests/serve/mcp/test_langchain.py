"""An agent of LangChain with our tools: langchain-mcp-adapters and ChatOpenAI, in a process.

The adapter needs an older SDK of MCP than perdure, so it runs in an environment of its own.
"""

import json
import subprocess
from typing import Any, Final

from tests.serve.mcp.test_clients import served
from tests.support.environments import python_of

from perdure.testing.endpoint import fake_endpoint

APIS: Final = ("chat completions", "responses")  # of OpenAI
PROGRAM: Final = """
import asyncio, json, sys
from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from langchain_openai import ChatOpenAI

async def main(mcp_url, model_url, *apis):
    server = {"transport": "streamable_http", "url": mcp_url}
    tools = await MultiServerMCPClient({"perdure": server}).get_tools()
    for api in apis:
        is_new = api == "responses"
        model = ChatOpenAI(
            model="gpt-5", base_url=model_url, api_key="any", use_responses_api=is_new
        )
        result = await create_agent(model, tools).ainvoke({"messages": [("user", "Find primes")]})
        *_, last = messages = result["messages"]
        results = [
            (one.name, json.loads(one.text)["success"]) for one in messages if one.type == "tool"
        ]
        print(json.dumps([*results, last.text]))

asyncio.run(main(*sys.argv[1:]))
"""
CALLS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("create_task_sandbox", {"taskId": "primes", "name": "Primes"}),
    ("attach_agent_to_task", {"taskId": "primes", "agentId": "me"}),
    ("execute_in_task", {"taskId": "primes", "command": "echo 2 3 5"}),
    ("get_task_status", {"taskId": "primes"}),
    ("list_tasks", {}),
    ("detach_agent_from_task", {"taskId": "primes", "agentId": "me"}),
    ("cancel_task", {"taskId": "primes"}),
    ("delete_task", {"taskId": "primes"}),
)
TURNS: Final = [{"calls": [{"tool": tool, "args": args}]} for tool, args in CALLS]
END: Final = "All is done."


def test_an_agent_of_langchain_calls_every_tool_and_what_it_then_asks_is_valid() -> None:
    python = python_of("langchain", "langchain-mcp-adapters")
    with served() as server, fake_endpoint([*TURNS, {"text": END}]) as endpoint:
        words = [f"{server.url}/mcp", f"{endpoint.url}/v1", *APIS]
        command = [python, "-c", PROGRAM, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert endpoint.refused == []
    results = [[tool, True] for tool, _ in CALLS]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[*results, END]] * 2
