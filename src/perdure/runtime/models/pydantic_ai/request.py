"""One request to a model of pydantic-ai, streamed: deltas first, then the complete response."""

from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.settings import ModelSettings

from perdure.core.conversation.messages import Answer, AssistantMessage
from perdure.core.conversation.repair import IncrementalCanonical
from perdure.core.providers.catalog import Format, Provider
from perdure.core.providers.formats import render_canonical, stream_reader
from perdure.core.providers.stream import (
    SHAPE_ERRORS,
    Chunk,
    MalformedStreamError,
    ReceivedResponse,
    ResponseReader,
    read_native,
)
from perdure.core.providers.target import Target
from perdure.runtime.models.base import Request
from perdure.runtime.models.pydantic_ai.failures import (
    cut_off_error,
    failure,
    refusal_error,
    web_page_error,
)
from perdure.runtime.models.pydantic_ai.translation import (
    OUTPUT_TOOL,
    OutputRequest,
    dump_response,
    is_thinking_enabled,
    library_messages,
    library_settings,
    output_request,
    read_event,
    received_response,
)
from perdure.runtime.models.pydantic_ai.transport import (
    COMPLETE_ANTHROPIC_STREAM,
    RequestTemplates,
    StreamTap,
)
from perdure.views.events import Delta


async def _read_files(request: Request) -> dict[str, bytes]:
    """Return the bytes of each stored file by its digest, without files that are gone."""
    if request.read_file is None:
        return {}
    digests = dict.fromkeys(_digests(request))
    files = {digest: await request.read_file(digest) for digest in digests}
    return {digest: data for digest, data in files.items() if data is not None}


