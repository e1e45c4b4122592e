"""The endpoint as an HTTP server with its own threads."""

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

from perdure.testing.endpoint.exchange import Body, ReceivedRequest, ScriptedResponse, dumps
from perdure.testing.endpoint.failures import ProviderError, provider_error
from perdure.testing.endpoint.handler import EndpointHandler
from perdure.testing.endpoint.judge import Judge, RequestVerdict, is_valid_key
from perdure.testing.endpoint.script import Failure, Script
from perdure.testing.provider_rules import Format

LONGEST_S: Final = 30.0  # limit of every wait for a request or a stall


class Endpoint:
    """Provider that plays a script; `requests` are those it received, oldest first."""

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
        self.requests: list[ReceivedRequest] = []
        self._script = script
        self._judge = Judge(script, strict=strict, asides=asides)
        self._log = log
        self._key = key
        self._next: list[Failure] = []  # failures of the next requests, whatever their turn
        self._plays: Counter[int] = Counter()  # requests per turn, failed ones included
        self._changed = threading.Condition()
        self._stalled = 0
        self._released = 0

    def fail_next(self, *failures: str | int | Mapping[str, Any]) -> None:
        """Make the next requests fail, one each, whatever turn they ask for."""
        with self._changed:
            self._next += [Failure.read(failure) for failure in failures]

    def request_count(self, turn: int) -> int:
        """Return the number of requests for a turn."""
        return sum(request.turn == turn for request in self.requests)

    @property
    def refused(self) -> list[str]:
        """Refusals of requests that broke a rule, as text."""
        return [request.refused for request in self.requests if request.refused]

    def wait_for(self, requests: int) -> None:
        """Wait until the endpoint has received so many requests in total."""
        self._wait(lambda: len(self.requests) >= requests, f"{requests} requests")

    def wait_for_stall(self) -> None:
        """Wait until a response stalls."""
        self._wait(lambda: self._stalled > self._released, "a stall")

    def go_on(self) -> None:
        """Let stalled responses continue."""
        with self._changed:
            self._released = self._stalled
            self._changed.notify_all()

    def _wait(self, condition: Any, name: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, LONGEST_S):
                raise TimeoutError(f"the endpoint waited {LONGEST_S:.0f} s for {name}")

    def stall(self) -> None:
        """Delay a response until `go_on`."""
        with self._changed:
            self._stalled += 1
            number = self._stalled
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._released >= number)

    def record_sent(self, verdict: RequestVerdict) -> None:
        """Record that a response was sent completely."""
        with self._changed:
            self._judge.record_sent(verdict.turn, verdict.model)

    def judge(self, raw: bytes, format: Format, key: str) -> RequestVerdict:  # noqa: A002
        """Return the verdict on a request, logged before it is sent."""
        with self._changed:
            number = len(self.requests) + 1
            try:
                body = json.loads(raw)
            except ValueError:
                body = None
            verdict = self._verdict(body, format, key, number)
            self._record(verdict, body if isinstance(body, dict) else {})
            return verdict

    def _verdict(self, body: Any, format: Format, key: str, number: int) -> RequestVerdict:  # noqa: A002
        if not isinstance(body, dict):
            error = ProviderError(
                400, "invalid_request_error", "The request body is not valid JSON"
            )
            return RequestVerdict(format, number, error=error, refused="body: not a JSON object")
        model = str(body.get("model"))
        turn = len(self._judge.earlier_responses(body, format))
        verdict = RequestVerdict(
            format, number, turn, model, is_streamed=body.get("stream") is True
        )
        if not is_valid_key(key, self._key):
            return verdict.refuse("key", provider_error("key", format, model))
        refusal = self._judge.refusal(body, format)
        if refusal is not None:
            return verdict.refuse(*refusal)
        scripted = self._script.turn(turn)
        native = scripted.native.get(format) if scripted is not None else None
        if scripted is None or native is None:
            text = f"turn {turn + 1} of the script has no response in the format {format}"
            return verdict.refuse("script", ProviderError(400, "invalid_request_error", text))
        failure = self._failure(turn, scripted.failures)
        response = ScriptedResponse(number, body, native, scripted.stop, scripted.usage)
        return verdict.respond(response, failure)

    def _failure(self, turn: int, failures: Sequence[Failure]) -> Failure | None:
        if self._next:
            return self._next.pop(0)
        position = self._plays[turn]
        self._plays[turn] += 1
        for failure in failures:
            if position < failure.times:
                return failure
            position -= failure.times
        return None

    def _record(self, verdict: RequestVerdict, body: Body) -> None:
        request = verdict.received_request(body)
        self.requests.append(request)
        if self._log is not None:
            with self._log.open("a", encoding="utf-8") as log:
                log.write(dumps(asdict(request)) + "\n")
        self._changed.notify_all()


class EndpointServer(ThreadingHTTPServer):
    """HTTP server of one endpoint."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, endpoint: Endpoint, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), EndpointHandler)
        self.endpoint = endpoint
        endpoint.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, which some tests do on purpose."""
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
    """Run an endpoint that plays these turns while the block runs.

    `log` gets one JSON line per request, before its response. With `key` any other key is refused.
    `asides` are responses that the client itself puts into a history; they are not turns. Without
    `strict` the endpoint refuses only what the newest models refuse.
    """
    script = turns if isinstance(turns, Script) else Script.of(turns)
    endpoint = Endpoint(script, log=log, key=key, asides=asides, strict=strict)
    server = EndpointServer(endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        endpoint.go_on()
