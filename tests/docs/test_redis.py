"""The page on the index in Redis tells the truth: its YAML is understood, its keys are there."""

import json
import re
from pathlib import Path
from typing import get_args

from redis.asyncio import Redis
from tests.support.paths import ROOT
from tests.support.shop import clerk, paused

from perdure import Runtime, config
from perdure.views.literals import PendingStatus

PAGE = (ROOT / "docs" / "redis.md").read_text()
(YAML,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def test_its_yaml_is_understood(tmp_path: Path) -> None:
    (tmp_path / "turns.json").write_text(json.dumps([]))
    file = tmp_path / "perdure.yaml"
    file.write_text(f"{YAML}\nagents: {{a: {{llm: 'scripted:turns.json'}}}}\n")
    assert config.load(file).store.index == "redis://localhost:6379/0"


async def test_its_keys_are_there(tmp_path: Path, redis_url: str) -> None:
    for status in get_args(PendingStatus):
        assert f"`{status}`" in PAGE
    one = clerk()
    store = f"sqlite:///{tmp_path / 'perdure.db'}"
    async with Runtime(store, agents=[one], index=redis_url) as rt:
        await paused(rt, one)
        assert len([call async for call in rt.pending(session="s")]) == 1
        assert len([call async for call in rt.pending(session="s")]) == 1
        client = Redis.from_url(redis_url, decode_responses=True)
        keys = {str(key) for key in await client.keys("pending:*")}
        await client.aclose()
    assert keys == {
        "pending:by-session:s",
        "pending:by-status:waiting",
        "pending:index",
        "pending:known",
    }
