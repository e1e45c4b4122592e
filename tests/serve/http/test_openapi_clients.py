"""The description as others read it: a validator, and generators of clients in two languages."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from openapi_spec_validator import validate
from tests.support.npm import installed
from tests.support.server import run, shop_server

from perdure.serve.http.app import ROUTES
from perdure.serve.http.openapi import description

TYPESCRIPT: Final = ("openapi-typescript@7.13.0", "typescript@5.9.3")
# A program that somebody writes with the types that openapi-typescript made.
PROGRAM_TS: Final = """
import type { components, paths } from "./schema";
type Session = components["schemas"]["Session"];
type Calls = paths["/pending"]["get"]["responses"]["200"]["content"]["application/json"];
export const name = (session: Session): string => session.sessionID;
export const tools = (page: Calls): string[] => page.pending.map((call) => call.tool);
export const acts = (page: Calls): string[] => page.pending[0].can;
// @ts-expect-error there is no such field
export const wrong = (session: Session): string => session.sessionId;
"""
# The same with the client that openapi-python-client made: list, approve, read.
PROGRAM_PY: Final = """
import sys
from shop_client import Client
from shop_client.api.pending_calls import approve_call, list_pending
from shop_client.api.sessions import get_session
from shop_client.models import ApproveBody

client = Client(base_url=sys.argv[1])
(call,) = [c for c in list_pending.sync(client=client).pending if c.kind == "approval"]
assert "approve" in call.can, call.can
decided = approve_call.sync(call.id, client=client, body=ApproveBody(by="ana"))
assert decided.decision.by == "ana", decided
session = get_session.sync(call.session_id, client=client)
print(session.session_id, session.state, len(session.pending))
"""


@pytest.fixture(scope="module", params=[True, False], ids=["tokens", "no tokens"])
def document(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The description in a file."""
    path = tmp_path_factory.mktemp("openapi") / "openapi.json"
    path.write_text(json.dumps(description(ROUTES, has_tokens=request.param)))
    return path


def test_the_description_is_valid_and_every_operation_has_a_name_of_its_own(
    document: Path,
) -> None:
    content = json.loads(document.read_text())
    validate(content)
    operations = [item for methods in content["paths"].values() for item in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names) == len([route for route in ROUTES if route.is_described])
    assert all(operation["tags"] != [""] for operation in operations)


def test_typescript_programs_compile_against_the_description(document: Path) -> None:
    modules = installed("openapi-typescript", TYPESCRIPT, "OpenAPI in TypeScript")
    folder = document.parent
    (folder / "program.ts").write_text(PROGRAM_TS)
    for program, *words in (
        ("openapi-typescript", str(document), "-o", str(folder / "schema.d.ts")),
        ("tsc", "--strict", "--noEmit", str(folder / "program.ts")),
    ):
        command = [str(modules / ".bin" / program), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_generated_python_client_lists_approves_and_reads(tmp_path: Path) -> None:
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(description(ROUTES, has_tokens=False)))
    binaries = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}"}
    command = [f"{binaries}/openapi-python-client", "generate", "--path", str(document)]
    command += ["--output-path", str(tmp_path / "shop_client"), "--meta", "none"]
    made = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert made.returncode == 0, made.stderr
    assert "arning" not in made.stdout + made.stderr, made.stdout
    with shop_server(tmp_path) as server:
        assert run(tmp_path, "run", "shop", "Go", "-s", "s", "--app", "app:rt").returncode == 8
        used = subprocess.run(
            [sys.executable, "-c", PROGRAM_PY, server.url],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert used.returncode == 0, used.stderr
    assert used.stdout in ("s waiting 2\n", "s running 2\n")
