"""Routes of messages: send one, which may be a reply to a waiting run, and list them."""

from contextlib import aclosing
from typing import Final

import msgspec
from starlette.responses import Response

from perdure.serve.http.dependencies import DECIDES, READS, RequestScope
from perdure.serve.http.parameters import KEY
from perdure.serve.http.routes.sessions import driven_response
from perdure.serve.http.table import Route, tagged
from perdure.views.bodies import ContentMessage, DecisionMessage, MessageBody
from perdure.views.sessions import MessageList, MessageReceipt


async def send_message(scope: RequestScope, session_id: str, body: MessageBody) -> Response:
    """Send a message. It is a decision only if `taskID` names the run that waits for one.

    `decided` says whether it was, and `pendingID` names the call.
    """
    scope.count_submission(session_id)
    sent = await scope.sessions.send(session_id, body, scope.key)
    receipt = {
        "decided": sent.decided,
        "pendingID": sent.pending_id,
        "duplicate": sent.duplicate,
    }
    return await driven_response(scope, session_id, body.wait, receipt)


async def get_messages(scope: RequestScope, session_id: str) -> Response:
    """Return the conversation in parts, each call with its status."""
    async with aclosing(scope.sessions.logs.messages(session_id)) as messages:
        pages = [msgspec.json.encode(page, enc_hook=str)[1:-1] async for page in messages if page]
    name = msgspec.json.encode(session_id)
    body = b'{"sessionID":%b,"messages":[%b]}' % (name, b",".join(pages))
    return Response(body, media_type="application/json")


_PATH: Final = "/sessions/{session_id}/messages"
_SENT: Final = {200: MessageReceipt, 202: MessageReceipt}
ROUTES: Final = tagged(
    "sessions",
    Route(
        "POST",
        _PATH,
        DECIDES,
        send_message,
        body_types=(ContentMessage, DecisionMessage),
        headers=(KEY,),
        returns=_SENT,
    ),
    Route("GET", _PATH, READS, get_messages, returns={200: MessageList}),
)
