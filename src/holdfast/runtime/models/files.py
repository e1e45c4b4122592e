"""The files in a conversation, read when a request needs them."""

from base64 import b64encode
from collections.abc import Iterator, Mapping

from holdfast.core.conversation.messages import AssistantMessage
from holdfast.runtime.models.base import Request


async def files_of(request: Request) -> dict[str, bytes]:
    """The bytes of each stored file, by its digest; without those that are gone."""
    if request.read_file is None:
        return {}
    found = {digest: await request.read_file(digest) for digest in dict.fromkeys(_digests(request))}
    return {digest: data for digest, data in found.items() if data is not None}


def encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    """The files as requests carry them."""
    return {digest: b64encode(data).decode() for digest, data in files.items()}


def _digests(request: Request) -> Iterator[str]:
    for message in request.messages:
        if isinstance(message, AssistantMessage) or isinstance(message.content, str):
            continue
        for part in message.content:
            if isinstance(part.get("blob"), str):
                yield part["blob"]
