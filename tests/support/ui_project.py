"""Project whose pages tests open in a browser: a shop with calls of every kind, and all roles."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.server import Server

ROLES: Final = ("viewer", "submitter", "approver", "operator", "admin")
TOOLS: Final = '''
import os
from typing import Literal

from perdure import Approval, PendingCall, tool


def note(line):
    """Record an effect where no crash loses it."""
    fd = os.open("effects.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, f"{line}\\n".encode())
    os.close(fd)


@tool
def lookup_order(order_id: int) -> dict:
    """Look up an order."""
    return {"order": order_id, "paid_twice": True, "cents": 4200}


@tool(requires_approval=Approval(timeout="22h"), approval_prompt="Refund an order?")
def refund(
    order_id: int, cents: int, reason: str = "", currency: Literal["EUR", "USD"] = "EUR"
) -> str:
    """Pay money back to the customer."""
    note(f"refund {order_id} {cents} {reason} {currency}")
    return f"refunded {cents}"


@tool(requires_approval=Approval(timeout=0.2), approval_prompt="Be quick?")
def hurry() -> str:
    """Do something that cannot wait."""
    return "done"


@tool(deferred=True, timeout="24h")
def deploy_preview(branch: str, call: PendingCall) -> str:
    """Deploy a preview of a branch."""
    return f"dep_{branch}"
'''
REFUND: Final = {"tool": "refund", "args": {"order_id": 991, "cents": 4200, "reason": "paid twice"}}
TURNS: Final[Mapping[str, list[dict[str, Any]]]] = {
    "support": [
        {
            "text": "Let me look at the order.",
            "thinking": "I should check.",
            "calls": [{"tool": "lookup_order", "args": {"order_id": 991}}],
        },
        {"text": "Order 991 was **paid twice**. I would pay one back.", "calls": [REFUND]},
        {"text": "The refund was paid."},
    ],
    "many": [
        {
            "text": "Three things at once.",
            "calls": [
                REFUND,
                {"tool": "deploy_preview", "args": {"branch": "main"}},
                {"tool": "ask_user", "args": {"question": "Which region?"}},
            ],
        },
        {"text": "All done."},
    ],
    "hostile": [
        {
            "text": "<script>fetch('/x')</script><img src=x onerror=alert(1)>"
            "[click](javascript:alert(1)) ![i](http://127.0.0.1:9/x.png) \u202eesrever\u202c "
            "</textarea><form action=/sign-out>\u0007" + "long " * 2_000,
            "calls": [
                {
                    "tool": "refund",
                    "args": {
                        "order_id": 1,
                        "cents": 1,
                        "reason": '"><script>alert(1)</script>\u202e' + "A" * 5_000,
                    },
                }
            ],
        },
        {"text": "<b onmouseover=alert(1)>done</b>"},
    ],
    "failing": [{"error": "the provider is on fire"}],
    "late": [{"text": "Quick!", "calls": [{"tool": "hurry", "args": {}}]}, {"text": "Too late."}],
    "blocking": [{"text": "I wait here.", "calls": [REFUND]}, {"text": "Done."}],
    "slow": [{"text": "one two three four five six seven eight", "delay_ms": 1500}],
}


def token_of(name: str) -> str:
    """Return the token of a person."""
    return f"{name}-token-0123456789"


def ui_server(folder: Path, **agents: Mapping[str, Any]) -> Server:
    """Return a server of the shop, with a token for each role and two for approvers."""
    (folder / "shop.py").write_text(TOOLS)
    for name, turns in TURNS.items():
        (folder / f"{name}.json").write_text(json.dumps(turns))
    tools = [f"shop:{name}" for name in ("lookup_order", "refund", "deploy_preview", "hurry")]
    tools.append("ask_user")
    blocking = {"blocking": {"task": {"hitl": {"mode": "blocking"}}}}
    people = [{"name": role, "token": token_of(role), "role": role} for role in ROLES]
    people += [
        {"name": name, "token": token_of(name), "role": "approver"} for name in ("ana", "ben")
    ]
    people.append({"name": "acme", "token": token_of("acme"), "role": "admin", "tenant": "acme"})
    config = {
        "session_stores": {
            "main": {"backend": "sql", "sql": {"driver": "sqlite", "database": "p.db"}}
        },
        "llms": {name: {"provider": "scripted", "script": f"{name}.json"} for name in TURNS},
        "agents": {
            name: {
                "llm": name,
                "session_store": "main",
                "tools": tools,
                "retries": 0,
                **blocking.get(name, {}),
                **agents.get(name, {}),
            }
            for name in TURNS
        },
        "server": {
            "tokens": people,
            "rate_limit": {"per_source": "100000/s", "per_id": "100000/s"},
        },
    }
    (folder / "perdure.yaml").write_text(json.dumps(config))  # JSON is YAML
    return Server(folder)


def effects(folder: Path) -> list[str]:
    """Return the effects of the tools, in order."""
    file = folder / "effects.log"
    return file.read_text().splitlines() if file.exists() else []
