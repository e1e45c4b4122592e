"""Scope of a request: its principal, the tenant it sees and the service behind the server.

The table of routes names the permit that each one needs; callers without it never enter the route:

    Route("GET", "/agents", READS, list_agents, returns={200: AgentList})
"""

import logging
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import anyio
import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from perdure.app import Runtime, is_open, service_of, tenant_of
from perdure.core.roles import Permit, Principal, may_see
from perdure.core.session.naming import check_tenant
from perdure.core.webhooks import signatures as webhooks
from perdure.errors import NotAllowed, NotFound, PerdureError
from perdure.runtime.sessions.service import Service
from perdure.runtime.sessions.verbs.caller import Caller
from perdure.runtime.sessions.verbs.calls import CallVerbs
from perdure.runtime.sessions.verbs.sessions import SessionVerbs
from perdure.serve.http.auth import LOCAL, SIGNED, Authenticate, is_forwarded
from perdure.serve.http.errors import not_authenticated, rate_limited, too_many_bodies
from perdure.serve.http.middleware import BODY_SHARE, Receive
from perdure.serve.http.responses import decode_body
from perdure.serve.http.sse import Hub
from perdure.serve.limits import BudgetShare, RateLimiter
from perdure.tasks.verbs import TaskVerbs
from perdure.views.health import Health
from perdure.views.literals import MAX_ID

T = TypeVar("T")

_BODY: Final = "perdure.body"  # in a scope: the body, if it was read before the caller was known

APP_STATE: Final = "perdure.app_state"  # in a scope: what all requests of a server share
KEY_HEADER: Final = "idempotency-key"


@dataclass(slots=True)
class FindingsCache:
    """Last report of the checks of the store, and when it was made (monotonic)."""

    turn: anyio.Lock = field(default_factory=anyio.Lock)
    report: Health | None = None
    checked_at: float = 0.0


@dataclass(frozen=True, slots=True)
class AppState:
    """Objects that all requests of a server share."""

    runtime: Runtime
    authenticate: Authenticate
    id_limiter: RateLimiter
    closing: anyio.Event  # set when the server shuts down: streams and waits end
    hub: Hub = field(default_factory=Hub)
    findings: FindingsCache = field(default_factory=FindingsCache)
    has_tokens: bool = True  # False: every caller on this machine may do everything
    kept: dict[str, Any] = field(default_factory=dict)  # what routes keep between requests

    @property
    def service(self) -> Service:
        """The service of the runtime. Raises PerdureError NOT_OPEN."""
        if not is_open(self.runtime):
            raise PerdureError(
                "the runtime behind this server is not open",
                code="NOT_OPEN",
                hint="open it in your own lifespan: async with rt: yield; "
                "with Runtime(worker=True) it also drives",
            )
        return service_of(self.runtime)

    def count_submission(self, key: str) -> None:
        """Count one more submission for an id. Raises Refused RATE_LIMITED."""
        if wait_ms := self.id_limiter.take(key):
            raise rate_limited("for this id", wait_ms)


