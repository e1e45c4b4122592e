"""Decision pages of tools without a question of their own, and of long questions."""

from pathlib import Path
from typing import Any

from tests.support.http_client import MakeClient
from tests.support.http_shop import TOKENS

from perdure import Agent, Runtime, asgi, tool
from perdure.testing import ScriptedModel

HTML = {"Accept": "text/html"}


@tool(requires_approval=True)
def send_mail(to: list[str], body: str) -> str:
    """Send a mail."""
    return f"{len(body)} characters to {to}"


@tool(requires_approval=True, approval_prompt="Delete these customers? " + "Really? " * 60)
def delete_customers(ids: list[int]) -> str:
    """Delete customers."""
    return f"deleted {ids}"


async def decision_page(
    tmp_path: Path, client_of: MakeClient, call: dict[str, Any], by: str = "admin"
) -> str:
    """Return the page of a call that waits for a decision."""
    turns = [{"text": "Because. " * 100, "calls": [call]}]
    agent = Agent("a", model=ScriptedModel(turns), tools=[send_mail, delete_customers])
    async with Runtime(f"sqlite:///{tmp_path / 'p.db'}", agents=[agent]) as rt:
        result = await rt.session("s", agent="a").run("Go")
        client = client_of(asgi(rt, auth=TOKENS), as_=by, headers=HTML)
        text: str = (await client.get(f"/pending/{result.pending[0].id}")).text
        return text


def title_of(page: str) -> str:
    return page.partition("<h1>")[2].partition("</h1>")[0]


async def test_a_long_call_has_a_short_question_and_its_arguments_in_fields(
    tmp_path: Path, client_of: MakeClient
) -> None:
    call = {"tool": "send_mail", "args": {"to": ["kim@example.com"], "body": "Dear Kim, " * 200}}
    page = await decision_page(tmp_path, client_of, call)
    assert title_of(page) == "Run send_mail?"
    assert "Dear Kim, Dear Kim, " in page.partition('name="arg.body"')[2]
    assert "[&#34;kim@example.com&#34;]" in page, "a short list takes one line"
    assert "Show everything" in page, "long words of the model are cut until somebody wants them"


async def test_a_long_question_is_cut_in_the_title_and_complete_below(
    tmp_path: Path, client_of: MakeClient
) -> None:
    call = {"tool": "delete_customers", "args": {"ids": [1, 2]}}
    page = await decision_page(tmp_path, client_of, call)
    assert title_of(page).endswith("…")
    assert len(title_of(page)) == 180
    assert page.count("Really?") > 60


async def test_a_person_who_may_not_change_arguments_reads_them_as_text(
    tmp_path: Path, client_of: MakeClient
) -> None:
    call = {"tool": "delete_customers", "args": {"ids": [1, 2]}}
    page = await decision_page(tmp_path, client_of, call, by="viewer")
    assert "<dt>ids</dt>" in page
    assert "<textarea" not in page
