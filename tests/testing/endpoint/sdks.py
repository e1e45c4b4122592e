"""Conversations with the endpoint through the providers' SDKs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai

from perdure.testing.endpoint.samples import LOOK_SCHEMA
from perdure.testing.provider_rules import Format

Body = dict[str, Any]
FORMATS: tuple[Format, ...] = ("anthropic", "openai-chat", "openai-responses")
MODEL = "model-1"
TOOL = {"name": "look", "description": "Looks.", "input_schema": LOOK_SCHEMA}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": LOOK_SCHEMA}


class Talk:
    """Conversation through an SDK; `body` is the next request."""

    def __init__(self, format: Format, client: Any, streamed: bool, model: str = MODEL) -> None:  # noqa: A002
        self.format = format
        self.client = client
        self.streamed = streamed
        self.history: list[Body] = [{"role": "user", "content": "Look, please."}]
        self.model = model
        self.said: list[Any] = []  # responses turn by turn, as JSON

    @property
    def body(self) -> Body:
        if self.format == "anthropic":
            thinking = {"type": "enabled", "budget_tokens": 1024}
            more = {"max_tokens": 4096, "thinking": thinking, "tools": [TOOL]}
            return {"model": self.model, "messages": self.history, **more}
        if self.format == "openai-chat":
            tools: list[Body] = [{"type": "function", "function": FUNCTION}]
            return {"model": self.model, "messages": self.history, "tools": tools}
        tools = [{"type": "function", "strict": False, **FUNCTION}]
        include = ["reasoning.encrypted_content"]
        asked = {"model": self.model, "input": self.history, "tools": tools}
        return {**asked, "store": False, "include": include}

    def ask(self) -> Any:
        """Request one turn; return the SDK's object."""
        if self.format == "anthropic":
            return self._anthropic()
        return self._chat() if self.format == "openai-chat" else self._responses()

    def _anthropic(self) -> Any:
        if not self.streamed:
            return self.client.messages.create(**self.body)
        with self.client.messages.stream(**self.body) as stream:
            return stream.get_final_message()

    def _chat(self) -> Any:
        if not self.streamed:
            return self.client.chat.completions.create(**self.body)
        counted = {"include_usage": True}
        with self.client.chat.completions.stream(**self.body, stream_options=counted) as stream:
            return stream.get_final_completion()

    def _responses(self) -> Any:
        if not self.streamed:
            return self.client.responses.create(**self.body)
        with self.client.responses.stream(**self.body) as stream:
            return stream.get_final_response()

    def take(self, came: Any) -> list[tuple[str, Any]]:
        """Add a response to the history; return its calls as ids and arguments."""
        told = json.loads(came.to_json())
        if self.format == "anthropic":
            self.said.append(told["content"])
            self.history.append({"role": "assistant", "content": told["content"]})
            return [(b["id"], b["input"]) for b in told["content"] if b["type"] == "tool_use"]
        if self.format == "openai-chat":
            message = told["choices"][0]["message"]
            self.said.append(message)
            self.history.append(message)
            calls = message.get("tool_calls") or []
            return [(c["id"], json.loads(c["function"]["arguments"])) for c in calls]
        self.said.append(told["output"])
        self.history += told["output"]
        calls = [item for item in told["output"] if item["type"] == "function_call"]
        return [(c["call_id"], json.loads(c["arguments"])) for c in calls]

    def tell(self, *call_ids: str) -> None:
        """Add the results of calls."""
        if self.format == "anthropic":
            told = [
                {"type": "tool_result", "tool_use_id": one, "content": "ok"} for one in call_ids
            ]
            self.history.append({"role": "user", "content": told})
        elif self.format == "openai-chat":
            told = [{"role": "tool", "tool_call_id": one, "content": "ok"} for one in call_ids]
            self.history += told
        else:
            kind = "function_call_output"
            self.history += [{"type": kind, "call_id": one, "output": "ok"} for one in call_ids]

    def turn(self) -> list[tuple[str, Any]]:
        """Request one turn and add the results of its calls."""
        calls = self.take(self.ask())
        if calls:
            self.tell(*(call_id for call_id, _ in calls))
        return calls


@contextmanager
def talking(url: str, format: Format, *, streamed: bool = False) -> Iterator[Talk]:  # noqa: A002
    make: Any = anthropic.Anthropic if format == "anthropic" else openai.OpenAI
    with make(base_url=url, api_key="key-of-a-test", max_retries=0) as client:
        yield Talk(format, client, streamed)
