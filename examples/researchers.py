"""A lead that delegates to three researchers, and reads what each of them found."""

from perdure import Agent, Runtime
from perdure.testing import ScriptedModel

QUESTIONS = ("Why are there tides?", "Who measured them first?", "Where are they highest?")
LAUNCHES = [
    {"tool": "background_task", "args": {"agent": "researcher", "prompt": question}}
    for question in QUESTIONS
]
ASKED = {"text": "I have asked three researchers."}
READ = {"text": "I have read what they found."}  # their answers arrive together, or one by one
researcher = Agent(
    "researcher",
    model=ScriptedModel([{"text": "Here is what I found."}, {"text": "And here is more."}]),
    instructions="You answer one question, with sources.",
    description="Answers one question, with sources.",
)
lead = Agent(
    "lead",
    model=ScriptedModel([{"calls": LAUNCHES}, ASKED, READ, READ, READ]),
    instructions="You write reports. Let researchers find the facts.",
    sub_agents=[researcher],  # gives the lead six tools, for these agents only
)
rt = Runtime("sqlite:///perdure.db", agents=[lead])


async def main(rt: Runtime) -> None:
    """Run the lead until it has read all three answers, and send one researcher a follow-up."""
    result = await rt.session("report", agent=lead).run("Write about tides", key="start")
    print(result.state, [task.status async for task in rt.background_tasks(parent="report")])
    async for task in rt.background_tasks(parent="report"):
        follow_up = await task.resume("Tell me more.", block=True)
        print(task.id, follow_up.output)
        break


if __name__ == "__main__":
    rt.run_sync(main)
