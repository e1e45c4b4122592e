"""Every page for every role."""

import pytest
from tests.serve.ui.test_site import form_token, sign_in
from tests.support.http_client import MakeClient
from tests.support.http_shop import TOKENS, parked

from perdure import Runtime, asgi

HTML = {"Accept": "text/html"}
PAGES = ("/", "/pending/{approval}", "/sessions", "/sessions/s", "/agents", "/pending/{tool}")
# What a role is offered, by the form or link that does it.
OFFERS = {
    "/approve": ("approver", "operator", "admin"),
    "/deny": ("approver", "operator", "admin"),
    "/sessions/s/cancel": ("operator", "admin"),
    "/sessions/s/messages": ("operator", "admin"),
    "/sessions/s/export": ("admin",),
    "/sessions/s/delete": ("admin",),
    "/result": ("submitter", "operator", "admin"),
}


@pytest.mark.parametrize("role", ["viewer", "submitter", "approver", "operator", "admin"])
async def test_a_role_sees_its_pages_and_is_offered_only_what_it_may(
    role: str, rt: Runtime, client_of: MakeClient
) -> None:
    """G11"""
    ids = await parked(rt)
    client = client_of(asgi(rt, auth=TOKENS), as_=role, headers=HTML)
    texts: dict[str, str] = {}
    for path in PAGES:
        page = await client.get(path.format(**ids))
        is_allowed = role != "submitter" or path in ("/", "/pending/{tool}")
        expected = 200 if is_allowed else 404 if path.startswith("/pending") else 403
        assert page.status_code == expected, path
        assert page.headers["content-type"].startswith("text/html")
        texts[path] = page.text if page.status_code == 200 else ""
        if page.status_code in (200, 403, 404):
            links = [f'<a href="{link}"' in page.text for link in ("/sessions", "/tasks")]
            assert links == [role != "submitter"] * 2, path
    offered = "".join(texts.values())
    for action, roles in OFFERS.items():
        assert (f'{action}"' in offered) == (role in roles), action


async def test_a_form_that_a_role_may_not_send_is_refused(
    rt: Runtime, client_of: MakeClient
) -> None:
    ids = await parked(rt)
    viewer = client_of(asgi(rt, auth=TOKENS), as_=None, headers=HTML)
    await sign_in(viewer, "viewer-token")
    data = {"form_token": form_token((await viewer.get("/")).text), "content": "x"}
    for path in (f"/pending/{ids['approval']}/approve", "/sessions/s/cancel", "/sessions"):
        assert (await viewer.post(path, data=data)).status_code == 403
    assert (await rt.session("s").get()).state == "waiting"
