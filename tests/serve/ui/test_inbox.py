"""The inbox in a browser: live, in place, several at once, by keys, and while nothing is there."""

import re
import uuid

from playwright.sync_api import expect
from tests.serve.ui.conftest import SignIn
from tests.support.server import Server
from tests.support.ui_pages import pending_of, start_session, state_of
from tests.support.ui_project import token_of


def test_a_new_request_appears_by_itself_and_the_title_counts_it(
    server: Server, person: SignIn
) -> None:
    """S0.52, S4.58"""
    page = person("ana").open("/")
    expect(page.locator("pd-link")).to_have_text("live")
    expect(page.locator("#nothing")).to_contain_text("Nothing waits for you")
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]["id"]
    expect(page.locator(f"[id='{call}']")).to_contain_text("Refund an order?")
    expect(page.locator(f"[id='{call}']")).to_contain_text("order_id 991")
    expect(page).to_have_title(re.compile(r"^\(1\) Inbox"))
    page.locator(f"[id='{call}'] button.go").click()
    expect(page.locator(f"[id='{call}']")).to_contain_text("Approved by ana in the web UI")
    expect(page.locator("#recent")).to_contain_text("Approved by ana in the web UI")
    expect(page).to_have_title(re.compile("^Inbox"))


def test_each_of_several_pauses_has_its_own_card_and_is_decided_on_its_own(
    server: Server, person: SignIn
) -> None:
    """S4.55"""
    session = start_session(server, "many")
    calls = {tool: call["id"] for tool, call in pending_of(server, session).items()}
    page = person("ana").open("/")
    answer = page.locator(f"[id='{calls['ask_user']}'] textarea")
    answer.fill("eu-1")
    page.locator(f"[id='{calls['refund']}'] button.go").click()
    expect(page.locator(f"[id='{calls['refund']}']")).to_contain_text("Approved by ana")
    expect(answer).to_have_value("eu-1")
    assert state_of(server, session) == "waiting"
    page.locator(f"[id='{calls['ask_user']}'] button.go").click()
    expect(page.locator(f"[id='{calls['ask_user']}']")).to_contain_text("Answered by ana")
    expect(page.locator("#machines")).to_contain_text("dep_main")
    body = {"pendingID": calls["deploy_preview"], "result": {"output": "up"}}
    server.http(token_of("submitter")).post("/async-tool/result", json=body)
    assert state_of(server, session) == "completed"


def test_a_card_that_another_person_settled_says_by_whom(server: Server, person: SignIn) -> None:
    """G4"""
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]["id"]
    page = person("ana").open("/")
    expect(page.locator("pd-link")).to_have_text("live")
    server.http(token_of("ben")).post(f"/pending/{call}/deny", json={})
    expect(page.locator(f"[id='{call}']")).to_contain_text("Denied by ben over HTTP")
    expect(page.locator(f"[id='{call}'] button")).to_have_count(0)


def test_calls_of_one_tool_are_approved_together_after_every_argument_was_shown(
    server: Server, person: SignIn
) -> None:
    sessions = [start_session(server, "support") for _ in range(2)]
    calls = [pending_of(server, session)["refund"]["id"] for session in sessions]
    page = person("ana").open("/?tool=refund")
    page.get_by_role("button", name="Approve all 2 calls of refund").click()
    expect(page.locator(".changes")).to_have_count(2)
    expect(page.locator("main")).to_contain_text("4200")
    page.get_by_role("button", name="Approve all 2").click()
    expect(page.locator(".flash")).to_contain_text("Approved")
    for call in calls:
        decision = server.http(token_of("admin")).get(f"/pending/{call}").json()["decision"]
        assert (decision["by"], decision["via"]) == ("ana", "ui")


