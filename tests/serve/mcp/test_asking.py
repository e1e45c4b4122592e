"""Calls that ask the person at the client what a background agent waits for, in both eras."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import ElicitRequestParams, ElicitResult, InputRequiredResult
from tests.support.mcp_client import MODERN, application, connected, error_code, fields

from perdure import Agent, Approval, Principal, Runtime, tool
from perdure.app import service_of
from perdure.core.conversation.messages import AssistantMessage, ToolMessage
from perdure.core.log import events
from perdure.runtime.records.entries import SessionRef
from perdure.serve.mcp.toolbox import McpOptions
from perdure.store.memory import MemoryStore
from perdure.testing import ScriptedModel

WAIT_S = 60
LONG = 600.0  # a call that blocks this long fails the test
ALLOWED = McpOptions(block_s=LONG, approve=True)
NOT_ALLOWED = McpOptions(block_s=LONG)
ANA, ZOE = Principal("ana", "operator"), Principal("zoe", "approver")
ERAS = pytest.mark.parametrize("era", [MODERN, "legacy"])


@tool(requires_approval=True, redact=["card"])
def pay(cents: int, card: str, note: str | None = None) -> str:
    """Pay."""
    return f"paid {cents}{f' for {note}' if note else ''} with {card}"


@tool(requires_approval=Approval(by=["zoe"]))
def ship() -> str:
    """Ship."""
    return "shipped"


@tool(requires_approval=Approval(not_by_starter=True))
def hire() -> str:
    """Hire."""
    return "hired"


@tool(requires_approval=Approval(votes=2), approval_prompt="Launch it?")
def launch(rocket: str) -> str:
    """Launch."""
    return f"launched {rocket}"


@tool(deferred=True)
def collect() -> None:
    """Collect."""


class CallingModel:
    """Model that answers each message with a call, and its result with `ended: …`."""

    name = "calling:model"

    def __init__(self, tool_name: str, args: dict[str, Any]) -> None:
        self._calls = [{"tool": tool_name, "args": args}]

    async def answer(self, request: Any) -> AsyncIterator[Any]:
        """Yield one response."""
        last = request.messages[-1]
        is_result = isinstance(last, ToolMessage)
        turn = {"text": f"ended: {last.content}"} if is_result else {"calls": self._calls}
        before = sum(isinstance(message, AssistantMessage) for message in request.messages)
        async for item in ScriptedModel([{"text": ""}] * before + [turn]).answer(request):
            yield item


def calling(name: str, *tools: Any, **args: Any) -> Agent[Any]:
    """Return an agent that calls the tool of its name."""
    return Agent(name, model=CallingModel(name, args), tools=[*tools])


@pytest.fixture
async def rt() -> AsyncIterator[Runtime]:
    """Open runtime whose agents wait for people."""
    agents = [
        calling("pay", pay, cents=5, card="4111-secret"),
        calling("ship", ship),
        calling("hire", hire),
        calling("launch", launch, rocket="r7"),
        replace(
            calling("background_task", agent="ship", prompt="go"), sub_agents=["ship"], name="chief"
        ),
        calling("ask_user", "ask_user", question="Which color?"),
        calling("collect", collect),
        replace(
            calling("background_task", agent="ask_user", prompt="go"),
            sub_agents=["ask_user"],
            name="asker",
        ),
    ]
    async with Runtime(MemoryStore(), agents=agents, worker=True) as opened:
        yield opened


async def ended(rt: Runtime, session_id: str) -> None:
    """Return when a session has ended."""
    with anyio.fail_after(WAIT_S):
        async for _ in rt.stream(session=session_id, types=["agent_complete"], after=0):
            return


class Person:
    """The person at a client: fills in forms, as the script says."""

    def __init__(self, *answers: Any) -> None:
        self.forms: list[Any] = []
        self._answers = list(answers)

    async def __call__(self, _: Any, params: ElicitRequestParams) -> ElicitResult:
        """Return the next answer: an action, the content of the form, or what a function does."""
        self.forms.append(params)
        answer = self._answers.pop(0)
        if callable(answer):
            answer = await answer()
        if isinstance(answer, str):
            return ElicitResult(action=answer)  # type: ignore[arg-type]
        return ElicitResult(action="accept", content=answer)


async def started(client: Client, agent: str) -> dict[str, Any]:
    """Launch an agent; return the arguments that name its task."""
    value = fields(await client.call_tool("background_task", {"agent": agent, "prompt": "go"}))
    return {"task_id": value["task_id"]}


async def waiting_call(rt: Runtime) -> Any:
    """Return the only call that waits for a person, as soon as there is one."""
    with anyio.fail_after(WAIT_S):
        async for _ in rt.stream(types=["pending"], after=0):
            async for call in rt.pending():
                return call
    raise AssertionError


async def output(client: Client, task: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Wait for a background agent."""
    with anyio.fail_after(WAIT_S):
        arguments = {**task, "block": True, **more}
        return fields(await client.call_tool("background_output", arguments))


