"""A browser and a server for the tests of a module, and people who sign in."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect
from tests.servers.browser import chromium
from tests.servers.fixtures import wanted
from tests.support.server import Server
from tests.support.ui_pages import Person, sign_in
from tests.support.ui_project import ui_server

SignIn = Callable[..., Person]

expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Browser that the tests of a module share; its event loop would disturb async tests."""
    context = chromium()
    yield wanted(context.__enter__)
    context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server of the shop that the tests of a module share."""
    with ui_server(tmp_path_factory.mktemp("ui")) as started:
        yield started


@pytest.fixture
def person(browser: Browser, server: Server) -> Iterator[SignIn]:
    """Return a factory of people, each signed in with a browser of their own."""
    people: list[Person] = []

    def begin(name: str | None = "ana", **options: Any) -> Person:
        people.append(sign_in(browser, server, name, **options))
        return people[-1]

    yield begin
    for one in people:
        one.leave()
