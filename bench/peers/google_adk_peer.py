"""Google ADK: a long-running tool in a resumable App on its SqliteSessionService."""

import logging
import uuid
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.peers import common
from bench.peers.common import Story
from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.genai import types

APP, USER = "bench", "user"

warnings.filterwarnings("ignore")  # ADK warns about its own experimental features
logging.disable(logging.CRITICAL)


class FakeAdkModel(BaseLlm):  # type: ignore[misc]
    """Model that responds immediately."""

    story: Any = None

    async def generate_content_async(self, request: Any, stream: bool = False) -> Any:
        """Play the story's move for this turn."""
        parts = [part for content in request.contents for part in content.parts or ()]
        turn = sum(part.function_response is not None for part in parts)
        move = self.story.next_move(turn)
        if move in ("deploy", "charge"):
            call = types.FunctionCall(id=uuid.uuid4().hex, name=move, args=common.ARGS)
            part = types.Part(function_call=call)
        else:
            part = types.Part(text=common.ANSWER)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class GoogleAdk:
    """Runner on a session service."""

    def __init__(self, path: Path, story: Story) -> None:
        self._path = path
        self._service = SqliteSessionService(str(path))
        self._waiting: dict[str, str] = {}

        def deploy(branch: str, region: str, size: str, ttl: str) -> None:
            """Deploy; the result is submitted later."""

        async def charge(branch: str, region: str, size: str, ttl: str) -> dict[str, str]:
            """Have an effect that must not be repeated."""
            story.reach("charged")
            return {"result": "charged"}

        agent = LlmAgent(
            name=APP,
            model=FakeAdkModel(model="fake", story=story),
            tools=[LongRunningFunctionTool(deploy), FunctionTool(charge)],
        )
        app = App(
            name=APP, root_agent=agent, resumability_config=ResumabilityConfig(is_resumable=True)
        )
        self._runner = Runner(app=app, session_service=self._service)

    async def _run(self, session: str, **options: Any) -> list[str]:
        texts: list[str] = []
        async for event in self._runner.run_async(user_id=USER, session_id=session, **options):
            parts = event.content.parts if event.content else None
            texts += [part.text for part in parts or () if part.text]
            if event.long_running_tool_ids:
                self._waiting[session] = next(iter(event.long_running_tool_ids))
        return texts

    async def durability(self) -> str:
        """Return the settings of a connection opened the way the service opens its own."""
        async with self._service._get_db_connection() as db:  # noqa: SLF001 - to read its pragmas
            async with db.execute("PRAGMA journal_mode") as cursor:
                (mode,) = await cursor.fetchone()
            async with db.execute("PRAGMA synchronous") as cursor:
                (level,) = await cursor.fetchone()
        return common.format_durability(mode, level)

    async def start(self, session: str) -> None:
        """Run until the long-running call is pending."""
        await self._service.create_session(app_name=APP, user_id=USER, session_id=session)
        message = types.Content(role="user", parts=[types.Part(text=common.MESSAGE)])
        await self._run(session, new_message=message)
        assert session in self._waiting

    async def resume(self, session: str) -> None:
        """Continue the run with the response of the call."""
        response = types.FunctionResponse(
            id=self._waiting.pop(session), name="deploy", response={"result": common.RESULT}
        )
        content = types.Content(role="user", parts=[types.Part(function_response=response)])
        texts = await self._run(session, new_message=content)
        assert texts == [common.ANSWER], texts

    async def recover(self, session: str) -> str:
        """Resume the last invocation unless the session waits."""
        adk_session = await self._service.get_session(
            app_name=APP, user_id=USER, session_id=session
        )
        if adk_session is None:
            return "nothing"
        if not self._is_waiting(adk_session):
            await self._run(session, invocation_id=adk_session.events[-1].invocation_id)
            adk_session = await self._service.get_session(
                app_name=APP, user_id=USER, session_id=session
            )
        return "waiting" if self._is_waiting(adk_session) else "done"

    def _is_waiting(self, adk_session: Any) -> bool:
        answered = {
            response.id
            for event in adk_session.events
            for response in event.get_function_responses()
        }
        for event in adk_session.events:
            for call in event.long_running_tool_ids or ():
                if call not in answered:
                    self._waiting[adk_session.id] = call
                    return True
        return False

    async def talk(self, session: str) -> None:
        """Not measured."""
        raise NotImplementedError(session)


@asynccontextmanager
async def open_peer(folder: Path, story: Story, variant: str) -> AsyncIterator[GoogleAdk]:
    """Open a service on a file in the folder; there are no variants."""
    assert not variant
    yield GoogleAdk(folder / "adk.db", story)


if __name__ == "__main__":
    common.main(open_peer)
