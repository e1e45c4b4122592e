"""What every route gets: who asks, what they see, and what stands behind the server.

A route names what it needs in its signature, and is not entered without it:

    @router.get("/agents", responses=answers({200: AGENTS}))
    async def agents(door: Reads) -> Response: ...
"""

import logging
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote

import anyio
import msgspec
from fastapi import Depends, Path, Request
from msgspec import Struct
from pydantic import AfterValidator

from perdure.app import Runtime, is_open, service_of, tenant_of
from perdure.core.access import Permit, Principal, may, sees
from perdure.core.session.naming import MAX_ID, check_id, check_tenant
from perdure.core.webhooks import signatures as webhooks
from perdure.errors import NotAllowed, NotFound, PerdureError
from perdure.runtime.sessions.service import Service
from perdure.serve.http.auth import LOCAL, SIGNED, Authenticate
from perdure.serve.http.errors import not_authenticated, rate_limited
from perdure.serve.http.middleware import Limit
from perdure.serve.http.responses import decoded
from perdure.serve.http.schemas import ID_PATTERN
from perdure.serve.http.sse import Hub

T = TypeVar("T")

_VIA: Final = {LOCAL: "http", SIGNED: "webhook"}  # those who have no token

# An id in an address; the gate leaves "/" and "%" in it quoted.
_ID: Final[dict[str, Any]] = {"minLength": 1, "maxLength": MAX_ID, "pattern": ID_PATTERN}
Id = Annotated[str, Path(max_length=2000, json_schema_extra=_ID), AfterValidator(unquote)]
# Read by hand, for every request has it: the framework takes longer than the rest of a door.
TENANT: Final[dict[str, Any]] = {
    "name": "tenant",
    "in": "query",
    "required": False,
    "description": "Whose; only for principals that have no tenant.",
    "schema": {"type": "string", "maxLength": MAX_ID, "pattern": ID_PATTERN},
}


@dataclass(frozen=True, slots=True)
class AppState:
    """What all requests of a server share."""

    rt: Runtime
    authenticate: Authenticate
    ids: Limit
    closing: anyio.Event  # set when the server is told to stop: whoever streams or waits, ends
    hub: Hub = field(default_factory=Hub)

    @property
    def service(self) -> Service:
        """What stands behind every door. Raises PerdureError NOT_OPEN."""
        if not is_open(self.rt):
            raise PerdureError(
                "the runtime behind this server is not open",
                code="NOT_OPEN",
                hint="open it in your own lifespan: async with rt: yield; "
                "with Runtime(worker=True) it also drives",
            )
        return service_of(self.rt)

    def count(self, key: str) -> None:
        """Note one more submission for an id. Raises Refused RATE_LIMITED."""
        if wait_ms := self.ids.take(key, self.service.desk.store.now()):
            raise rate_limited("for this id", wait_ms)


@dataclass(frozen=True, slots=True)
class RequestScope:
    """One request: who asks, and what they see."""

    request: Request
    shared: AppState
    principal: Principal
    tenant: str | None  # None: everything

    @property
    def service(self) -> Service:
        """What stands behind every door."""
        return self.shared.service

    @property
    def home(self) -> str:
        """The tenant in which a session's id is looked up."""
        return self.tenant or ""

    def named(self, given: str) -> str:
        """An id as it is counted: what those of another tenant ask for takes nothing away here."""
        return f"{self.home}/{given}"

    @property
    def is_scoped(self) -> bool:
        """Whether who asks can see no more than one tenant, whatever it asks for."""
        return self.principal.tenant is not None or tenant_of(self.shared.rt) is not None

    @property
    def via(self) -> str:
        """Through which door this came, as decisions record it."""
        by_token = f"http:{self.principal.name}"
        return next((via for one, via in _VIA.items() if one is self.principal), by_token)

    def by(self, given: str | None = None) -> str:
        """Who does it: the principal, or whoever it names if it may act on behalf of others."""
        if given is None or given == self.principal.name:
            return self.principal.name
        if not self.principal.on_behalf:
            raise NotAllowed(
                f"{self.principal.name!r} may not act on behalf of {given!r}",
                hint="leave out `by`, or give the token on_behalf: true",
            )
        return check_id(given, "name")

    def may(self, permit: Permit) -> bool:
        """Whether who asks may do this."""
        return may(self.principal, permit)

    def require(self, permit: Permit) -> None:
        """Raises NotAllowed unless who asks may do this."""
        if not self.may(permit):
            raise NotAllowed(
                f"{self.principal.name!r} is {self.principal.role} and may not {permit}",
                details={"role": self.principal.role},
            )

    async def body(self, shape: type[T], *, empty: T | None = None) -> T:
        """The request's body as this shape; `empty` stands for none at all. Raises Refused."""
        raw = await self.request.body()
        return empty if empty is not None and not raw else decoded(raw, shape)


