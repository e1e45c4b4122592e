"""`perdure webhook …`."""

import time

import pytest
from tests.support.cli_project import Shop

from perdure.cli.commands.webhook import SECRET
from perdure.core.webhooks.signatures import derive_secret, verify

BODY = b'{"result": {"output": "done"}}\n'


def accepted(lines: str, *secrets: str) -> bool:
    headers = dict(line.split(": ", 1) for line in lines.splitlines())
    plain = {"X-Webhook-Signature": headers["X-Webhook-Signature"]}
    now = time.time_ns() // 1_000_000
    return all(verify(way, BODY, secrets, now).ok for way in (plain, headers))


@pytest.fixture(autouse=True)
def no_secret_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)


def test_sign_prints_header_lines_that_are_accepted(shop: Shop) -> None:
    """S0.55"""
    told = shop.run("webhook", "sign", "--secret", "hush", app=None, stdin=BODY)
    assert told.exit_code == 0, told.output
    names = [line.partition(":")[0].lower() for line in told.stdout.splitlines()]
    assert names == [
        *("x-webhook-signature", "webhook-id", "webhook-timestamp", "webhook-signature"),
    ]
    assert accepted(told.stdout, "hush")
    assert not accepted(told.stdout, "other")


def test_with_a_pending_id_the_secret_of_that_call_signs(shop: Shop) -> None:
    """S0.59"""
    words = ("webhook", "sign", "--secret", "hush", "--pending", "p_1")
    told = shop.run(*words, app=None, stdin=BODY).stdout
    assert accepted(told, derive_secret("hush", "p_1"))
    assert not accepted(told, "hush", derive_secret("hush", "p_2"))


def test_the_secret_comes_from_the_environment_before_the_configuration(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop.folder / "perdure.yaml").write_text("server: {webhook_secret: from-file}")
    assert accepted(shop.run("webhook", "sign", app=None, stdin=BODY).stdout, "from-file")
    monkeypatch.setenv(SECRET, "from-environment")
    told = shop.run("webhook", "sign", app=None, stdin=BODY).stdout
    assert accepted(told, "from-environment")


def test_without_any_secret_it_says_where_one_belongs(shop: Shop) -> None:
    told = shop.run("webhook", "sign", stdin=BODY)
    assert (told.exit_code, told.stdout) == (2, "")
    assert "no webhook secret is configured" in told.stderr
    assert "set PERDURE_WEBHOOK_SECRET" in told.stderr


@pytest.fixture
def telling(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The shop tells somebody who cannot be reached: nobody listens on that port."""
    monkeypatch.setenv(SECRET, "hush")
    (shop.folder / "turns.json").write_text('[{"text": "Done."}]')
    (shop.folder / "perdure.yaml").write_text(
        "agents: {plain: {llm: scripted:turns.json}}\n"
        "server:\n"
        "  webhooks: [{url: http://127.0.0.1:9/T0ken, on: [completed]}]\n"
        "  webhook_allow: [127.0.0.1]\n"
    )
    assert shop.run("run", "plain", "hi", "-s", "s1", app=None).exit_code == 0
    return shop


def test_what_is_told_is_listed_shown_and_asked_for_again(telling: Shop) -> None:
    """S0.60"""
    (one,) = telling.json("webhook", "list", app=None)["deliveries"]
    assert (one["type"], one["status"], one["sessionID"]) == ("session.completed", "waiting", "s1")
    worked = telling.run("worker", "--once", app=None)
    assert worked.exit_code == 0, worked.output
    table = telling.run("webhook", "list", "--session", "s1", app=None).stdout
    assert "it could not be reached" in table
    assert "http://127.0.0.1:9/…" in table
    again = telling.run("webhook", "redeliver", one["id"][:8], "--by", "ana", app=None)
    assert again.exit_code == 0, again.output
    shown = telling.json("webhook", "show", one["id"], app=None)
    assert [step["step"] for step in shown["log"]] == ["refused", "requested"]
    assert shown["log"][1]["by"] == "ana"
    told = telling.run("webhook", "show", one["id"], app=None).stdout
    assert "session.completed to http://127.0.0.1:9/…: waiting" in told
    assert "T0ken" not in told + table + worked.output


def test_a_delivery_that_is_not_there_is_told_so(telling: Shop) -> None:
    told = telling.run("webhook", "redeliver", "d_nope", app=None)
    assert (told.exit_code, told.stdout) == (3, "")
    assert "there is no delivery 'd_nope'" in told.stderr
    assert telling.json("webhook", "list", "--status", "dead", app=None)["deliveries"] == []