@dataclass(frozen=True, slots=True)
class RequestScope:
    """One request with its caller."""

    request: Request
    app_state: AppState
    caller: Caller

    @property
    def service(self) -> Service:
        """The service of the runtime. Raises PerdureError NOT_OPEN."""
        return self.app_state.service

    @property
    def sessions(self) -> SessionVerbs:
        """The sessions that the request sees."""
        return SessionVerbs(self.service, self.caller)

    @property
    def calls(self) -> CallVerbs:
        """The pending calls that the request sees."""
        return CallVerbs(self.service, self.caller)

    @property
    def tasks(self) -> TaskVerbs:
        """The tasks that the request sees."""
        return TaskVerbs(self.service.tasks, self.caller.tenant)

    @property
    def tenant(self) -> str | None:
        """The tenant that the request sees; None: all."""
        return self.caller.tenant

    def actor(self) -> str | None:
        """Return the name that is recorded."""
        return self.caller.actor()

    @property
    def key(self) -> str | None:
        """The message key of the request; None without one."""
        return self.request.headers.get(KEY_HEADER) or None  # it may be empty

    @property
    def accept(self) -> str | None:
        """The media types that the caller accepts."""
        return self.request.headers.get("accept")

    @property
    def is_scoped(self) -> bool:
        """True if the principal sees one tenant only, whatever it requests."""
        own = None if self.caller.principal is None else self.caller.principal.tenant
        return own is not None or tenant_of(self.app_state.runtime) is not None

    def count_submission(self, target_id: str) -> None:
        """Count one more request for an id, apart for each tenant. Raises Refused RATE_LIMITED."""
        self.app_state.count_submission(f"{self.caller.home_tenant}/{target_id}")

    async def disconnected(self) -> None:
        """Return when the caller has disconnected, or the server shuts down."""

        async def end_at_shutdown(scope: anyio.CancelScope) -> None:
            await self.app_state.closing.wait()
            scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(end_at_shutdown, group.cancel_scope)
            while (await self.request.receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

    async def read_body(self, body_type: type[T], *, empty: T | None = None) -> T:
        """Return the decoded body, or `empty` if the request has no body. Raises Refused."""
        raw = await self.read_bytes()
        return empty if empty is not None and not raw else decode_body(raw, body_type)

    async def read_bytes(self) -> bytes:
        """Return the body as it was sent. Raises ClientDisconnect."""
        raw: bytes | None = self.request.scope.get(_BODY)
        return await _read_all(self.request.receive) if raw is None else raw


async def _read_all(receive: Receive) -> bytes:
    """Read the whole body, which the request filter limits. Raises ClientDisconnect."""
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Requires:
    """Dependency of a route that gives callers with the permit a scope."""

    permit: Permit

    async def __call__(self, request: Request) -> RequestScope:
        """Return the scope. Raises NotAllowed, NotFound, PerdureError NOT_OPEN."""
        app_state = get_app_state(request)
        principal = await app_state.authenticate(request)
        if principal is None:
            raise not_authenticated(
                has_token="authorization" in request.headers, is_forwarded=is_forwarded(request)
            )
        # Most requests have no query; parsing one takes as long as the check of the token.
        tenant = request.query_params.get("tenant") if request.scope["query_string"] else None
        caller = _caller(principal, _visible_tenant(app_state, principal, tenant))
        caller.require(self.permit)
        _ = app_state.service  # report a closed runtime before any other error
        return RequestScope(request, app_state, caller)


def get_app_state(request: Request) -> AppState:
    """Return the objects that all requests of this server share."""
    app_state: AppState = request.scope[APP_STATE]
    return app_state


def _caller(principal: Principal, tenant: str | None) -> Caller:
    """Return the caller of a request; a server without tokens trusts whomever its callers name."""
    # By identity: a principal of the configuration may equal one of these two.
    if principal is LOCAL:
        return Caller(principal, tenant, "http", trusted_role=principal.role)
    via = "webhook" if principal is SIGNED else f"http:{principal.name}"
    return Caller(principal, tenant, via)


def _visible_tenant(app_state: AppState, principal: Principal, requested: str | None) -> str | None:
    """Return the only tenant that the request sees, or None for all. Raises NotFound."""
    own = principal.tenant if principal.tenant is not None else tenant_of(app_state.runtime)
    if requested is None:
        return own
    check_tenant(requested)
    if own is not None and (requested != own or not may_see(principal, requested)):
        raise NotFound(
            f"there is no tenant {requested!r}",
            code="TENANT_NOT_FOUND",
            hint="leave tenant out: this token sees one tenant only",
        )
    return requested


READS_TOOL_CALLS: Final = Requires(Permit.READ_TOOL_CALLS)
READS: Final = Requires(Permit.READ)
DECIDES: Final = Requires(Permit.DECIDE)
OPERATES: Final = Requires(Permit.OPERATE)
ADMINISTERS: Final = Requires(Permit.ADMIN)


logger = logging.getLogger("perdure")

_SIGNATURE_HEADERS: Final = (webhooks.PLAIN, webhooks.STANDARD)
_SIGNATURE_HEADER_NAMES: Final = frozenset(name.encode() for name in _SIGNATURE_HEADERS)


@dataclass(frozen=True, slots=True)
class RequiresSignature(Requires):
    """Dependency of a route that accepts a valid signature, or a token that may submit.

    A signature that is present must be valid, even beside a valid token. With `always`, a
    signature is required if the server or the call has a secret to verify it with.
    """

    permit: Permit = Permit.SUBMIT
    always: bool = False

    async def __call__(self, request: Request) -> RequestScope:
        """Return the scope. Raises NotAllowed, NotFound, PerdureError NOT_OPEN."""
        app_state = get_app_state(request)
        is_signed = not _SIGNATURE_HEADER_NAMES.isdisjoint(dict(request.scope["headers"]))
        if is_signed or (self.always and await _is_signature_required(request, app_state)):
            await _check_signature(request, app_state)
            return RequestScope(request, app_state, _caller(SIGNED, tenant_of(app_state.runtime)))
        # `super()` does not work here: slots=True creates a second class.
        return await Requires.__call__(self, request)


async def _is_signature_required(request: Request, app_state: AppState) -> bool:
    calls = app_state.service.calls
    return calls.has_server_secret or await calls.has_secret(await _pending_id(request))


async def _pending_id(request: Request) -> str:
    """Return the id of the call that a request is about, from its path or else its body."""
    pending_id = request.path_params.get("pending_id")
    if pending_id is None:
        return _pending_id_in(await unauthenticated_body(request))
    return unquote(pending_id)


async def _check_signature(request: Request, app_state: AppState) -> None:
    """Verify the signature. Raises NotAllowed, which does not reveal whether the call exists.

    If the path names the call, the body is checked while it arrives, and not read at all if the
    headers are wrong already.
    """
    calls, headers = app_state.service.calls, request.headers
    is_named = "pending_id" in request.path_params
    if not any(name in headers for name in _SIGNATURE_HEADERS):
        raise _bad_signature("there is no signature", request.path_params.get("pending_id"))
    pending_id = await _pending_id(request)
    check = await calls.callback_check(headers, pending_id)
    if check.problem is not None:
        raise _bad_signature(check.problem, pending_id)
    body = await unauthenticated_body(request, check if is_named else None)
    if not is_named:
        check.update(body)
    verdict = check.result()
    # The call's own secret, if it has one, does not replace the reason: most calls have none.
    if not verdict.ok and not (await calls.verify_own(headers, body, pending_id)).ok:
        raise _bad_signature(verdict.reason, pending_id)


async def unauthenticated_body(
    request: Request, check: webhooks.StreamedCheck | None = None
) -> bytes:
    """Return the body of a caller that has not shown a token. Raises PerdureError BUSY.

    All such bodies share one budget of memory, so that callers without a token cannot exhaust it.
    """
    body: bytes | None = request.scope.get(_BODY)
    if body is not None:
        return body
    share: BudgetShare = request.scope[BODY_SHARE]
    length = request.headers.get("content-length", "")
    if length.isdecimal() and not share.reserve(int(length)):
        raise too_many_bodies()
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if not share.reserve(size):
            raise too_many_bodies()
        pieces.append(piece)
        if check is not None:
            check.update(piece)
    request.scope[_BODY] = body = b"".join(pieces)
    return body


def _bad_signature(reason: str, pending_id: str | None) -> NotAllowed:
    # Quoted and cut: a caller that nobody knows wrote the id.
    name = f" for call {pending_id[:MAX_ID]!r:.100}" if pending_id else ""
    logger.info("refused a webhook%s: %s", name, reason)
    return NotAllowed(
        webhooks.BAD_SIGNATURE,
        code="SIGNATURE_INVALID",
        hint="sign the raw body with the call's callback_secret: perdure webhook sign",
    )


class _SignedBody(Struct):
    pendingID: str = ""  # noqa: N815 - as on the wire


def _pending_id_in(raw: bytes) -> str:
    """Return the pending id in a body; empty if there is none: then only the server's secret fits.

    The signature is not verified yet, so the body may be anything.
    """
    try:
        return msgspec.json.decode(raw, type=_SignedBody).pendingID
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


SUBMITS: Final = RequiresSignature()
CALLS_BACK: Final = RequiresSignature(always=True)