def asking(rt: Runtime, person: Any, era: str, **options: Any) -> Client:
    """Return a client that shows forms to a person."""
    options = {"principal": ANA, "options": ALLOWED, **options}
    server = application(rt, **options).server
    return Client(server, mode=era, elicitation_callback=person)


# --- asked --------------------------------------------------------------------------------------


@ERAS
async def test_a_person_approves_in_a_form_of_the_call_that_waits(rt: Runtime, era: str) -> None:
    """SX.7"""
    person = Person({"decision": "approve"})
    async with asking(rt, person, era) as client:
        value = await output(client, await started(client, "pay"))
    assert (value["status"], value["output"]) == ("completed", "ended: paid 5 with 4111-secret")
    (form,) = person.forms
    assert "4111" not in str(form)
    fields_ = form.requested_schema["properties"]
    assert fields_["decision"]["enum"] == ["approve", "edit", "deny"]
    assert fields_["args.cents"] == {"type": "integer", "title": "cents", "default": 5}
    assert "args.card" not in fields_
    (decision,) = value["decisions"]
    assert (decision["decision"], decision["recorded"]) == ("approve", True)
    call = await service_of(rt).calls.get(decision["pendingID"])
    assert call.decision is not None
    assert (call.decision.by, call.decision.via) == ("ana", "mcp:ana")


@ERAS
async def test_a_person_changes_arguments_in_the_form(rt: Runtime, era: str) -> None:
    person = Person({"decision": "edit", "args.cents": 4, "args.note": "tea"})
    async with asking(rt, person, era) as client:
        value = await output(client, await started(client, "pay"))
    assert value["output"].endswith("paid 4 for tea with 4111-secret")


@ERAS
async def test_approving_runs_the_call_as_it_is_whatever_the_other_fields_say(
    rt: Runtime, era: str
) -> None:
    person = Person({"decision": "approve", "args.cents": 4_000, "args.note": ""})
    async with asking(rt, person, era) as client:
        value = await output(client, await started(client, "pay"))
    assert value["output"].endswith("paid 5 with 4111-secret")


@ERAS
async def test_a_person_denies_with_a_reason(rt: Runtime, era: str) -> None:
    person = Person({"decision": "deny", "reason": "too much"})
    async with asking(rt, person, era) as client:
        value = await output(client, await started(client, "pay"))
    assert "too much" in value["output"]


@ERAS
@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("agent", ["pay", "ask_user"])
async def test_a_form_that_is_declined_or_cancelled_decides_nothing(
    rt: Runtime, era: str, action: str, agent: str
) -> None:
    person = Person(action, {"decision": "approve"} if agent == "pay" else {"answer": "blue"})
    async with asking(rt, person, era) as client:
        task = await started(client, agent)
        value = await output(client, task)
        assert (value["status"], len(person.forms)) == ("running", 1)
        assert value["waitingFor"][0]["tool"] == agent
        assert "working" not in value["message"]
        value = await output(client, task)  # it asks again
    assert value["status"] == "completed"


@ERAS
async def test_a_person_answers_a_question(rt: Runtime, era: str) -> None:
    person = Person({"answer": "blue"})
    async with asking(rt, person, era, options=NOT_ALLOWED) as client:
        assert (await output(client, await started(client, "ask_user")))["output"] == "ended: blue"
    assert person.forms[0].message == "Which color?"


@ERAS
async def test_a_call_that_asks_sends_its_follow_up_once(rt: Runtime, era: str) -> None:
    """S1.14, S1.15"""
    person = Person({"answer": "red"}, {"answer": "green"})
    async with asking(rt, person, era) as client:
        task = await started(client, "ask_user")
        await output(client, task)
        arguments = {**task, "message": "Again", "block": True}
        value = fields(await client.call_tool("background_resume", arguments))
    assert (value["output"], value["resumeCount"]) == ("ended: green", 1)


