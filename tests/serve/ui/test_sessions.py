"""Sessions in a browser: every state that one can be in, reached by real actions."""

import re

from playwright.sync_api import expect
from tests.serve.ui.conftest import SignIn
from tests.support.server import Server
from tests.support.ui_pages import pending_of, start_session
from tests.support.ui_project import token_of


def test_a_durable_pause_says_that_it_is_safe_and_the_session_continues_live(
    server: Server, person: SignIn
) -> None:
    """S4.54, S4.57"""
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]["id"]
    page = person("operator").open(f"/sessions/{session}")
    why = page.locator("#why")
    expect(why).to_contain_text("Waits for 1 decision")
    expect(why).to_contain_text("Task paused - waiting for your input")
    expect(why).to_contain_text("safe to close, restart or deploy")
    expect(page.locator("#timeline")).to_contain_text("approval")
    expect(page.locator("pd-link")).to_have_text("live")
    server.http(token_of("ben")).post(f"/pending/{call}/approve", json={"args": {"cents": 1}})
    expect(why).to_contain_text("Completed")
    expect(why).to_contain_text("The refund was paid.")
    expect(page.locator("#events")).to_contain_text("ben approved with changes")
    seqs = [int(text) for text in page.locator("#events .seq").all_inner_texts()]
    assert seqs == list(range(1, len(seqs) + 1))


def test_a_pause_in_memory_warns_that_it_is_lost_with_its_process(
    server: Server, person: SignIn
) -> None:
    session = start_session(server, "blocking", wait=2)
    page = person("ana").open(f"/sessions/{session}")
    expect(page.locator("#why")).to_contain_text("Waits inside worker")
    expect(page.locator("#why")).to_contain_text("the call is lost")


def test_several_pauses_are_counted_and_the_session_waits_for_the_last(
    server: Server, person: SignIn
) -> None:
    """S4.55"""
    session = start_session(server, "many")
    page = person("ana").open(f"/sessions/{session}")
    expect(page.locator("#why")).to_contain_text("Waits for 2 decisions and 1 result")
    expect(page.locator("#why")).to_contain_text("It continues after the last decision.")
    expect(page.locator("#calls .call")).to_have_count(3)
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#why")).to_contain_text("Waits for 1 decision and 1 result")


def test_a_machine_is_waited_for_and_its_result_is_posted_by_hand(
    server: Server, person: SignIn
) -> None:
    session = start_session(server, "many")
    call = pending_of(server, session)["deploy_preview"]["id"]
    page = person("submitter").open(f"/pending/{call}")
    expect(page.locator("h1")).to_have_text("The result of deploy_preview")
    expect(page.locator("main")).to_contain_text("dep_main")
    page.get_by_text("From a terminal").click()
    expect(page.locator("#elsewhere")).to_contain_text("curl -X POST")
    page.get_by_label("Result").fill("it is up")
    page.get_by_role("button", name="Submit the result").click()
    expect(page.locator("#outcome")).to_contain_text("Result received by submitter")


def test_an_expired_call_says_so_and_can_be_forked_from_before(
    server: Server, person: SignIn
) -> None:
    session = start_session(server, "late", wait=False)
    page = person("operator").open(f"/sessions/{session}")
    expect(page.locator("#events")).to_contain_text("expired")
    page.locator("#events .event", has_text="expired").get_by_role("link", name="open").click()
    expect(page.locator("#outcome")).to_contain_text("Expired")
    expect(page.locator("#outcome")).to_contain_text("nobody decided in time")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    page.get_by_role("button", name="Fork from before it expired").click()
    expect(page.locator("#why")).to_contain_text("has not been continued yet")


def test_a_failed_run_says_why_and_offers_a_retry(server: Server, person: SignIn) -> None:
    session = start_session(server, "failing")
    page = person("operator").open(f"/sessions/{session}")
    expect(page.locator("#why")).to_contain_text("the provider is on fire")
    page.get_by_role("button", name="Retry").click()
    expect(page.locator("#events")).to_contain_text("run failed")


def test_a_message_stays_in_place_while_events_arrive_above_it(
    server: Server, person: SignIn
) -> None:
    session = start_session(server, "many")
    page = person("operator").open(f"/sessions/{session}")
    expect(page.locator("pd-link")).to_have_text("live")
    message = page.locator("#content")
    message.click()
    page.keyboard.type("Please also")
    before = message.bounding_box()
    call = pending_of(server, session)["refund"]["id"]
    assert server.http(token_of("ben")).post(f"/pending/{call}/approve", json={}).is_success
    expect(page.locator("#events")).to_contain_text("ben approved")
    expect(page.locator("#why")).to_contain_text("Waits for 1 decision and 1 result")
    after = message.bounding_box()
    assert before is not None
    assert after is not None
    assert abs(after["y"] - before["y"]) <= 1, "rounded to pixels of the screen"
    expect(message).to_have_value("Please also")
    expect(message).to_be_focused()


