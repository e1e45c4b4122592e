"""Pages while their server is killed, restarted, or lacks the code of a call."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from playwright.sync_api import Browser, expect
from tests.support.ui_pages import pending_of, sign_in, start_session, state_of
from tests.support.ui_project import effects, token_of, ui_server


def test_a_killed_server_loses_nothing_that_was_typed_and_no_event(
    browser: Browser, tmp_path: Path
) -> None:
    """S4.54, S4.57, G1"""
    with ui_server(tmp_path) as server:
        session = start_session(server, "many")
        calls = {tool: call["id"] for tool, call in pending_of(server, session).items()}
        decision = sign_in(browser, server, "ana", width=375)
        page = decision.open(f"/pending/{calls['refund']}")
        watching = sign_in(browser, server, "operator")
        log = watching.open(f"/sessions/{session}")
        expect(page.locator("pd-link")).to_have_text("live")
        page.get_by_label("cents").fill("4000")
        server.kill()
        expect(page.locator("pd-link")).to_have_text("reconnecting…")
        expect(log.locator("pd-link")).to_contain_text("offline since")
        expect(log.locator("#events")).to_contain_text("refund waits for a person")
        server.start()
        expect(page.locator("pd-link")).to_have_text("live")
        expect(page.get_by_label("cents")).to_have_value("4000")
        server.http(token_of("ben")).post(
            f"/pending/{calls['ask_user']}/respond", json={"output": "eu"}
        )
        expect(log.locator("#events")).to_contain_text("ben answered")
        expect(page.get_by_label("cents")).to_have_value("4000")
        page.locator("[data-approve]").click()
        expect(page.locator("#outcome")).to_contain_text("Approved with changes by ana")
        body = {"pendingID": calls["deploy_preview"], "result": {"output": "up"}}
        server.http(token_of("submitter")).post("/async-tool/result", json=body)
        assert state_of(server, session) == "completed"
        expect(log.locator("#why")).to_contain_text("Completed")
        expect(log.locator("#timeline")).to_contain_text("another worker took over")
        seqs = [int(text) for text in log.locator("#events .seq").all_inner_texts()]
        assert seqs == list(range(1, len(seqs) + 1))
        assert effects(tmp_path) == ["refund 991 4000 paid twice EUR"]
        for person in (decision, watching):
            person.complaints.clear()
            person.leave()


def test_the_last_task_whose_log_is_damaged_is_offered_to_restart(
    browser: Browser, tmp_path: Path
) -> None:
    """S4.56"""
    with ui_server(tmp_path) as server:
        session = start_session(server, "support")
        operator = sign_in(browser, server, "operator")
        expect(operator.open(f"/sessions/{session}").locator("#why")).to_be_visible()
        server.stop()
        with closing(sqlite3.connect(tmp_path / "p.db")) as database, database:
            database.execute("UPDATE record SET data = x'7b' WHERE seq = 4")
        server.start()
        banner = operator.open("/agents").locator("pd-task")
        expect(banner).to_contain_text("Task state lost. Would you like to restart?")


def test_a_call_whose_tool_is_gone_says_so_and_can_be_denied(
    browser: Browser, tmp_path: Path
) -> None:
    with ui_server(tmp_path) as server:
        session = start_session(server, "support")
        call = pending_of(server, session)["refund"]["id"]
        server.stop()
        config = json.loads((tmp_path / "perdure.yaml").read_text())
        config["agents"]["support"]["tools"].remove("shop:refund")
        (tmp_path / "perdure.yaml").write_text(json.dumps(config))
        server.start()
        ana = sign_in(browser, server, "ana")
        page = ana.open(f"/pending/{call}")
        expect(page.locator("main")).to_contain_text("This call cannot run as it is")
        expect(page.locator("main")).to_contain_text("Deploy the tool again")
        expect(page.get_by_role("button", name="Approve")).to_have_count(0)
        page = ana.open(f"/sessions/{session}")
        expect(page.locator("#why")).to_contain_text("TOOL_MISSING")
        page = ana.open(f"/pending/{call}")
        page.get_by_role("link", name="Deny").click()
        page.locator("#deny button").click()
        expect(page.locator("#outcome")).to_contain_text("Denied by ana")
        ana.leave()