@ERAS
async def test_the_answer_to_a_follow_up_that_asks_is_for_its_caller_alone(
    rt: Runtime, era: str
) -> None:
    """S1.20, S1.22"""
    person = Person({"answer": "red"}, {"answer": "green"})
    async with asking(rt, person, era) as client:
        parent = (await started(client, "asker"))["task_id"].replace("bg_", "s_")
        asked = await waiting_call(rt)
        task = {"task_id": asked.session_id.replace("s_", "bg_")}
        await output(client, task)
        arguments = {**task, "message": "Again", "block": True}
        value = fields(await client.call_tool("background_resume", arguments))
    assert value["output"] == "ended: green"
    log = await service_of(rt).log(await service_of(rt).get(SessionRef("", parent)))
    taken = [item.event for item in log.events if isinstance(item.event, events.MailTaken)]
    assert [event.by for event in taken] == ["ana"]


@ERAS
async def test_a_form_that_is_not_filled_in_correctly_is_a_failure_and_decides_nothing(
    rt: Runtime, era: str
) -> None:
    person = Person({"decision": "shrug"}, {"decision": "edit", "args.cents": "many"})
    async with asking(rt, person, era) as client:
        task = await started(client, "pay")
        for code in ("INPUT_INVALID", "ARGS_INVALID"):
            arguments = {**task, "block": True}
            assert error_code(await client.call_tool("background_output", arguments)) == code
        assert (await waiting_call(rt)).status == "waiting"


async def test_a_form_is_withdrawn_when_somebody_else_decides_first(rt: Runtime) -> None:
    withdrawn = anyio.Event()

    async def decide_elsewhere() -> Any:
        await rt.approve((await waiting_call(rt)).id, by="zoe")
        try:
            await anyio.sleep_forever()
        finally:
            withdrawn.set()

    person = Person(decide_elsewhere)
    async with asking(rt, person, "legacy") as client:
        value = await output(client, await started(client, "pay"))
        with anyio.fail_after(WAIT_S):
            await withdrawn.wait()
    assert value["status"] == "completed"
    assert "decisions" not in value


async def test_a_form_is_open_for_the_timeout_that_the_caller_has_given(rt: Runtime) -> None:
    """S1.5, S1.19"""
    person = Person(anyio.sleep_forever)
    async with asking(rt, person, "legacy") as client:
        value = await output(client, await started(client, "pay"), timeout=300)
    assert (value["status"], len(value["waitingFor"])) == ("running", 1)


# --- once ---------------------------------------------------------------------------------------


async def asked(client: Client, task: dict[str, Any], **more: Any) -> Any:
    """Call `background_output` without filling in forms by itself."""
    with anyio.fail_after(WAIT_S):
        return await client.session.call_tool(
            "background_output", {**task, "block": True}, allow_input_required=True, **more
        )


async def test_a_repeated_or_contradictory_answer_changes_nothing_and_names_the_winner(
    rt: Runtime,
) -> None:
    """G4"""
    async with asking(rt, Person(), MODERN) as client:
        task = await started(client, "pay")
        first = await asked(client, task)
        assert isinstance(first, InputRequiredResult)
        (key,) = first.input_requests or {}
        state = first.request_state

        def answered(decision: str) -> dict[str, Any]:
            content = {"decision": decision}
            response = ElicitResult(action="accept", content=content)  # type: ignore[arg-type]
            return {"input_responses": {key: response}, "request_state": state}

        done = fields(await asked(client, task, **answered("approve")))
        again = fields(await asked(client, task, **answered("approve")))
        other = fields(await asked(client, task, **answered("deny")))
    assert done["output"] == again["output"] == other["output"]
    assert again["decisions"][0]["recorded"] is True  # the same decision, recorded once
    (row,) = other["decisions"]
    assert (row["recorded"], row["winner"]["kind"], row["winner"]["by"]) == (
        False,
        "approve",
        "ana",
    )


