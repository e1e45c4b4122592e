"""Checkpoints over HTTP: archives out and in, bounded, and only for those who may."""

import gzip
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.http_client import MakeClient
from tests.support.http_shop import TOKENS

from perdure import Runtime, asgi

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rt(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime("memory:", tasks={"root": tmp_path / "tasks"}) as opened:
        yield opened


@pytest.fixture
async def checkpoint(rt: Runtime, client_of: MakeClient, tmp_path: Path) -> str:
    """Return the path of a checkpoint with one file."""
    async with client_of(asgi(rt, auth=TOKENS)) as admin:
        await admin.post("/tasks", json={"name": "n", "taskID": "t"})
        (tmp_path / "tasks/t/workspace/a").write_bytes(b"\0" * 1000)
        taken = await admin.post("/tasks/t/checkpoints", json={"description": "good"})
    return f"/tasks/t/checkpoints/{taken.json()['checkpointID']}"


async def test_an_export_can_be_imported_into_another_task(
    rt: Runtime, client_of: MakeClient, checkpoint: str, tmp_path: Path
) -> None:
    """S3.50"""
    async with client_of(asgi(rt, auth=TOKENS)) as client:
        archive = await client.get(f"{checkpoint}/export")
        assert archive.headers["content-type"] == "application/octet-stream"
        assert int(archive.headers["content-length"]) == len(archive.content)
        await client.post("/tasks", json={"name": "n", "taskID": "u"})
        imported = await client.post("/tasks/u/import", content=archive.content)
        assert imported.status_code == 201
        path = f"/tasks/u/checkpoints/{imported.json()['checkpointID']}"
        assert (await client.get(f"{path}/verify")).json()["ok"] is True
        assert (await client.post(f"{path}/restore")).status_code == 200
    assert (tmp_path / "tasks/u/workspace/a").read_bytes() == b"\0" * 1000


@pytest.mark.parametrize(
    "method, end, least",
    [
        ("GET", "/verify", "viewer"),
        ("GET", "/diff", "viewer"),
        ("GET", "/export", "operator"),
        ("POST", "/restore", "operator"),
        ("DELETE", "", "admin"),
    ],
)
async def test_content_leaves_and_changes_only_by_operators(
    rt: Runtime, client_of: MakeClient, checkpoint: str, method: str, end: str, least: str
) -> None:
    ranks = {"viewer": 0, "operator": 1, "admin": 2}
    for role, rank in ranks.items():
        async with client_of(asgi(rt, auth=TOKENS), as_=role) as client:
            answer = await client.request(method, f"{checkpoint}{end}")
        assert (answer.status_code == 200) is (rank >= ranks[least]), (role, answer.text)
        assert answer.status_code in (200, 403)


async def test_a_viewer_and_another_tenant_import_nothing(
    rt: Runtime, client_of: MakeClient, checkpoint: str
) -> None:
    app = asgi(rt, auth=TOKENS)
    async with client_of(app) as admin:
        archive = (await admin.get(f"{checkpoint}/export")).content
        for role, status in (("viewer", 403), ("acme-admin", 404)):
            async with client_of(app, as_=role) as client:
                answer = await client.post("/tasks/t/import", content=archive)
                assert answer.status_code == status
        assert len((await admin.get("/tasks/t/checkpoints")).json()["checkpoints"]) == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"\x1f\x8b", gzip.compress(b"x" * 2000, mtime=0), b"{}"],
    ids=["empty", "cut", "zip", "json"],
)
async def test_a_body_that_is_not_an_archive_is_refused_and_leaves_nothing(
    rt: Runtime, client_of: MakeClient, checkpoint: str, content: bytes, tmp_path: Path
) -> None:
    folder = tmp_path / "tasks/t/checkpoints"
    before = sorted(folder.rglob("*"))
    async with client_of(asgi(rt, auth=TOKENS)) as client:
        answer = await client.post("/tasks/t/import", content=content)
    assert (answer.status_code, answer.json()["code"]) == (400, "CHECKPOINT_INVALID")
    assert sorted(folder.rglob("*")) == before


async def test_an_upload_is_bounded_and_takes_no_memory(
    rt: Runtime, client_of: MakeClient, checkpoint: str
) -> None:
    async def pieces(number: int) -> AsyncIterator[bytes]:
        for _ in range(number):
            yield bytes(2**16)

    async def send(client: Any, number: int) -> Any:
        return await client.post("/tasks/t/import", content=pieces(number))

    async with client_of(asgi(rt, auth=TOKENS)) as client:
        assert (await send(client, 200)).status_code == 413
        await send(client, 1)
        tracemalloc.start()
        try:
            assert (await send(client, 150)).json()["code"] == "CHECKPOINT_INVALID"
            assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
        finally:
            tracemalloc.stop()
