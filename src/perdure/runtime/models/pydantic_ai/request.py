"""One request to a model of pydantic-ai, streamed: pieces first, then the whole answer."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.settings import ModelSettings

from perdure.core.conversation.messages import Answer, AssistantMessage
from perdure.core.conversation.repair import IncrementalCanonical
from perdure.core.providers import Target, rendered
from perdure.core.providers.catalog import Format, Provider
from perdure.core.providers.native import DONE, NativeResponse, put_together, sent_in
from perdure.core.providers.streams import Broken, Chunk, Reader, ReceivedResponse, reader_of
from perdure.runtime.models.base import Delta, Request
from perdure.runtime.models.pydantic_ai.failures import cut_off, failure, no_answer, refused
from perdure.runtime.models.pydantic_ai.translation import (
    OUTPUT_TOOL,
    OutputRequest,
    history_of,
    kept,
    piece_of,
    settings_of,
    shape_of,
    thinks,
    told_by,
)
from perdure.runtime.models.pydantic_ai.transport import (
    RequestTemplates,
    StreamTap,
    prefilled,
    tapped,
    whole,
)


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


_ANOTHER_MAKE = "the answer is not in the form of this provider"
_ODD = (LookupError, TypeError, AttributeError)  # what reading such an answer ends in
_PLACE = [ModelRequest([UserPromptPart("…")])]  # where the conversation stands in the request


@dataclass(frozen=True, slots=True)
class PydanticAIRequest:
    """A model that can be asked; with a `format` the log's own bytes go out and come in."""

    model: Model[Any]
    provider: Provider
    model_name: str
    format: Format | None
    reads: bool = True  # whether the stream is just what the format says
    repeats: RequestTemplates | None = None

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Ask for one turn; what the provider refuses or fails at is raised as ModelError."""
        shape = shape_of(request, self.model)
        label = f"{self.provider.name}:{self.model_name}"
        heard: CompleteResponse | None = None
        ear = StreamTap()
        try:
            async with AsyncExitStack() as stack:
                async for piece in self._pieces(request, shape, ear, stack):
                    if isinstance(piece, CompleteResponse):
                        heard = piece
                    else:
                        where = (request.session_id, request.turn)
                        yield Delta(*where, piece.kind, piece.text, piece.call)
        except Exception as error:
            is_odd = self.format and ear.chunks and isinstance(error, _ODD)
            met = Broken("", _ANOTHER_MAKE) if is_odd else error
            ours = failure(met, label, _command(request))
            if ours is None:
                raise
            raise (no_answer(label) if ear.is_page else ours) from error
        if heard is None or not heard.whole:
            raise no_answer(label) if ear.is_page else cut_off(label)
        if heard.told.refusal is not None:
            raise refused(heard.told.refusal, label, _command(request))
        yield self._whole(heard, shape)

    async def _pieces(
        self, request: Request, shape: OutputRequest, ear: StreamTap, stack: AsyncExitStack
    ) -> AsyncIterator["Chunk | CompleteResponse"]:
        """The answer as it comes, then the whole of it."""
        reader = reader_of(self.format) if self.reads else None
        ear.takes = reader is not None
        stack.push_async_callback(ear.close)
        stream = await self._opened(request, shape, ear, stack)
        if stream is not None:
            pieces = self._translated(stream, ear)
        elif reader is not None:
            pieces = _read(reader, ear)
        else:
            return
        async for piece in pieces:
            yield piece

    async def _opened(
        self, request: Request, shape: OutputRequest, ear: StreamTap, stack: AsyncExitStack
    ) -> StreamedResponse | None:
        """The library's view of the answer; None if it has none, since the ear took it."""
        messages, settings, conversation = await self._asked(request)
        with tapped(ear), prefilled(await self._repeated(request, conversation, ear)):
            if ear.stream is not None:
                return None
            asked = self.model.request_stream(messages, settings, shape.parameters)
            try:
                stream = await stack.enter_async_context(asked)
            except UnexpectedModelBehavior:
                if ear.stream is None:
                    raise
                stream = None  # it only says that nothing came
        if self.repeats is not None and ear.request is not None:
            self.repeats.keep(request, conversation, ear.request)
        return stream if ear.stream is None else None

    async def _repeated(
        self, request: Request, conversation: Mapping[str, Any], ear: StreamTap
    ) -> httpx2.Response | Exception | None:
        """What was answered to a request like one before, for the library to make sense of.

        None if the ear took the answer, or if the library has yet to make such a request.
        """
        again = self.repeats.again(request, conversation) if self.repeats and ear.takes else None
        if again is None or self.repeats is None:
            return None
        with tapped(ear):
            outcome = await self.repeats.sent(again)
        if ear.stream is not None:
            return None
        self.repeats.forget()
        return await whole(outcome)

    async def _translated(
        self, stream: StreamedResponse, ear: StreamTap
    ) -> AsyncIterator["Chunk | CompleteResponse"]:
        """The answer as the library reads it."""
        calls: dict[int, str] = {}
        async for event in stream:
            piece = piece_of(event, calls)
            if piece is not None:
                yield piece
        response = stream.get()
        if self.format is None:
            yield CompleteResponse(told_by(response), kept(response))
            return
        sent = sent_in(ear.events(), self.format) if ear.chunks else NativeResponse(whole=True)
        yield CompleteResponse(told_by(response), sent.native, sent.whole)

    async def _asked(
        self, request: Request
    ) -> tuple[list[ModelMessage], ModelSettings, Mapping[str, Any]]:
        """What the library is asked with, and the part of the request that is ours."""
        files = await files_of(request)
        settings = settings_of(request.settings, self.provider, self.model.settings or {})
        if self.format is None:
            origin = (self.provider.recorded, self.model_name)
            told = history_of(request.messages, origin, files, request.instructions)
            return told, ModelSettings(**settings), {}  # type: ignore[typeddict-item]
        growing = request.growing or IncrementalCanonical()
        thinking = self.format == "anthropic" and thinks(settings)
        target = Target(self.provider.recorded, self.model_name, encoded(files), thinking)
        body = rendered(growing.canonical(list(request.messages)), self.format, target)
        if self.format == "openai-chat":
            body["messages"] = self._chat(request.instructions, body["messages"])
        settings["extra_body"] = {**settings.get("extra_body", {}), **body}
        return list(_PLACE), ModelSettings(**settings), body  # type: ignore[typeddict-item]

    def _chat(self, instructions: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        profile: Mapping[str, Any] = self.model.profile
        role = profile.get("openai_system_prompt_role") or "system"
        first = [{"role": role, "content": instructions}] if instructions else []
        if profile.get("openai_chat_send_back_thinking_parts", "auto") in (False, "tags"):
            messages = [_without_thinking(message) for message in messages]
        return first + messages

    def _whole(self, heard: "CompleteResponse", shape: OutputRequest) -> Answer:
        told = heard.told
        asked = tuple(call for call in told.calls if call.tool != OUTPUT_TOOL)
        last = next((call for call in told.calls if call.tool == OUTPUT_TOOL), None)
        output = None
        if last is not None and not asked and isinstance(last.params, dict):
            output = shape.unwrapped_of(last.params)
        elif shape.wrapped and not asked:
            output = shape.unwrapped(told.text)
        return Answer(
            text=told.text,
            calls=asked,
            thinking=told.thinking,
            output=output,
            usage=told.usage,
            stop=told.stop,
            provider=self.provider.recorded,
            model=self.model_name,
            native=heard.native,
        )


@dataclass(frozen=True, slots=True)
class CompleteResponse:
    """A whole answer, and what goes back to its provider one day; cut off unless it is whole."""

    told: ReceivedResponse
    native: bytes | None
    whole: bool = True


def _command(request: Request) -> str:
    """What to type once what stopped a request is put right."""
    verb = "resume" if request.purpose == "turn" else "compact"
    return f"perdure sessions {verb} {request.session_id}"


def _without_thinking(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if not key.startswith("reasoning")}


async def _read(reader: Reader, ear: StreamTap) -> AsyncIterator[Chunk | CompleteResponse]:
    """The answer as it is read here."""
    events: list[Any] = []
    done = False
    async for data in ear.taken():
        done = done or data == DONE
        event = None if done else json.loads(data)
        events.append(event)
        with _of_another_make():
            piece = reader.take(event) if isinstance(event, dict) else None
        if piece is not None:
            yield piece
    sent = put_together(events, reader.format)
    with _of_another_make():
        told = reader.told(sent.items)
    yield CompleteResponse(told, sent.native, sent.ended(done=done))


@contextmanager
def _of_another_make() -> Iterator[None]:
    try:
        yield
    except _ODD as error:
        raise Broken("", _ANOTHER_MAKE) from error
