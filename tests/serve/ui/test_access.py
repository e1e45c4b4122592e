"""Pages for people who cannot see them, use no mouse, or hold a phone."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from tests.serve.ui.conftest import SignIn
from tests.support.server import Server
from tests.support.ui_pages import pending_of, start_session


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(theme: str, server: Server, person: SignIn) -> None:
    session = start_session(server, "many")
    done = start_session(server, "slow")
    calls = {tool: call["id"] for tool, call in pending_of(server, session).items()}
    admin = person("admin", color_scheme=theme, reduced_motion="reduce")
    paths = [
        *("/", "/sessions", "/agents", "/nowhere", "/sign-in"),
        *(f"/pending/{calls[tool]}" for tool in ("refund", "ask_user", "deploy_preview")),
        *(f"/pending/{calls['refund']}#deny", f"/sessions/{done}"),
        *(f"/sessions/{session}?tab={tab}" for tab in ("timeline", "conversation", "state", "raw")),
    ]
    axe = Axe()
    for path in paths:
        page = admin.open(path)
        expect(page.locator("main")).to_be_visible()
        violations = axe.run(page).response["violations"]
        serious = [
            (item["id"], item["nodes"][0]["html"][:160])
            for item in violations
            if item["impact"] in ("serious", "critical")
        ]
        assert serious == [], path


def test_a_phone_never_scrolls_sideways(server: Server, person: SignIn) -> None:
    session = start_session(server, "many")
    admin = person("admin", width=375)
    calls = [call["id"] for call in pending_of(server, session).values()]
    tabs = [f"/sessions/{session}?tab={tab}" for tab in ("timeline", "conversation", "state")]
    for path in ("/", "/sessions", "/agents", *tabs, *(f"/pending/{item}" for item in calls)):
        page = admin.open(path)
        expect(page.locator("main")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 375, path