async def test_the_state_of_a_call_is_bound_to_it(rt: Runtime) -> None:
    async with asking(rt, Person(), MODERN) as client:
        task, other = await started(client, "pay"), await started(client, "ship")
        first = await asked(client, task)
        answer = ElicitResult(action="accept", content={"decision": "approve"})
        responses = dict.fromkeys(first.input_requests, answer)
        more = {"input_responses": responses, "request_state": first.request_state}
        with pytest.raises(MCPError, match="requestState"):
            await asked(client, other, **more)
    async with asking(rt, Person(), MODERN, principal=Principal("eve", "admin")) as client:
        with pytest.raises(MCPError, match="requestState"):
            await asked(client, task, **more)
        with pytest.raises(MCPError, match="requestState"):
            await asked(client, task, request_state="call_x")
    assert len([call async for call in rt.pending()]) == 2


async def test_a_response_about_a_call_of_other_work_is_left_alone(rt: Runtime) -> None:
    async with asking(rt, Person(), MODERN) as client:
        task = await started(client, "pay")
        await asked(client, task)
        foreign = await asked(client, await started(client, "launch"))
        answer = ElicitResult(action="accept", content={"decision": "approve"})
        responses = dict.fromkeys(foreign.input_requests, answer)
        result = await asked(client, task, input_responses=responses)
        assert isinstance(result, InputRequiredResult)  # it still asks for its own
    assert len([call async for call in rt.pending()]) == 2


# --- not asked ----------------------------------------------------------------------------------


@ERAS
@pytest.mark.parametrize(
    "agent, principal, options",
    [
        ("pay", ANA, NOT_ALLOWED),
        ("ship", ANA, ALLOWED),  # its approver is zoe
        ("hire", ANA, ALLOWED),  # not by the starter
    ],
)
async def test_who_would_be_refused_is_not_asked_and_learns_who_decides(
    rt: Runtime, era: str, agent: str, principal: Principal, options: McpOptions
) -> None:
    """S1.3, SX.7"""
    person = Person()
    async with asking(rt, person, era, principal=principal, options=options) as client:
        task = await started(client, agent)
        value = await output(client, task)
        pending_id = (await waiting_call(rt)).id
        listed = fields(await client.call_tool("background_list", {}))
    assert person.forms == []
    assert (value["status"], value["success"]) == ("running", True)
    (row,) = value["waitingFor"]
    assert row["pendingID"] == pending_id
    assert row["approvers"] == (["zoe"] if agent == "ship" else [])
    assert f"perdure approve {pending_id}" in value["message"]
    assert f"waits for {'zoe' if agent == 'ship' else 'an approver'}" in value["message"]
    assert "working" not in value["message"]
    assert listed["tasks"][0]["waitingFor"] == value["waitingFor"]
    assert "4111" not in str(value) + str(listed)


@ERAS
async def test_an_agent_that_has_ended_says_whom_its_background_agents_wait_for(
    rt: Runtime, era: str
) -> None:
    """S1.3, SX.7"""
    async with asking(rt, Person(), era) as client:
        task = await started(client, "chief")
        pending_id = (await waiting_call(rt)).id
        value = await output(client, task)
        listed = fields(await client.call_tool("background_list", {}))
    assert value["status"] == "completed"
    assert [row["pendingID"] for row in value["waitingFor"]] == [pending_id]
    assert "One of them waits for zoe: approve ship" in value["message"]
    assert f"perdure approve {pending_id}" in value["message"]
    assert listed["tasks"][0]["waitingFor"] == value["waitingFor"]


@ERAS
async def test_a_person_is_asked_what_a_background_agent_of_an_ended_agent_waits_for(
    rt: Runtime, era: str
) -> None:
    """SX.7"""
    person = Person("decline", {"answer": "red"})
    async with asking(rt, person, era) as client:
        task = await started(client, "asker")
        asked = await waiting_call(rt)
        await ended(rt, task["task_id"].replace("bg_", "s_"))
        declined = await output(client, task)
        assert (declined["status"], len(declined["waitingFor"])) == ("completed", 1)
        value = await output(client, task)
    assert (value["status"], len(person.forms)) == ("completed", 2)
    assert [row["pendingID"] for row in value["decisions"]] == [asked.id]