def test_a_completed_session_continues_with_a_message_and_a_cancelled_one_says_so(
    server: Server, person: SignIn
) -> None:
    session = start_session(server, "slow")
    operator = person("operator")
    page = operator.open(f"/sessions/{session}")
    expect(page.locator("#why")).to_contain_text("Completed")
    page.get_by_label("Continue the conversation").fill("And now?")
    page.locator("#message").get_by_role("button", name="Send").click()
    expect(page.locator("#events")).to_contain_text("And now?")
    other = start_session(server, "many")
    page = operator.open(f"/sessions/{other}")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.locator("#why")).to_contain_text("Cancelled")


def test_the_words_of_a_model_appear_while_it_speaks(server: Server, person: SignIn) -> None:
    """S4.57"""
    page = person("operator").open("/sessions#new")
    page.locator("#new-agent").select_option("slow")
    page.locator("#new-content").fill("Count")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#events")).to_contain_text("seven eight")
    expect(page.locator("#why")).to_contain_text("Completed")
    expect(page.locator("[data-streamed]")).to_be_empty()


def test_tabs_show_conversation_state_difference_and_raw_events(
    server: Server, person: SignIn
) -> None:
    session = start_session(server, "support")
    admin = person("admin")
    page = admin.open(f"/sessions/{session}?tab=conversation")
    expect(page.locator("#chat")).to_contain_text("Customer 991 paid twice.")
    expect(page.locator("#chat strong")).to_have_text("paid twice")
    page.get_by_role("link", name="State").click()
    page.get_by_label("Compared with event").fill("2")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".diff .add").first).to_be_visible()
    page.get_by_role("link", name="Raw").click()
    expect(page.locator("main")).to_contain_text('"type": "tool_call"')


def test_fork_compact_export_and_delete(server: Server, person: SignIn) -> None:
    session = start_session(server, "slow")
    page = person("admin").open(f"/sessions/{session}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert download.value.suggested_filename == f"{session}.jsonl"
    page.locator("#d1 summary").click()
    page.locator("#e1").get_by_role("button", name="Fork from here").click()
    expect(page.locator("#why")).to_contain_text("has not been continued yet")
    page.goto(f"{server.url}/sessions/{session}")
    page.get_by_role("button", name="Delete").click()
    page.get_by_label("Type").fill(session)
    page.get_by_role("button", name="Delete").click()
    expect(page).to_have_url(re.compile("/sessions$"))
    assert server.http(token_of("admin")).get(f"/sessions/{session}").status_code == 404


def test_the_list_shows_what_changed_last_first_and_filters_by_state(
    server: Server, person: SignIn
) -> None:
    first, second = start_session(server, "slow"), start_session(server, "support")
    page = person("viewer").open("/sessions")
    expect(page.locator("tbody tr").first).to_contain_text(second)
    page.get_by_role("link", name="completed").click()
    expect(page.locator("tbody tr").first).to_contain_text(first)
    expect(page.locator("tbody")).not_to_contain_text(second)


def test_the_last_task_is_remembered_and_a_lost_one_is_offered_to_restart(
    server: Server, person: SignIn
) -> None:
    """S4.54, S4.56, S4.57"""
    session = start_session(server, "support")
    operator = person("operator")
    page = operator.open(f"/sessions/{session}")
    expect(page.locator("#why")).to_be_visible()
    page = operator.open("/agents")
    banner = page.locator("pd-task")
    expect(banner).to_contain_text("Task paused - waiting for your input")
    assert page.evaluate("Object.keys(localStorage).length") == 1
    server.http(token_of("admin")).delete(f"/sessions/{session}")
    expect(banner).to_contain_text("Task state lost. Would you like to restart?")
    page.get_by_role("button", name="Restart").click()
    expect(page).to_have_url(re.compile("/sessions#new$"))
    assert page.evaluate("Object.keys(localStorage).length") == 0
    operator.requests.clear()
    page.reload()
    expect(page.locator("pd-task")).to_be_hidden()
    assert not [url for url in operator.requests if session in url]
