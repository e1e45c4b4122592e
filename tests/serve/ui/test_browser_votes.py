"""Approvals of several people in browsers: one votes, others see it, and only approvers decide."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from tests.serve.ui.conftest import SignIn
from tests.support.server import Server
from tests.support.ui_pages import pending_of, start_session
from tests.support.ui_project import effects, ui_server

REFUND = {"use": "shop:refund", "min_approvals": 2, "approvers": ["ana", "ben"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Server of a shop whose refunds need the approvals of ana and ben."""
    tools = ["shop:lookup_order", REFUND]
    with ui_server(tmp_path_factory.mktemp("votes"), support={"tools": tools}) as started:
        yield started


def expect_no_buttons(page: Page) -> None:
    """Check that a page offers no decision, in any form."""
    expect(page.locator("[data-approve], a[href='#deny'], #deny, #respond")).to_have_count(0)


def test_after_one_of_two_approvals_pages_say_so_and_only_the_other_approver_decides(
    server: Server, person: SignIn
) -> None:
    """G7"""
    call = pending_of(server, start_session(server, "support"))["refund"]["id"]
    ana, ben, other = (person(name).open(f"/pending/{call}") for name in ("ana", "ben", "approver"))
    expect(other.locator("#approvals")).to_have_text("0 of 2 approvals")
    expect(other.locator("#refusal")).to_contain_text("Its approvers are ana, ben.")
    expect_no_buttons(other)
    ana.locator("[data-approve]").click()
    expect(ana.locator("#approvals")).to_have_text("1 of 2 approvals: ana")
    expect(ana.locator("#refusal")).to_contain_text("Your approval is recorded")
    expect(ana.locator("[data-approve]")).to_have_count(0)
    expect(ana.locator("#bar a[href='#deny']")).to_have_count(1)  # who has voted can still deny
    expect(ana.locator("#elsewhere pre")).to_contain_text(f"/pending/{call}/deny")
    for page in (ben, other):
        page.reload()
        expect(page.locator("#approvals")).to_have_text("1 of 2 approvals: ana")
    expect_no_buttons(other)
    assert effects(server.folder) == []
    ben.locator("[data-approve]").click()
    expect(ben.locator("#outcome")).to_contain_text("The session has finished")
    assert effects(server.folder) == ["refund 991 4200 paid twice EUR"]


def test_only_a_person_who_may_decide_reads_that_a_task_waits_for_their_input(
    server: Server, person: SignIn
) -> None:
    """S4.54"""
    session = start_session(server, "support")
    call = pending_of(server, session)["refund"]["id"]
    ana, operator = person("ana"), person("operator")
    for someone, whom in ((ana, "your input"), (operator, "others")):
        page = someone.open(f"/sessions/{session}")
        expect(page.locator("#why")).to_contain_text(f"Task paused - waiting for {whom}")
        page = someone.open("/agents")
        expect(page.locator("pd-task")).to_contain_text(f"Task paused - waiting for {whom}")
    ana.open(f"/pending/{call}").locator("[data-approve]").click()
    expect(ana.page.locator("#approvals")).to_have_text("1 of 2 approvals: ana")
    page = ana.open(f"/sessions/{session}")
    expect(page.locator("#why")).to_contain_text("Task paused - waiting for others")
    expect(page.locator("#why")).to_contain_text("It waits for 1 more approval of ana or ben.")


def test_the_inbox_of_a_person_who_is_no_approver_has_no_buttons(
    server: Server, person: SignIn
) -> None:
    call = pending_of(server, start_session(server, "support"))["refund"]["id"]
    for name, count in (("ana", 1), ("approver", 0), ("admin", 0)):
        page = person(name).open("/")
        card = page.locator(f"[id='{call}']")
        expect(card).to_contain_text("0 of 2 approvals")
        expect(card.locator("button.go")).to_have_count(count)
