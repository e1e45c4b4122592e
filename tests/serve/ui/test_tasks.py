"""Pages of tasks, health and deliveries in a browser."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from tests.serve.ui.conftest import SignIn
from tests.support.server import Server
from tests.support.ui_pages import start_session
from tests.support.ui_project import ROLES, token_of, ui_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server of the shop whose tasks run commands as another user."""
    folder = tmp_path_factory.mktemp("tasks")
    prepared = ui_server(folder)
    file = folder / "perdure.yaml"
    config = json.loads(file.read_text())
    config["tasks"] = {"sandbox": "none", "run_as": "nobody"}
    file.write_text(json.dumps(config))
    with prepared as started:
        yield started


def launched(server: Server, **body: Any) -> str:
    """Launch a background agent that parks at an approval."""
    client = server.http(token_of("admin"))
    answer = client.post("/tasks", json={"agent": "support", "prompt": "Paid twice.", **body})
    assert answer.is_success, answer.text
    task_id: str = answer.json()["id"]
    return task_id


def approve(server: Server, task_id: str) -> None:
    """Approve the call that a background agent waits for."""
    client = server.http(token_of("admin"))
    session = client.get(f"/tasks/{task_id}").json()["sessionID"]
    for _ in range(100):
        pending = client.post(f"/sessions/{session}/resume", json={"wait": 1}).json()["pending"]
        if pending:
            assert client.post(f"/pending/{pending[0]['id']}/approve", json={}).is_success
            return
    raise AssertionError("the agent never asked")


def test_a_background_agent_is_launched_followed_and_continued(
    server: Server, person: SignIn
) -> None:
    """S4.56 S4.57"""
    page = person("operator").open("/tasks")
    page.get_by_role("link", name="Launch an agent").click()
    page.get_by_label("Agent", exact=True).select_option("support")
    page.get_by_label("Description").fill("Check order 991")
    page.get_by_label("Prompt").fill("Customer 991 paid twice.")
    page.get_by_role("button", name="Launch").click()
    expect(page.get_by_role("heading", name="Check order 991")).to_be_visible()
    expect(page.get_by_text("Task paused - waiting for your input")).to_be_visible()
    task_id = page.url.rsplit("/", 1)[1]
    approve(server, task_id)
    expect(page.locator("#output")).to_contain_text("The refund was paid.")
    page.get_by_label("Follow-up").fill("And the other order?")
    page.get_by_role("button", name="Send the follow-up").click()
    expect(page.get_by_role("heading", name="Check order 991 (resumed)")).to_be_visible()
    expect(page.locator("#status")).to_contain_text("resumed1")


def test_background_agents_are_cancelled_and_cleared(server: Server, person: SignIn) -> None:
    parent = start_session(server, "many")
    task_id = launched(server, parent=parent, description="Look around")
    page = person("operator").open(f"/tasks/{task_id}")
    page.get_by_role("button", name="Cancel the task").click()
    expect(page.locator("#status")).to_contain_text("cancelled")
    page.get_by_role("link", name=f"All agents of {parent}").click()
    expect(page.locator("#list")).to_contain_text("Look around")
    page.get_by_role("link", name="Clear…").click()
    page.get_by_role("button", name="Clear").click()
    page.goto(f"{server.url}/tasks?parent={parent}")
    expect(page.locator("#list")).to_contain_text("No task matches")


def test_a_shared_task_works_without_scripts(server: Server, person: SignIn) -> None:
    page = person("operator", java_script_enabled=False).open("/tasks#new")
    page.get_by_label("Name").fill("Rewrite the parser")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="Rewrite the parser")).to_be_visible()
    task_id = page.url.rsplit("/", 1)[1]
    page.get_by_label("Description").fill("before")
    page.get_by_role("button", name="Take a checkpoint").click()
    client = server.http(token_of("admin"))
    assert client.put(f"/tasks/{task_id}/files?path=new.txt", content=b"hello").is_success
    assert client.put(f"/tasks/{task_id}/files?path=src/a.txt", content=b"a").is_success
    page.goto(f"{server.url}/tasks/{task_id}")
    expect(page.get_by_role("link", name="new.txt")).to_be_visible()
    page.get_by_role("link", name="src/").click()
    expect(page.get_by_role("link", name="a.txt")).to_be_visible()
    page.get_by_role("link", name="before").click()
    expect(page.locator("#difference")).to_contain_text("new.txt")
    page.goto(f"{server.url}/tasks/{task_id}#restore-1")
    page.get_by_role("button", name="Restore", exact=True).click()
    assert client.get(f"/tasks/{task_id}/files?path=new.txt").status_code == 404
    expect(page.locator("#logs")).to_contain_text("Checkpoint")
    page.get_by_role("button", name="Cancel the task").click()
    expect(page.locator("#status")).to_contain_text("cancelled")


