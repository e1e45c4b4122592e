"""People in front of pages: a browser of their own, signed in, and what it complained about."""

import uuid
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page
from tests.support.server import Server
from tests.support.ui_project import token_of

_cookies: dict[tuple[str, str], list[Any]] = {}  # by server and name


@dataclass
class Person:
    """A browser window; `complaints` are errors of its scripts and of its content policy."""

    page: Page
    context: BrowserContext
    url: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Open a page of the server."""
        self.page.goto(self.url + path)
        return self.page

    def leave(self) -> None:
        """Close the window. No script failed, and nothing was blocked."""
        self.context.close()
        assert self.complaints == []


def sign_in(
    browser: Browser, server: Server, name: str | None, *, width: int = 1280, **options: Any
) -> Person:
    """Return a person in front of a new window; without a name it is not signed in."""
    size = {"width": width, "height": 740 if width < 500 else 900}
    context = browser.new_context(viewport=size, **options)  # type: ignore[arg-type]
    context.set_default_timeout(30_000)
    page = context.new_page()
    person = Person(page, context, server.url)
    page.on("pageerror", lambda error: person.complaints.append(str(error)))
    page.on("console", lambda message: _listen(person, message.text))
    page.on("request", lambda request: person.requests.append(request.url))
    if name is not None:
        _identify(person, name)
    return person


def _identify(person: Person, name: str) -> None:
    """Sign in by the form, or by the cookie of an earlier time: the server limits attempts."""
    cookies = _cookies.get((person.url, name))
    if cookies is not None:
        person.context.add_cookies(cookies)
        person.open("/")
        return
    page = person.open("/sign-in")
    page.fill("[name=answer]", token_of(name))
    page.click("button.primary")
    page.wait_for_url(lambda url: not url.endswith("/sign-in"))
    _cookies[person.url, name] = person.context.cookies()


def _listen(person: Person, text: str) -> None:
    if "Content Security Policy" in text or "Refused to" in text:
        person.complaints.append(text)


def start_session(server: Server, agent: str, **body: Any) -> str:
    """Start a session and wait until it is parked; return its id."""
    session_id: str = body.pop("sessionID", f"{agent}-{uuid.uuid4().hex[:8]}")
    client = server.http(token_of("admin"))
    answer = client.post(
        "/sessions",
        json={
            "agent": agent,
            "sessionID": session_id,
            "message": "Customer 991 paid twice.",
            "wait": 30,
            **body,
        },
    )
    assert answer.is_success, answer.text
    return session_id


def pending_of(server: Server, session_id: str) -> dict[str, dict[str, Any]]:
    """Return the open calls of a session by their tool."""
    client = server.http(token_of("admin"))
    session = client.get(f"/sessions/{session_id}").json()
    return {call["tool"]: call for call in session["pending"]}


def state_of(server: Server, session_id: str) -> str:
    """Return the state of a session, once it is parked."""
    client = server.http(token_of("admin"))
    state: str = client.post(f"/sessions/{session_id}/resume", json={"wait": 30}).json()["state"]
    return state
