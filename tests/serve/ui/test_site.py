"""Pages beside JSON: which of the two a request gets, sign-in, forms and static files."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.http_client import Client, MakeClient
from tests.support.http_shop import TOKENS, parked

from perdure import Principal, Runtime, asgi
from perdure.serve.assembly import server_application
from perdure.serve.http.middleware import LOOPBACK, Rules
from perdure.serve.http.setup import Setup
from perdure.serve.ui.visit import COOKIE, Visit

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
CLICK = {
    **HTML,
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}


def form_token(html: str) -> str:
    match = re.search(r'name="form_token" value="([^"]+)"', html)
    assert match is not None
    return match[1]


@pytest.fixture
async def visitor(rt: Runtime, client_of: MakeClient) -> Client:
    """Browser that is not signed in."""
    return client_of(asgi(rt, auth=TOKENS), as_=None, headers=HTML)


async def sign_in(visitor: Client, token: str, **more: str) -> Any:
    page = await visitor.get("/sign-in")
    data = {"form_token": form_token(page.text), "answer": token, **more}
    return await visitor.post("/sign-in", data=data)


async def test_a_browser_gets_a_page_and_a_program_gets_json(
    rt: Runtime, client_of: MakeClient
) -> None:
    client = client_of(asgi(rt, auth=TOKENS))
    assert (await client.get("/agents")).headers["content-type"] == "application/json"
    page = await client.get("/agents", headers=HTML)
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'none';")
    assert page.headers["vary"] == "Accept"
    for path in ("/agents.json", "/sessions.json"):
        json = await client.get(path, headers=HTML)
        assert json.headers["content-type"] == "application/json"


async def test_without_ui_there_are_no_pages(rt: Runtime, client_of: MakeClient) -> None:
    client = client_of(asgi(rt, auth=TOKENS, ui=False), headers=HTML)
    assert (await client.get("/agents")).headers["content-type"] == "application/json"
    assert (await client.get("/sign-in")).status_code == 404
    assert (await client.get("/", headers=CLICK)).status_code == 403


async def test_a_page_without_sign_in_asks_for_a_token(visitor: Client) -> None:
    page = await visitor.get("/agents?x=1")
    assert page.status_code == 401
    assert 'name="answer"' in page.text
    assert 'value="/agents?x=1"' in page.text


async def test_a_token_signs_in_and_the_cookie_opens_pages_and_streams(visitor: Client) -> None:
    answer = await sign_in(visitor, "approver-token", next="/agents")
    assert (answer.status_code, answer.headers["location"]) == (303, "/agents")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "secure" not in cookie
    assert "approver-token" not in cookie
    assert (await visitor.get("/agents")).status_code == 200
    assert (await visitor.get("/agents.json")).status_code == 200


async def test_the_cookie_is_secure_behind_tls(visitor: Client) -> None:
    page = await visitor.get("/sign-in")
    data = {"form_token": form_token(page.text), "answer": "viewer-token"}
    origin = {"Origin": "https://agents.example"}
    answer = await visitor.post("/sign-in", data=data, headers=origin)
    assert "secure" in answer.headers["set-cookie"].lower()


async def test_a_wrong_token_is_401_and_many_are_rate_limited(visitor: Client) -> None:
    answer = await sign_in(visitor, "wrong")
    assert answer.status_code == 401
    assert "not a token of this server" in answer.text
    statuses = [(await sign_in(visitor, "wrong")).status_code for _ in range(12)]
    assert statuses[-1] == 429
    assert (await sign_in(visitor, "viewer-token")).status_code == 429


async def test_sign_in_never_leads_to_another_site(visitor: Client) -> None:
    for target in ("https://evil.example/", "//evil.example", "/\\evil.example", "/a\\b", "x"):
        answer = await sign_in(visitor, "viewer-token", next=target)
        assert answer.headers["location"] == "/"


async def test_a_cookie_ends_with_its_token_and_with_its_time(
    rt: Runtime, client_of: MakeClient
) -> None:
    def browser(visit: Visit, tokens: dict[str, Principal]) -> Client:
        app = asgi(rt, auth=tokens)
        return client_of(app, as_=None, headers=HTML, cookies={COOKIE: visit.encode()})

    visit = Visit.begin("viewer", 2_000_000_000, "viewer-token")
    assert (await browser(visit, TOKENS).get("/agents")).status_code == 200
    others = {token: who for token, who in TOKENS.items() if who.name != "viewer"}
    assert (await browser(visit, others).get("/agents")).status_code == 401
    old = Visit.begin("viewer", 1_000, "viewer-token")
    assert (await browser(old, TOKENS).get("/agents")).status_code == 401
    other_name = Visit.begin("admin", 2_000_000_000, "viewer-token")
    assert (await browser(other_name, TOKENS).get("/agents")).status_code == 401


async def test_a_cookie_reads_json_but_changes_nothing_without_a_form(
    rt: Runtime, visitor: Client
) -> None:
    """G11"""
    ids = await parked(rt)
    await sign_in(visitor, "admin-token")
    assert (await visitor.get(f"/pending/{ids['approval']}.json")).status_code == 200
    answer = await visitor.post(
        f"/pending/{ids['approval']}/approve", json={}, headers={"Accept": "*/*"}
    )
    assert answer.status_code == 401
    assert (await visitor.delete("/sessions/s", headers={"Accept": "*/*"})).status_code == 401


async def test_a_click_on_another_site_opens_a_page_and_nothing_else_passes(
    rt: Runtime, client_of: MakeClient
) -> None:
    client = client_of(asgi(rt, auth=TOKENS))
    assert (await client.get("/agents", headers=CLICK)).status_code == 200
    refused: list[dict[str, str]] = [
        {**CLICK, "Sec-Fetch-Dest": "iframe"},
        {**CLICK, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {**CLICK, "Accept": "*/*"},
    ]
    for headers in refused:
        assert (await client.get("/agents", headers=headers)).status_code == 403
    for path in ("/agents.json", "/metrics", "/events"):
        assert (await client.get(path, headers=CLICK)).status_code == 403
    assert (await client.post("/decisions", headers=CLICK, data={"id": "p"})).status_code == 403


async def test_a_form_without_its_token_or_of_another_site_is_refused(
    rt: Runtime, visitor: Client
) -> None:
    ids = await parked(rt)
    await sign_in(visitor, "admin-token")
    path = f"/pending/{ids['approval']}/approve"
    for data in ({"note": "x"}, {"form_token": "x"}, {"form_token": "x" * 43}):
        answer = await visitor.post(path, data=data)
        assert answer.status_code == 403
        assert answer.headers["content-type"].startswith("text/html")
    token = form_token((await visitor.get("/")).text)
    foreign = {"Origin": "https://evil.example"}
    answer = await visitor.post(path, data={"form_token": token}, headers=foreign)
    assert answer.status_code == 403
    call = await visitor.get(f"/pending/{ids['approval']}.json")
    assert call.json()["status"] == "waiting"


_PART = b'--x\r\nContent-Disposition: form-data; name="a"%s\r\n\r\n%s\r\n--x--\r\n'


@pytest.mark.parametrize(
    "media_type, body",
    [
        ("application/x-www-form-urlencoded", b"a&" * 100_000),
        ("application/x-www-form-urlencoded", b"a=" + b"%41" * 2_000_000),
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=x", _PART % (b'; filename="f"', b"y")),
        ("multipart/form-data; boundary=x", _PART % (b"", b"y" * 2_000_000)),
    ],
    ids=["many fields", "large field", "no boundary", "file", "large part"],
)
async def test_a_form_that_cannot_be_read_is_the_mistake_of_its_sender(
    visitor: Client, media_type: str, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await visitor.get("/sign-in")
    answer = await visitor.post("/sign-in", content=body, headers={"Content-Type": media_type})
    assert answer.status_code == 400
    assert "the form cannot be read" in answer.text.lower()
    assert not [item for item in caplog.records if item.exc_info]


async def test_forms_of_strangers_share_the_memory_of_bodies_without_a_token(
    rt: Runtime, client_of: MakeClient
) -> None:
    limits = Rules(max_body=300_000, unauthenticated_bodies=300_000)
    principals = {"a-token": Principal("ana", "admin")}
    setup = Setup("127.0.0.1", 4747, principals, limits, "http://127.0.0.1:4747")
    visitor = client_of(server_application(rt, setup), as_=None, headers=HTML)
    half = asyncio.Event()
    rest = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"a=" + b"x" * 200_000
        half.set()
        await rest.wait()

    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(visitor.post("/sign-in", content=slow(), headers=headers))
        await asyncio.wait_for(half.wait(), 10)
        second = await visitor.post("/sign-in", content=b"a" * 200_000, headers=headers)
        rest.set()
    assert (second.status_code, first.result().status_code) == (503, 403)


async def test_static_files_may_be_kept_and_nothing_else(visitor: Client) -> None:
    page = await visitor.get("/sign-in")
    assert page.headers["cache-control"] == "no-store"
    names = set(re.findall(r"/static/[a-z]+-[0-9a-f]{12}\.(?:css|js|svg)", page.text))
    assert len(names) == 3
    size = len(page.content)
    for name in names:
        file = await visitor.get(name)
        assert file.status_code == 200
        assert file.headers["cache-control"] == "public, max-age=31536000, immutable"
        size += int(file.headers["content-length"])
    assert size < 100_000
    assert (await visitor.get("/static/perdure-000000000000.css")).status_code == 404


async def test_errors_of_pages_are_pages(rt: Runtime, client_of: MakeClient) -> None:
    client = client_of(asgi(rt, auth=TOKENS), headers=HTML)
    for path in ("/nowhere", "/sessions/nope/nothing"):
        answer = await client.get(path)
        assert answer.status_code == 404
        assert "Not found" in answer.text
        assert "<!doctype html>" in answer.text
    assert (await client.get("/nowhere", headers={"Accept": "*/*"})).json()["code"]


async def test_a_local_server_asks_once_for_a_name(rt: Runtime, client_of: MakeClient) -> None:
    setup = Setup("127.0.0.1", 4747, {}, Rules(hosts=LOOPBACK), "http://127.0.0.1:4747")
    client = client_of(server_application(rt, setup), as_=None, headers=HTML)
    client.base_url = "http://localhost"
    page = await client.get("/agents")
    assert "Who is deciding?" in page.text
    data = {"form_token": form_token(page.text), "answer": "ana", "next": "/agents"}
    assert (await client.post("/sign-in", data=data)).headers["location"] == "/agents"
    page = await client.get("/agents")
    assert "Who is deciding?" not in page.text
    assert "<b>ana</b>" in page.text


async def test_an_application_says_who_its_user_is(rt: Runtime, client_of: MakeClient) -> None:
    async def auth(request: Any) -> Principal | None:
        return Principal("zoe", "viewer") if request.headers.get("x-user") else None

    client = client_of(asgi(rt, auth=auth), as_=None, headers=HTML)
    assert (await client.get("/agents")).status_code == 401
    client.cookies.clear()
    page = await client.get("/agents", headers={"X-User": "zoe"})
    assert page.status_code == 200
    assert "<b>zoe</b>" in page.text
    assert COOKIE in page.headers["set-cookie"]


async def test_pages_of_a_mounted_application_link_below_its_path(
    rt: Runtime, client_of: MakeClient
) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = Starlette(routes=[Mount("/perdure", asgi(rt, auth=TOKENS))])
    page = await client_of(app, headers=HTML).get("/perdure/agents")
    assert page.status_code == 200
    links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
    assert links
    assert all(link.startswith("/perdure/") for link in links)


def test_the_help_of_the_command_line_loads_no_templates() -> None:
    program = (
        "import sys, perdure, perdure.cli.root\n"
        "print([name for name in ('jinja2', 'markdown_it', 'starlette') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_the_inbox_filters_by_tenant_for_those_who_see_several(
    rt: Runtime, client_of: MakeClient
) -> None:
    here, there = await parked(rt, "here"), await parked(rt, "there", tenant="acme")
    client = client_of(asgi(rt, auth=TOKENS), headers=HTML)
    every = (await client.get("/")).text
    assert here["approval"] in every
    assert there["approval"] in every
    assert 'href="/?tenant=acme"' in every
    narrowed = (await client.get("/?tenant=acme")).text
    assert there["approval"] in narrowed
    assert here["approval"] not in narrowed
    assert '<input type="hidden" name="tenant" value="acme">' in narrowed
    auth = {"acme-token": Principal("ana", role="approver", tenant="acme")}
    own = (await client_of(asgi(rt, auth=auth), as_="acme", headers=HTML).get("/")).text
    assert there["approval"] in own
    assert "?tenant=" not in own
