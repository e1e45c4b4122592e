"""CPU of requests through ASGI in one process: `python bench/request_cpu.py FOLDER REQUESTS`.

It imports perdure from PYTHONPATH, which may be the source of another version, and prints JSON: for
each kind of request the microseconds of CPU, with all threads. It may import nothing of `bench`.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from itertools import count
from pathlib import Path
from typing import Any, Final

import perdure
from perdure import Agent, PendingCall, Principal, Runtime, asgi, tool
from perdure.testing import ScriptedModel

PARTS: Final = 10
CALLS: Final = 50  # of one session
TOKEN: Final = "admin-token-0123456789"  # noqa: S105 - of a server in this process
HTML: Final = {"accept": "text/html", "sec-fetch-mode": "navigate"}
_callers: Final = count(10 << 24)
Request = Callable[[], tuple[str, str, dict[str, str], bytes]]


@tool(deferred=True, timeout=None)
def ask(n: int, call: PendingCall) -> str:
    """Start a job elsewhere."""
    return f"job-{n}"


@tool(requires_approval=True)
def refund(n: int, cents: int) -> str:
    """Pay money back."""
    return f"{cents} of {n}"


def agent(name: str, args: dict[str, Any]) -> Agent[str]:
    """Agent that waits for the outcome of many calls at once."""
    calls = [{"tool": name, "args": {"n": n, **args}} for n in range(CALLS)]
    model = ScriptedModel([{"calls": calls}, {"text": "done"}])
    return Agent(name, model=model, tools=[ask, refund])


async def respond(app: Any, request: tuple[str, str, dict[str, str], bytes]) -> tuple[int, Any]:
    """Send one request to the application; return the status and its headers."""
    method, address, headers, body = request
    path, _, query = address.partition("?")
    fields = {"host": "perdure", "content-length": str(len(body)), **headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
        "client": (str(IPv4Address(next(_callers))), 4747),  # each of another address: no limit
        "server": ("perdure", 80),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], (sent[0]["headers"], content)


async def sign_in(app: Any) -> dict[str, str]:
    """Return the headers of a browser that has signed in."""
    _, (headers, content) = await respond(app, ("GET", "/sign-in", HTML, b""))
    cookies = dict(_cookies(headers))
    token = content.decode().partition('name="form_token" value="')[2].partition('"')[0]
    form = {"content-type": "application/x-www-form-urlencoded", "origin": "http://perdure"}
    shown = {"cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    body = f"answer={TOKEN}&form_token={token}".encode()
    status, (headers, _) = await respond(app, ("POST", "/sign-in", {**HTML, **form, **shown}, body))
    assert status == 303, status
    cookies |= dict(_cookies(headers))
    return {**HTML, "cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}


def _cookies(headers: Any) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        if name.lower() == b"set-cookie":
            key, _, content = value.decode().partition(";")[0].partition("=")
            yield key, content


async def cpu_us(app: Any, request: Request, requests: int) -> float:
    """Return the microseconds of CPU of one request: the mean of the fastest of ten parts.

    Other programs on the same cores only make a part slower.
    """
    part = max(2, requests // PARTS)
    times = []
    for _ in range(PARTS + 1):
        started = time.process_time()
        for _ in range(part):
            status, (_, content) = await respond(app, request())
            assert status == 200, content[:500]
        times.append((time.process_time() - started) / part * 1e6)
    return min(times[1:])


async def measure(folder: Path, requests: int) -> dict[str, float]:
    """Return the CPU of each kind of request."""
    agents = [agent("ask", {}), agent("refund", {"cents": 4200})]
    async with Runtime(f"sqlite:///{folder / 'p.db'}", agents=agents) as rt:
        await rt.session("approvals", agent="refund").run("Go")
        needed = 2 * max(requests, 10)
        for number in range(-(-needed // CALLS)):
            await rt.session(f"s{number}", agent="ask").run("Go")
        ids = [call.id async for call in rt.pending() if call.kind == "tool"]
        app = asgi(rt, auth={TOKEN: Principal("bench", "admin")})
        token = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        browser = await sign_in(app)

        def result() -> tuple[str, str, dict[str, str], bytes]:
            body = json.dumps({"pendingID": ids.pop(), "result": {"output": "x" * 200}})
            return "POST", "/async-tool/result", token, body.encode()

        return {
            "GET /pending?limit=10": await cpu_us(
                app, lambda: ("GET", "/pending?limit=10", token, b""), requests
            ),
            "inbox with 50 rows": await cpu_us(
                app, lambda: ("GET", "/", browser, b""), max(5, requests // 10)
            ),
            "POST /async-tool/result": await cpu_us(app, result, requests),
        }


if __name__ == "__main__":
    print(perdure.__file__, file=sys.stderr)
    print(json.dumps(asyncio.run(measure(Path(sys.argv[1]), int(sys.argv[2])))))