@dataclass(frozen=True, slots=True)
class Requires:
    """The dependency that opens a door to those who have the permit."""

    permit: Permit

    async def __call__(self, request: Request) -> RequestScope:
        """The door, or the refusal that says why not."""
        shared = shared_of(request)
        principal = await shared.authenticate(request)
        if principal is None:
            raise not_authenticated()
        tenant = request.query_params.get("tenant")
        door = RequestScope(request, shared, principal, _seen(shared, principal, tenant))
        door.require(self.permit)
        _ = shared.service  # open, or say so before anything else
        return door


def shared_of(request: Request) -> AppState:
    """What all requests of this server share."""
    found: Any = request.app.state.shared
    assert isinstance(found, AppState)  # noqa: S101 - put there by serve.http
    return found


def _seen(shared: AppState, principal: Principal, asked: str | None) -> str | None:
    """The one tenant that can be seen from here, or None for all."""
    own = principal.tenant if principal.tenant is not None else tenant_of(shared.rt)
    if asked is None:
        return own
    check_tenant(asked)
    if own is not None and (asked != own or not sees(principal, asked)):
        raise NotFound(f"there is no tenant {asked!r}", code="TENANT_NOT_FOUND")
    return asked


ReadsToolCalls = Annotated[RequestScope, Depends(Requires(Permit.READ_TOOL_CALLS))]
Reads = Annotated[RequestScope, Depends(Requires(Permit.READ))]
Submits = Annotated[RequestScope, Depends(Requires(Permit.SUBMIT))]
Decides = Annotated[RequestScope, Depends(Requires(Permit.DECIDE))]
Operates = Annotated[RequestScope, Depends(Requires(Permit.OPERATE))]
Administers = Annotated[RequestScope, Depends(Requires(Permit.ADMIN))]


logger = logging.getLogger("perdure")

_HEADERS: Final = (webhooks.PLAIN, webhooks.STANDARD)


@dataclass(frozen=True, slots=True)
class RequiresSignature(Requires):
    """Opens the door to a valid signature, and without one to a token that may submit.

    A signature that is there must hold, whatever else is. Where `always`, only a signature
    counts, if the server or the call has a secret to check it with.
    """

    permit: Permit = Permit.SUBMIT
    always: bool = False

    async def __call__(self, request: Request) -> RequestScope:
        """The door, or the refusal that says why not."""
        shared = shared_of(request)
        is_signed = any(name in request.headers for name in _HEADERS)
        if is_signed or (self.always and await _must_sign(request, shared)):
            await _check_signature(request, shared)
            return RequestScope(request, shared, SIGNED, tenant_of(shared.rt))
        # `super()` does not find its class in one with slots.
        return await Requires.__call__(self, request)


async def _must_sign(request: Request, shared: AppState) -> bool:
    desk = shared.service.desk
    return bool(desk.webhook_secrets or await desk.own_secrets(await _named(request)))


async def _named(request: Request) -> str:
    """The call that a request is about."""
    pending_id = request.path_params.get("pending_id")
    return _named_in(await request.body()) if pending_id is None else unquote(pending_id)


async def _check_signature(request: Request, shared: AppState) -> None:
    """Raises NotAllowed; who has no right signature learns nothing more, not even of the id."""
    raw, named = await request.body(), await _named(request)
    desk = shared.service.desk
    verdict = webhooks.verify(request.headers, raw, desk.secrets_for(named), desk.store.now())
    if not verdict.ok and (own := await desk.own_secrets(named)):
        verdict = webhooks.verify(request.headers, raw, own, desk.store.now())
    if not verdict.ok:
        logger.info("a webhook was refused: %s", verdict.why)
        raise NotAllowed(
            webhooks.BAD_SIGNATURE,
            code="SIGNATURE_INVALID",
            hint="sign the raw body with the call's callback_secret: perdure webhook sign",
        )


class _Named(Struct):
    pendingID: str = ""  # noqa: N815 - as on the wire


def _named_in(raw: bytes) -> str:
    """The call that a body names; empty if it names none, which only the server's secret signs."""
    try:
        return msgspec.json.decode(raw, type=_Named).pendingID
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


Sends = Annotated[RequestScope, Depends(RequiresSignature())]
CallsBack = Annotated[RequestScope, Depends(RequiresSignature(always=True))]