def test_the_output_of_a_command_appears_while_it_runs(server: Server, person: SignIn) -> None:
    client = server.http(token_of("admin"))
    task_id = client.post("/tasks", json={"name": "Build"}).json()["id"]
    client.post(f"/tasks/{task_id}/start", json={"agentID": "coder"})
    page = person("operator").open(f"/tasks/{task_id}")
    page.get_by_label("Command").fill("echo '<b>began</b>'; sleep 60")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("[data-output]")).to_contain_text("<b>began</b>")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#execution")).not_to_contain_text("running")


def test_a_page_shows_the_end_of_its_command_and_follows_the_task_from_then_on(
    server: Server, person: SignIn
) -> None:
    client = server.http(token_of("admin"))
    task_id = client.post("/tasks", json={"name": "Build"}).json()["id"]
    client.post(f"/tasks/{task_id}/start", json={"agentID": "coder"})
    page = person("operator").open(f"/tasks/{task_id}")
    page.get_by_label("Command").fill("echo began; until [ -e go ]; do sleep 0.05; done; exit 3")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("[data-output]")).to_contain_text("began")
    page.get_by_label("Command").fill("echo half typed")
    client.put(f"/tasks/{task_id}/files?path=go", content=b"")
    expect(page.locator("#execution")).to_contain_text("exit code 3")
    expect(page.get_by_label("Command")).to_have_value("echo half typed")
    address = page.url.removeprefix(server.url).partition("#")[0]
    expect(page.locator("pd-live")).to_have_attribute("src", address)  # not the ended stream


def test_a_delivery_is_sent_again(server: Server, person: SignIn) -> None:
    session = start_session(server, "support", notify_url="https://hook.example/x")
    page = person("admin").open("/deliveries")
    page.locator(".row", has_text=session).first.get_by_role("link").click()
    expect(page.locator("h1")).to_contain_text("hook.example")
    page.get_by_role("button", name="Deliver again").click()
    expect(page.locator("#log")).to_contain_text("admin")


def test_health_shows_workers_findings_and_numbers(server: Server, person: SignIn) -> None:
    """The plots and the table have the same numbers."""
    start_session(server, "support")
    page = person("operator").open("/health")
    expect(page.locator("#ready")).to_contain_text("ready")
    expect(page.locator("#workers")).to_contain_text("alive")
    expect(page.locator("#doctor")).to_contain_text("File system")
    page.get_by_text("The same numbers as a table").click()
    made = int(page.locator("#stats .facts dd").first.inner_text())
    cells = page.locator("#numbers tbody tr td:nth-child(2)").all_inner_texts()
    assert sum(map(int, cells)) == made > 0
    titles = page.locator(".plot").first.locator("title").all_text_contents()
    numbers = [int(match[1]) for title in titles if (match := re.search(r": (\d+) calls?$", title))]
    assert sum(numbers) == made
    scoped = person("acme").open("/health")
    expect(scoped.locator("#ready")).to_be_visible()
    assert scoped.locator("#doctor").count() == 0


def serious(page: Page) -> list[str]:
    """Return what axe finds serious on a page."""
    violations = Axe().run(page).response["violations"]
    return [item["id"] for item in violations if item["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everybody_can_use_the_pages(server: Server, person: SignIn, theme: str) -> None:
    """Nothing is too wide for a phone."""
    shared = server.http(token_of("admin")).post("/tasks", json={"name": "T"}).json()["id"]
    background = launched(server)
    page = person("admin", width=375, color_scheme=theme).page
    for path in ("/tasks", f"/tasks/{shared}", f"/tasks/{background}", "/health", "/deliveries"):
        page.goto(server.url + path)
        expect(page.locator("h1")).to_be_visible()
        assert serious(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, path


@pytest.mark.parametrize("role", ROLES)
def test_what_a_role_may_not_do_is_not_offered(role: str, server: Server, person: SignIn) -> None:
    shared = server.http(token_of("admin")).post("/tasks", json={"name": "T"}).json()["id"]
    page = person(role).page
    may_operate = role in ("operator", "admin")
    for path in ("/tasks", f"/tasks/{shared}", "/health", "/deliveries"):
        answer = page.goto(server.url + path)
        assert answer is not None
        assert answer.status == (403 if role == "submitter" else 200), path
        if role != "submitter":
            forms = page.locator("main form[method=post]").count()
            assert (forms > 0) == (may_operate and path.startswith("/tasks")), path