def test_a_call_settled_meanwhile_stops_a_bulk_approval_until_it_is_confirmed_again(
    server: Server, person: SignIn
) -> None:
    """G4: the page names the winner; the others are decided with the next click, and only then."""
    name = f"bulk-{uuid.uuid4().hex[:8]}"
    sessions = [start_session(server, "support", sessionID=f"{name}-{n}") for n in range(3)]
    calls = [pending_of(server, session)["refund"]["id"] for session in sessions]
    page = person("ana").open(f"/?q={name}")
    page.get_by_role("button", name="Approve all 3 calls of refund").click()
    admin = server.http(token_of("admin"))
    assert server.http(token_of("ben")).post(f"/pending/{calls[1]}/deny", json={}).is_success
    with page.expect_response("**/decisions") as answer:
        page.get_by_role("button", name="Approve all 3").click()
    assert answer.value.status == 409
    expect(page.get_by_role("alert")).to_contain_text("1 was settled meanwhile")
    expect(page.get_by_role("alert")).to_contain_text(f"{sessions[1]}: Denied by ben")
    assert admin.get(f"/pending/{calls[0]}").json()["status"] == "waiting"
    page.get_by_role("button", name="Approve all 2").click()
    expect(page.locator(".flash")).to_contain_text("Approved")
    kinds = [admin.get(f"/pending/{call}").json()["decision"]["kind"] for call in calls]
    assert kinds == ["approve", "deny", "approve"]


def test_nothing_moves_while_somebody_types_and_requests_arrive(
    server: Server, person: SignIn
) -> None:
    name = f"still-{uuid.uuid4().hex[:8]}"
    start_session(server, "many", sessionID=f"{name}-1")
    page = person("ana").open(f"/?q={name}")
    expect(page.locator("pd-link")).to_have_text("live")
    answer = page.locator("#waiting textarea")
    answer.click()
    page.keyboard.type("eu-1, and")
    before = answer.bounding_box()
    start_session(server, "support", sessionID=f"{name}-2")
    expect(page.locator("#bulk button")).to_have_text("Approve all 2 calls of refund…")
    expect(page.locator("#waiting .call")).to_have_count(3)
    after = answer.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(after["y"] - before["y"]) <= 1, "rounded to pixels of the screen"
    expect(answer).to_be_focused()
    page.keyboard.type(" us-1")
    expect(answer).to_have_value("eu-1, and us-1")
    for number in (1, 2):  # other tests count what waits
        server.http(token_of("admin")).post(f"/sessions/{name}-{number}/cancel", json={})


def test_a_browser_asks_for_notifications_only_after_a_click(person: SignIn) -> None:
    ana = person("ana")
    ana.context.add_init_script(
        "window.requests = 0; window.Notification = class { static permission = 'default';"
        " static async requestPermission() { window.requests += 1; return 'default'; } };"
    )
    page = ana.open("/")
    expect(page.locator("pd-link")).to_have_text("live")
    button = page.get_by_role("button", name="Notify me")
    expect(button).to_be_visible()
    assert page.evaluate("window.requests") == 0
    button.click()
    assert page.evaluate("window.requests") == 1


def test_keys_move_approve_twice_deny_search_and_help(server: Server, person: SignIn) -> None:
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]["id"]
    page = person("ana").open("/?tool=refund")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.locator("[data-search]")).to_be_focused()
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.locator("body").evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    expect(page.locator(f"[id='{call}'][data-selected]")).to_be_visible()
    page.keyboard.press("a")
    expect(page.locator(f"[id='{call}'] .armed")).to_be_focused()
    page.keyboard.press("a")
    expect(page.locator(f"[id='{call}']")).to_contain_text("Approved by ana")
    other = pending_of(server, start_session(server, "support"))["refund"]["id"]
    page.goto(f"{server.url}/pending/{other}")
    page.keyboard.press("d")
    expect(page.locator("#reason")).to_be_focused()


def test_filters_are_part_of_the_address(server: Server, person: SignIn) -> None:
    session = start_session(server, "many")
    page = person("viewer").open(f"/?q={session}&tool=ask_user")
    expect(page.locator("#waiting .call")).to_have_count(1)
    expect(page.locator("#waiting")).to_contain_text("Which region?")
    expect(page.locator("#waiting button")).to_have_count(0)  # a viewer is not offered a decision
