"""One decision in a browser: on a phone, with changes, by two people, and without scripts."""

import re
import uuid

import pytest
from playwright.sync_api import expect
from tests.serve.ui.conftest import SignIn
from tests.support.server import Server
from tests.support.ui_pages import pending_of, start_session, state_of
from tests.support.ui_project import effects, token_of

WITHOUT_SCRIPTS = {"java_script_enabled": False}


def decision_of(server: Server, pending_id: str) -> dict[str, object]:
    """Return the decision that was recorded about a call."""
    client = server.http(token_of("admin"))
    decision: dict[str, object] = client.get(f"/pending/{pending_id}").json()["decision"]
    return decision


def test_a_decision_on_a_phone_says_what_will_run_and_continues_the_session(
    server: Server, person: SignIn
) -> None:
    """S4.55, G7"""
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]
    ana = person("ana", width=375, has_touch=True)
    page = ana.open(f"/pending/{call['id']}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Refund an order?")
    expect(page.locator("main")).to_contain_text("I would pay one back")
    expect(page.locator("main")).to_contain_text("Exactly this will run, once")
    expect(page.get_by_label("cents")).to_have_value("4200")
    expect(page.locator("main")).to_contain_text("left")
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    button = page.get_by_role("button", name="Approve")
    fields = [page.locator(f"[name='arg.{name}']") for name in ("order_id", "cents", "reason")]
    for part in (page.get_by_text("Agent support asks"), *fields, button):
        expect(part).to_be_in_viewport()
    button.tap()
    expect(page.locator("#outcome")).to_contain_text("Approved by ana in the web UI")
    expect(page.locator("#outcome")).to_contain_text("The session has finished")
    assert decision_of(server, call["id"])["via"] == "ui"
    assert effects(server.folder)[-1] == "refund 991 4200 paid twice EUR"


def test_long_ids_and_hostile_text_never_scroll_a_phone_sideways(
    server: Server, person: SignIn
) -> None:
    name = f"long-{uuid.uuid4().hex}-{'id-' * 40}"
    session = start_session(server, "hostile", sessionID=name)
    call = pending_of(server, session)["refund"]["id"]
    viewer = person("admin", width=375)
    for path in (f"/?q={name[:37]}", f"/pending/{call}", f"/sessions/{name}", "/sessions"):
        page = viewer.open(path)
        expect(page.locator("main")).to_contain_text(name[:20])
        assert page.evaluate("document.documentElement.scrollWidth") == 375, path


def test_changed_fields_are_marked_and_the_button_counts_them(
    server: Server, person: SignIn
) -> None:
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]
    page = person("ana").open(f"/pending/{call['id']}")
    page.get_by_label("cents").fill("4000")
    expect(page.locator(".field.changed")).to_contain_text("was 4200")
    page.locator("[name='arg.reason']").fill("one was paid back")
    expect(page.locator("[data-approve]")).to_have_text("Approve with 2 changes")
    page.locator("[name='arg.reason']").fill("paid twice")
    expect(page.locator("[data-approve]")).to_have_text("Approve with 1 change")
    page.locator("[data-approve]").click()
    expect(page.locator("#outcome")).to_contain_text("Approved with changes by ana")
    expect(page.locator("#outcome")).to_contain_text("4000")
    assert decision_of(server, call["id"])["args"] == {"cents": 4000}


def test_a_field_that_does_not_fit_is_named_and_nothing_is_lost_or_consumed(
    server: Server, person: SignIn
) -> None:
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]
    page = person("ana").open(f"/pending/{call['id']}")
    page.get_by_label("cents").fill("many")
    page.locator("[name='arg.reason']").fill("typed with care")
    page.locator("[data-approve]").click()
    expect(page.locator(".field.invalid")).to_contain_text("This must be a whole number.")
    expect(page.get_by_label("cents")).to_have_value("many")
    expect(page.locator("[name='arg.reason']")).to_have_value("typed with care")
    page.get_by_label("cents").fill("4100")
    page.locator("#options summary").click()
    page.get_by_label("All arguments as JSON").fill('{"order_id": "not a number"}')
    page.locator("[data-approve]").click()
    expect(page.locator("#decide .field-error").first).to_be_visible()
    assert pending_of(server, session)["refund"]["status"] == "waiting"


def test_of_two_people_the_second_sees_who_was_first(server: Server, person: SignIn) -> None:
    """G4"""
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]
    ana = person("ana").open(f"/pending/{call['id']}")
    ben = person("ben", java_script_enabled=False).open(f"/pending/{call['id']}")
    ben.get_by_label("cents").fill("1")
    ana.get_by_role("button", name="Approve").click()
    expect(ana.locator("#outcome")).to_contain_text("Approved by ana")
    with ben.expect_navigation() as navigation:
        ben.get_by_role("button", name="Approve").click()
    response = navigation.value
    assert response is not None
    assert response.status == 409
    expect(ben.locator("#outcome")).to_contain_text("Somebody was faster")
    expect(ben.locator("#outcome")).to_contain_text("Approved by ana in the web UI")
    assert decision_of(server, call["id"])["by"] == "ana"


def test_a_page_that_is_open_shows_what_another_person_decided(
    server: Server, person: SignIn
) -> None:
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]
    page = person("ben").open(f"/pending/{call['id']}")
    page.get_by_label("cents").fill("17")
    expect(page.locator("pd-link")).to_have_text("live")
    server.http(token_of("ana")).post(f"/pending/{call['id']}/deny", json={"reason": "no"})
    expect(page.locator("#outcome")).to_contain_text("Denied by ana over HTTP")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)