def _encode_files(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the files in base64."""
    return {digest: b64encode(data).decode() for digest, data in files.items()}


def _digests(request: Request) -> Iterator[str]:
    for message in request.messages:
        if isinstance(message, AssistantMessage) or isinstance(message.content, str):
            continue
        for part in message.content:
            if isinstance(part.get("blob"), str):
                yield part["blob"]


# Stands for the conversation, which replaces it in the body of the request.
_PLACEHOLDER: Final = [ModelRequest([UserPromptPart("…")])]


@dataclass(frozen=True, slots=True)
class PydanticAIRequest:
    """Requests to one model; with a `format`, conversations and responses keep the log's bytes."""

    model: Model[Any]
    provider: Provider
    model_name: str
    format: Format | None
    reads_stream: bool = True  # False: streams may deviate from the format, the library reads them
    templates: RequestTemplates | None = None

    async def answer(self, request: Request) -> AsyncIterator[Delta | Answer]:
        """Request one turn. Raises ModelError if the provider refuses it or fails."""
        output = output_request(request, self.model)
        label = f"{self.provider.name}:{self.model_name}"
        response: ReceivedResponse | None = None
        tap = StreamTap()
        try:
            async with AsyncExitStack() as stack:
                async for chunk in self._chunks(request, output, tap, stack):
                    if isinstance(chunk, ReceivedResponse):
                        response = chunk
                    else:
                        ids = (request.session_id, request.turn)
                        yield Delta(*ids, chunk.kind, chunk.text, chunk.call)
        except Exception as error:
            is_malformed = self.format and tap.chunks and isinstance(error, SHAPE_ERRORS)
            cause = MalformedStreamError() if is_malformed else error
            translated = failure(cause, label, _retry_command(request))
            if translated is None:
                raise
            raise (web_page_error(label) if tap.is_web_page else translated) from error
        if response is None or not response.is_complete:
            raise web_page_error(label) if tap.is_web_page else cut_off_error(label)
        if response.refusal is not None:
            raise refusal_error(response.refusal, label, _retry_command(request))
        yield self._answer(response, output)

    async def _chunks(
        self, request: Request, output: OutputRequest, tap: StreamTap, stack: AsyncExitStack
    ) -> AsyncIterator[Chunk | ReceivedResponse]:
        """Yield the response as it arrives, then the whole of it."""
        reader = self._response_reader()
        tap.diverts = reader is not None
        if self.format == "anthropic":
            tap.stand_in = COMPLETE_ANTHROPIC_STREAM
        stack.push_async_callback(tap.close)
        stream = await self._open_stream(request, output, tap, stack)
        if stream is not None:
            chunks = self._read_by_library(stream, tap)
        elif reader is not None:
            chunks = _read_stream(reader, tap)
        else:
            return
        async for chunk in chunks:
            yield chunk

    def _response_reader(self) -> ResponseReader | None:
        """Return a reader for the response; None if the library reads it."""
        if self.format is None or not self.reads_stream:
            return None
        reader = stream_reader(self.format)
        return reader if isinstance(reader, ResponseReader) else None

    async def _open_stream(
        self, request: Request, output: OutputRequest, tap: StreamTap, stack: AsyncExitStack
    ) -> StreamedResponse | None:
        """Send the request; return the stream of the library, None if the tap diverted it."""
        messages, settings, conversation = await self._library_request(request)
        with tap.attached():
            if self.templates is not None and tap.diverts:
                await self.templates.repeat(request, conversation, tap)
            if tap.stream is not None:
                return None
            context = self.model.request_stream(messages, settings, output.parameters)
            try:
                stream = await stack.enter_async_context(context)
            except UnexpectedModelBehavior:
                if tap.stream is None:
                    raise
                stream = None  # the library only reports that the diverted stream was empty
        if self.templates is not None and tap.request is not None:
            self.templates.remember(request, conversation, tap.request)
        return stream if tap.stream is None else None

    async def _read_by_library(
        self, stream: StreamedResponse, tap: StreamTap
    ) -> AsyncIterator[Chunk | ReceivedResponse]:
        call_ids: dict[int, str] = {}
        async for event in stream:
            chunk = read_event(event, call_ids)
            if chunk is not None:
                yield chunk
        response = stream.get()
        native, is_complete = None, True
        if self.format is None:
            native = dump_response(response)
        elif tap.chunks:
            native, is_complete = read_native(stream_reader(self.format), tap.events())
        yield replace(received_response(response), native=native, is_complete=is_complete)

    async def _library_request(
        self, request: Request
    ) -> tuple[list[ModelMessage], ModelSettings, Mapping[str, Any]]:
        """Return the messages and settings for the library, and the conversation in its body."""
        files = await _read_files(request)
        settings = library_settings(request.settings, self.provider, self.model.settings or {})
        if self.format is None:
            origin = (self.provider.log_name, self.model_name)
            messages = library_messages(request.messages, origin, files, request.instructions)
            return messages, ModelSettings(**settings), {}  # type: ignore[typeddict-item]
        history = request._canonical or IncrementalCanonical()  # noqa: SLF001 - same package
        thinking = self.format == "anthropic" and is_thinking_enabled(settings)
        target = Target(self.provider.log_name, self.model_name, _encode_files(files), thinking)
        body = render_canonical(history.canonical(list(request.messages)), self.format, target)
        if self.format == "openai-chat":
            body["messages"] = self._chat_messages(request.instructions, body["messages"])
        settings["extra_body"] = {**settings.get("extra_body", {}), **body}
        return list(_PLACEHOLDER), ModelSettings(**settings), body  # type: ignore[typeddict-item]

    def _chat_messages(
        self, instructions: str, messages: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        profile: Mapping[str, Any] = self.model.profile
        role = profile.get("openai_system_prompt_role") or "system"
        first = [{"role": role, "content": instructions}] if instructions else []
        if profile.get("openai_chat_send_back_thinking_parts", "auto") in (False, "tags"):
            messages = [_without_thinking(message) for message in messages]
        return first + messages

    def _answer(self, response: ReceivedResponse, request: OutputRequest) -> Answer:
        calls = tuple(call for call in response.calls if call.tool != OUTPUT_TOOL)
        output_call = next((call for call in response.calls if call.tool == OUTPUT_TOOL), None)
        output = None
        if output_call is not None and not calls and isinstance(output_call.params, dict):
            output = request.encode_output(output_call.params)
        elif request.wrapped and not calls:
            output = request.parse_output(response.text)
        return Answer(
            text=response.text,
            calls=calls,
            thinking=response.thinking,
            output=output,
            usage=response.usage,
            stop_reason=response.stop,
            provider=self.provider.log_name,
            model=self.model_name,
            native=response.native,
            response_id=response.id,
        )


async def _read_stream(
    reader: ResponseReader, tap: StreamTap
) -> AsyncIterator[Chunk | ReceivedResponse]:
    async for data in tap.diverted_events():
        chunk = reader.read(data)
        if chunk is not None:
            yield chunk
    yield reader.response()


def _retry_command(request: Request) -> str:
    """Return the command that repeats a request once its cause of failure is removed."""
    verb = "resume" if request.purpose == "turn" else "compact"
    return f"perdure sessions {verb} {request.session_id}"


def _without_thinking(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if not key.startswith("reasoning")}
