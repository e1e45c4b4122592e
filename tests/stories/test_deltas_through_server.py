"""Text as it comes, where the server is not the process that drives."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from tests.stories.test_many_readers import YAML, say, worker
from tests.support.server import Server

SAID = "It is being looked into, word by word, and this takes a while."
RUNS = 20


async def blocks(lines: AsyncIterator[str]) -> "list[tuple[str, Any]]":
    """The events of a stream, with their data, up to the end of a run."""
    found: list[tuple[str, Any]] = []
    name = ""
    async for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            found.append((name, json.loads(line.removeprefix("data: "))))
            if name == "agent_complete":
                break
    return found


async def test_a_server_shows_the_pieces_of_what_another_process_drives(tmp_path: Path) -> None:
    """A response may end before its worker knows of the reader; the next one shows its pieces."""
    (tmp_path / "perdure.yaml").write_text(YAML)
    turns = [{"text": "Hello."}, *[{"text": SAID}] * RUNS]
    (tmp_path / "turns.json").write_text(json.dumps(turns))
    path, headers = "/sessions/s/events?deltas=1", {"Accept": "text/event-stream"}
    with Server(tmp_path, "--no-worker", "--config", "perdure.yaml") as server, worker(tmp_path):
        async with httpx2.AsyncClient(base_url=server.url, timeout=30) as client:
            with anyio.fail_after(50):
                await say(client, "s", "one")
                first = await client.post("/sessions/s/resume", json={"wait": 30})
                headers["Last-Event-ID"] = str(first.json()["seq"])
                async with client.stream("GET", path, headers=headers) as response:
                    lines = response.aiter_lines()
                    for turn in range(2, RUNS + 2):
                        await say(client, "s", f"turn {turn}")
                        found = await blocks(lines)
                        names = [name for name, _ in found]
                        if "delta" in names:
                            break
                    else:
                        pytest.fail("no response was shown in pieces")
    assert "delta" not in names[names.index("assistant") :]
    deltas = [data for name, data in found if name == "delta"]
    assert "".join(one["text"] for one in deltas) == SAID
    assert {(one["kind"], one["turn"]) for one in deltas} == {("text", turn)}
