"""The endpoint as an HTTP server of its own threads."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from perdure.testing.endpoint.failures import Problem, problem
from perdure.testing.endpoint.handler import Handler
from perdure.testing.endpoint.judging import Judge, is_key
from perdure.testing.endpoint.play import Asked, Body, Play, dumps
from perdure.testing.endpoint.script import Failure, Script
from perdure.testing.endpoint.verdict import Verdict
from perdure.testing.provider_rules import Format

LONGEST_S: Final = 30.0  # what a test waits for and is not there by then does not come


class Endpoint:
    """A provider that plays a script; `requests` is what it was asked, oldest first."""

    def __init__(
        self,
        script: Script,
        *,
        log: Path | None = None,
        key: str | None = None,
        asides: Collection[str] = (),
        strict: bool = True,
    ) -> None:
        self.url = ""
        self.requests: list[Asked] = []
        self._script = script
        self._judge = Judge(script, strict=strict, asides=asides)
        self._log = log
        self._key = key
        self._next: list[Failure] = []  # failures of whichever request comes
        self._plays: Counter[int] = Counter()  # how often each turn was played or failed
        self._changed = threading.Condition()
        self._stalled = 0
        self._released = 0

    def fail_next(self, *failures: str | int | Mapping[str, Any]) -> None:
        """Let the next requests fail, one each, whichever turn they ask for."""
        with self._changed:
            self._next += [Failure.read(one) for one in failures]

    def asked(self, turn: int) -> int:
        """How often a turn was asked for."""
        return sum(one.turn == turn for one in self.requests)

    @property
    def refused(self) -> list[str]:
        """What was refused because of the client, in words."""
        return [one.refused for one in self.requests if one.refused]

    def wait_for(self, requests: int) -> None:
        """Wait until so many requests have come in all."""
        self._wait(lambda: len(self.requests) >= requests, f"{requests} requests")

    def wait_for_stall(self) -> None:
        """Wait until an answer has come to its stall."""
        self._wait(lambda: self._stalled > self._released, "a stall")

    def go_on(self) -> None:
        """Let the answers that stall go on."""
        with self._changed:
            self._released = self._stalled
            self._changed.notify_all()

    def _wait(self, reached: Any, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(reached, LONGEST_S):
                raise TimeoutError(f"the endpoint waited {LONGEST_S:.0f} s for {what}")

    def stall(self) -> None:
        """Hold an answer back until the test says to go on."""
        with self._changed:
            self._stalled += 1
            mine = self._stalled
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._released >= mine)

    def sent(self, verdict: Verdict) -> None:
        """Remember that an answer went out whole."""
        with self._changed:
            self._judge.sent(verdict.turn, verdict.model)

    def judge(self, raw: bytes, format: Format, key: str) -> Verdict:  # noqa: A002
        """An answer, a refusal or a failure; it is in the log before it is sent."""
        with self._changed:
            number = len(self.requests) + 1
            try:
                body = json.loads(raw)
            except ValueError:
                body = None
            verdict = self._verdict(body, format, key, number)
            self._note(verdict, body if isinstance(body, dict) else {})
            return verdict

    def _verdict(self, body: Any, format: Format, key: str, number: int) -> Verdict:  # noqa: A002
        if not isinstance(body, dict):
            wrong = Problem(400, "invalid_request_error", "The request body is not valid JSON")
            return Verdict(format, number, problem=wrong, refused="body: not a JSON object")
        model = str(body.get("model"))
        turn = len(self._judge.answers(body, format))
        common = Verdict(format, number, turn, model, is_streamed=body.get("stream") is True)
        if not is_key(key, self._key):
            return common.refuse("key", problem("key", format, model))
        refusal = self._judge.refusal(body, format)
        if refusal is not None:
            return common.refuse(*refusal)
        played = self._script.turn(turn)
        native = played.native.get(format) if played is not None else None
        if played is None or native is None:
            says = f"turn {turn + 1} of the script has nothing to say in {format}"
            return common.refuse("script", Problem(400, "invalid_request_error", says))
        failure = self._failure(turn, played.failures)
        return common.answer(Play(number, body, native, played.stop, played.usage), failure)

    def _failure(self, turn: int, failures: Sequence[Failure]) -> Failure | None:
        if self._next:
            return self._next.pop(0)
        left = self._plays[turn]
        self._plays[turn] += 1
        for failure in failures:
            if left < failure.times:
                return failure
            left -= failure.times
        return None

    def _note(self, verdict: Verdict, body: Body) -> None:
        asked = verdict.as_asked(body)
        self.requests.append(asked)
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as log:
                log.write(dumps(asdict(asked)) + "\n")
        self._changed.notify_all()


class Server(ThreadingHTTPServer):
    """The server of one endpoint."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, endpoint: Endpoint, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.endpoint = endpoint
        endpoint.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle is what some tests are about."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def fake_endpoint(
    turns: Sequence[Mapping[str, Any] | None] | Script,
    *,
    log: Path | None = None,
    key: str | None = None,
    asides: Collection[str] = (),
    strict: bool = True,
) -> Iterator[Endpoint]:
    """An endpoint that plays these turns while the block runs.

    `log` gets one JSON line per request, before it is answered. With `key` any other key is
    refused. `asides` are answers that the client itself puts into a history; they are no turns.
    Not `strict` refuses only what the newest models refuse.
    """
    script = turns if isinstance(turns, Script) else Script.of(turns)
    endpoint = Endpoint(script, log=log, key=key, asides=asides, strict=strict)
    server = Server(endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        endpoint.go_on()