def test_deny_with_a_reason_and_respond_instead(server: Server, person: SignIn) -> None:
    first, second = start_session(server, "support"), start_session(server, "support")
    ana = person("ana", width=375)
    call = pending_of(server, first)["refund"]
    page = ana.open(f"/pending/{call['id']}")
    page.get_by_role("link", name="Deny").click()
    page.locator("#reason").fill("too much")
    page.locator("#deny button").click()
    expect(page.locator("#outcome")).to_contain_text("too much")
    other = pending_of(server, second)["refund"]
    page = ana.open(f"/pending/{other['id']}")
    page.get_by_role("link", name="Respond instead").click()
    page.get_by_label("The model gets this").fill("paid by hand")
    page.locator("#respond button").click()
    expect(page.locator("#outcome")).to_contain_text("Answered by ana")
    assert decision_of(server, other["id"])["kind"] == "respond"


def test_remember_allows_the_same_call_for_the_rest_of_the_session(
    server: Server, person: SignIn
) -> None:
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]
    page = person("ana").open(f"/pending/{call['id']}")
    page.locator("#options summary").click()
    page.get_by_label("Allow exactly this call").check()
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#outcome")).to_contain_text("Approved by ana")
    assert decision_of(server, call["id"])["remember"] is True


def test_everything_works_without_scripts(server: Server, person: SignIn) -> None:
    """S4.55: sign in, read, approve, approve with changes, deny, respond, message, cancel"""
    sessions = [start_session(server, "support") for _ in range(4)]
    calls = [pending_of(server, session)["refund"]["id"] for session in sessions]
    ops = person("operator", width=375, **WITHOUT_SCRIPTS)
    page = ops.open("/")
    expect(page.locator(f"[id='{calls[0]}']")).to_be_visible()
    page.locator(f"[id='{calls[0]}'] button.go").click()
    expect(page.locator(".flash")).to_contain_text("Approved")
    page = ops.open(f"/pending/{calls[1]}")
    page.get_by_label("cents").fill("4000")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("heading", level=2)).to_contain_text("You changed 1")
    expect(page.locator("del")).to_have_text("4200")
    page.get_by_role("button", name="Approve with 1 change").click()
    expect(page.locator("#outcome")).to_contain_text("Approved with changes by operator")
    page = ops.open(f"/pending/{calls[2]}")
    page.get_by_role("link", name="Deny").click()
    page.locator("#reason").fill("no")
    page.locator("#deny button").click()
    expect(page.locator("#outcome")).to_contain_text("Denied by operator")
    page = ops.open(f"/sessions/{sessions[2]}")
    page.get_by_label(re.compile("Continue the conversation|Send a message")).fill("Thanks")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#events")).to_contain_text("Thanks")
    page = ops.open(f"/sessions/{sessions[3]}")
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.locator("#why")).to_contain_text("Cancelled")
    assert decision_of(server, calls[1])["args"] == {"cents": 4000}
    many = start_session(server, "many")
    question = pending_of(server, many)["ask_user"]["id"]
    page = ops.open(f"/pending/{question}")
    page.get_by_label("Your answer").fill("eu-1")
    page.get_by_role("button", name="Send answer").click()
    expect(page.locator("#outcome")).to_contain_text("Answered by operator")


def test_a_link_on_a_page_of_another_site_opens_the_decision(
    server: Server, person: SignIn
) -> None:
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]
    ana = person("ana")
    ana.context.route(
        "http://mail.example/*",
        lambda route: route.fulfill(
            body=f"<a href='{server.url}/pending/{call['id']}'>decide</a>"
            f"<iframe src='{server.url}/'></iframe>",
            content_type="text/html",
        ),
    )
    ana.page.goto("http://mail.example/inbox")
    ana.page.get_by_role("link", name="decide").click()
    expect(ana.page.get_by_role("heading", level=1)).to_have_text("Refund an order?")
    assert pending_of(server, session)["refund"]["status"] == "waiting"
    ana.complaints.clear()  # the frame of the other site was refused, as it should be


def test_hostile_text_of_a_model_stays_text(server: Server, person: SignIn) -> None:
    """SX.7: nothing of it runs, is loaded, or is reported as blocked"""
    session = start_session(server, "hostile")
    call = pending_of(server, session)["refund"]
    ana = person("admin", width=375)
    paths = ("/", f"/pending/{call['id']}", f"/sessions/{session}", "/sessions")
    tabs = [f"/sessions/{session}?tab={tab}" for tab in ("conversation", "state", "raw")]
    for path in (*paths, *tabs):
        page = ana.open(path)
        expect(page.locator("main")).to_be_visible()
        assert page.locator("main script, main img, main iframe").count() == 0
        assert page.locator("[onerror], [onmouseover]").count() == 0
        assert page.locator("a[href^='javascript']").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") == 375, path
    expect(ana.page.locator("main")).to_contain_text("<script>fetch('/x')</script>")
    assert not [url for url in ana.requests if not url.startswith(server.url)]
    assert not [url for url in ana.requests if url.endswith("/x")]


@pytest.mark.parametrize("path", ["/pending/p_unknown", "/sessions/unknown"])
def test_an_unknown_id_is_a_page(path: str, person: SignIn, server: Server) -> None:
    session = start_session(server, "support")
    acme = person("acme")
    page = acme.open(path)
    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
    page = acme.open(f"/sessions/{session}")  # of another tenant
    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
    assert state_of(server, session) == "waiting"
