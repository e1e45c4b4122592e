"""Screenshots of the documentation: `python -m scripts.docs.screenshots` writes docs/images.

It starts a real server and Debian's Chromium, plays one story, and takes about a minute: one wait
must be long enough for the timeline to shorten it.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, expect
from tests.servers.browser import chromium
from tests.support.server import Server
from tests.support.ui_pages import pending_of, sign_in, start_session
from tests.support.ui_project import TURNS, token_of, ui_server

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
STORY: Final = [
    {
        "text": "Let me look at the order.",
        "calls": [{"tool": "lookup_order", "args": {"order_id": 991}}],
        "delay_ms": 900,
    },
    {**TURNS["many"][0], "text": "It was paid twice. I would pay one back.", "delay_ms": 1300},
    {"text": "All done.", "delay_ms": 800},
]
LONG_S: Final = 32  # the timeline shortens waits of more than 30 s


def main() -> None:
    """Write all screenshots."""
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        _server(Path(folder)) as server,
        chromium() as browser,
    ):
        start_session(server, "many", sessionID="order-991")
        start_session(server, "support", sessionID="order-992")
        _take(browser, server, "inbox", "/", height=860)
        _take_decision(browser, server)
        time.sleep(LONG_S)
        server.kill()
        server.start()
        calls = pending_of(server, "order-991")
        client = server.http(token_of("ana"))
        client.post(f"/pending/{calls['refund']['id']}/approve", json={"args": {"cents": 4000}})
        client.post(f"/pending/{calls['ask_user']['id']}/respond", json={"output": "eu-1"})
        _take(browser, server, "session", "/sessions/order-991", height=1000)


def _server(folder: Path) -> Server:
    """Return a server whose model takes some time, as real ones do."""
    server = ui_server(folder)
    (folder / "many.json").write_text(json.dumps(STORY))
    return server


def _take(browser: Browser, server: Server, name: str, path: str, *, height: int) -> None:
    """Write one page in both themes."""
    for theme in ("light", "dark"):
        person = sign_in(browser, server, "operator", color_scheme=theme)
        person.page.set_viewport_size({"width": 1180, "height": height})
        person.open(path)
        expect(person.page.locator("pd-link")).to_have_text("live")
        suffix = "" if theme == "light" else "-dark"
        person.page.screenshot(path=IMAGES / f"{name}{suffix}.png")
        person.leave()


def _take_decision(browser: Browser, server: Server) -> None:
    """Write the page of one decision on a phone, with one changed field."""
    call = pending_of(server, "order-992")["refund"]
    person = sign_in(browser, server, "ana", width=375, color_scheme="dark")
    page = person.open(f"/pending/{call['id']}")
    page.get_by_label("cents").fill("4000")
    expect(page.locator("[data-approve]")).to_have_text("Approve with 1 change")
    page.set_viewport_size({"width": 375, "height": 900})
    page.screenshot(path=IMAGES / "decision-phone.png")
    person.leave()


if __name__ == "__main__":
    main()