@ERAS
async def test_an_agent_that_waits_for_a_submitter_says_so_and_asks_nobody(
    rt: Runtime, era: str
) -> None:
    """S1.3, SX.7"""
    async with asking(rt, Person(), era) as client:
        task = await started(client, "collect")
        pending_id = (await waiting_call(rt)).id
        value = fields(await client.call_tool("background_output", task))
        waited = await output(client, task, timeout=100)
    assert (value["status"], "waitingFor" in value) == ("running", False)
    assert "It waits for a submitter: the result of collect." in value["message"]
    assert f"perdure pending result {pending_id}" in value["message"]
    assert "working" not in value["message"]
    assert waited["message"] == value["message"]


@ERAS
async def test_an_approver_is_asked_about_a_task_of_somebody_else(rt: Runtime, era: str) -> None:
    async with asking(rt, Person(), era, options=NOT_ALLOWED) as client:
        task = await started(client, "hire")
    person = Person({"decision": "approve"})
    async with asking(rt, person, era, principal=ZOE) as client:
        assert (await output(client, task))["output"] == "ended: hired"


@ERAS
async def test_nobody_is_asked_twice_for_an_approval_that_several_must_give(
    rt: Runtime, era: str
) -> None:
    first, second = Person({"decision": "approve"}), Person({"decision": "approve"})
    async with asking(rt, first, era) as client:
        task = await started(client, "launch")
        value = await output(client, task)
        assert (value["status"], value["waitingFor"][0]["missingApprovals"]) == ("running", 1)
        assert (await output(client, task))["status"] == "running"
    assert len(first.forms) == 1
    assert first.forms[0].message == 'Launch it?\nlaunch: {"rocket": "r7"}'
    async with asking(rt, second, era, principal=ZOE) as client:
        assert (await output(client, task))["output"] == "ended: launched r7"


@ERAS
async def test_the_second_approver_sees_and_approves_what_the_first_one_changed(
    rt: Runtime, era: str
) -> None:
    """G4, SX.7"""
    edit = Person({"decision": "edit", "args.rocket": "r9"})
    async with asking(rt, edit, era) as client:
        task = await started(client, "launch")
        await output(client, task)
    second = Person({"decision": "approve"}, {"decision": "approve_changed"})
    async with asking(rt, second, era, principal=ZOE) as client:
        value = await output(client, task)  # what the form did not offer is not asked for ever
        assert (value["status"], value["decisions"][0]["recorded"]) == ("running", False)
        assert (await output(client, task))["output"].endswith("launched r9")
    assert len(second.forms) == 2
    for form in second.forms:
        assert form.message.endswith('Approved by ana with {"rocket": "r9"}.')
        decision = form.requested_schema["properties"]["decision"]
        assert decision["enum"] == ["approve_changed", "deny"]
        assert "ana changed" in decision["description"]


@ERAS
async def test_a_viewer_is_not_asked(rt: Runtime, era: str) -> None:
    async with asking(rt, Person(), era) as client:
        task = await started(client, "ask_user")
    async with asking(rt, Person(), era, principal=Principal("vic", "viewer")) as client:
        assert len((await output(client, task))["waitingFor"]) == 1


@ERAS
async def test_a_client_without_forms_learns_at_once_who_decides(rt: Runtime, era: str) -> None:
    """S1.3"""
    async with connected(rt, mode=era, principal=ANA, options=ALLOWED) as client:
        task = await started(client, "ask_user")
        value = await output(client, task)
        assert (value["status"], value["waitingFor"][0]["kind"]) == ("running", "question")
        pending_id = value["waitingFor"][0]["pendingID"]
        assert f"perdure pending respond {pending_id}" in value["message"]
        read = fields(await client.call_tool("background_output", task))
    assert read == value


@ERAS
async def test_a_call_with_a_timeout_waits_for_people_that_its_client_cannot_ask(
    rt: Runtime, era: str
) -> None:
    """S1.18, S1.19"""
    async with connected(rt, mode=era, principal=ANA, options=ALLOWED) as client:
        task = await started(client, "pay")
        value = await output(client, task, timeout=200)
        assert (value["status"], len(value["waitingFor"])) == ("running", 1)
        async with anyio.create_task_group() as calls:
            calls.start_soon(_approve_after, rt, client)
            value = await output(client, task, timeout=60_000)
    assert value["output"] == "ended: paid 5 with 4111-secret"


async def _approve_after(rt: Runtime, client: Client) -> None:
    """Approve once the server has certainly begun to serve the call before this one."""
    await client.call_tool("list_pending", {})
    await rt.approve((await waiting_call(rt)).id, by="zoe")
