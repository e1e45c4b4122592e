"""Doors for those who sign what they send: other systems that bring the result of one call."""

import logging
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import unquote

import msgspec
from fastapi import Depends, Request
from msgspec import Struct

from holdfast.app import tenant_of
from holdfast.core.access import Permit
from holdfast.core.webhooks import signatures as webhooks
from holdfast.errors import NotAllowed
from holdfast.serve.door import Door, Needs, Shared, shared_of
from holdfast.serve.tokens import SIGNED

logger = logging.getLogger("holdfast")

_HEADERS: Final = (webhooks.PLAIN, webhooks.STANDARD)


@dataclass(frozen=True, slots=True)
class Signs(Needs):
    """Opens the door to a valid signature, and without one to a token that may submit.

    A signature that is there must hold, whatever else is. Where `always`, only a signature
    counts, if the server or the call has a secret to check it with.
    """

    permit: Permit = Permit.SUBMIT
    always: bool = False

    async def __call__(self, request: Request) -> Door:
        """The door, or the refusal that says why not."""
        shared = shared_of(request)
        is_signed = any(name in request.headers for name in _HEADERS)
        if is_signed or (self.always and await _must_sign(request, shared)):
            await _check_signature(request, shared)
            return Door(request, shared, SIGNED, tenant_of(shared.rt))
        # `super()` does not find its class in one with slots.
        return await Needs.__call__(self, request)


async def _must_sign(request: Request, shared: Shared) -> bool:
    desk = shared.service.desk
    return bool(desk.webhook_secrets or await desk.own_secrets(await _named(request)))


async def _named(request: Request) -> str:
    """The call that a request is about."""
    pending_id = request.path_params.get("pending_id")
    return _named_in(await request.body()) if pending_id is None else unquote(pending_id)


async def _check_signature(request: Request, shared: Shared) -> None:
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
            hint="sign the raw body with the call's callback_secret: holdfast webhook sign",
        )


class _Named(Struct):
    pendingID: str = ""  # noqa: N815 - as on the wire


def _named_in(raw: bytes) -> str:
    """The call that a body names; empty if it names none, which only the server's secret signs."""
    try:
        return msgspec.json.decode(raw, type=_Named).pendingID
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


Sends = Annotated[Door, Depends(Signs())]
CallsBack = Annotated[Door, Depends(Signs(always=True))]
