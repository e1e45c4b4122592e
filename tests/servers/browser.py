"""Debian's Chromium, driven by Playwright."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright
from tests.servers.components import program


@contextmanager
def chromium() -> Iterator[Browser]:
    """Return a headless browser. Raises Missing."""
    path = program("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=[
                *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--disable-background-networking", "--disable-component-update"),
                "--disable-sync",
            ],
        )
        yield browser
        browser.close()
