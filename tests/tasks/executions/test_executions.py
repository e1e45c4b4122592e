"""Commands in tasks through the Python API: results, output, stops, and refusals."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.executions import open_folder, task_options
from tests.support.sandboxes import require_bwrap

from perdure import Conflict, NotFound, Refused, Runtime
from perdure.app import service_of
from perdure.errors import ConfigError, PerdureError, SandboxUnavailable
from perdure.options import TaskOptions
from perdure.tasks import MultiLayerPersistence, TaskLifecycle
from perdure.tasks.model.executions import ExecutionRecord
from perdure.tasks.values import TaskRef

__all__ = ["open_folder"]


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, open_folder: Path) -> Any:
    if request.param == "sqlite":
        return f"sqlite:///{open_folder}/h.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
async def rt(store_url: Any, open_folder: Path) -> AsyncIterator[Runtime]:
    async with Runtime(store_url, tasks=task_options(open_folder)) as opened:
        yield opened


@pytest.fixture
async def work(rt: Runtime) -> TaskLifecycle:
    return await running_task(rt)


async def running_task(rt: Runtime) -> TaskLifecycle:
    lifecycle = TaskLifecycle(rt)
    await lifecycle.create_task({"name": "Work", "id": "a"})
    await lifecycle.attach_agent("a", "agent")
    return lifecycle


@pytest.fixture
async def memory_work(open_folder: Path) -> AsyncIterator[TaskLifecycle]:
    """A running task on a store without a disk, where the store does not matter."""
    async with Runtime("memory:", tasks=task_options(open_folder)) as opened:
        yield await running_task(opened)


async def log_messages(rt: Runtime) -> list[str]:
    return [entry.message for entry in await MultiLayerPersistence(rt).load_logs("a")]


async def test_a_command_returns_the_fields_of_the_seed_and_is_recorded(
    rt: Runtime, work: TaskLifecycle, open_folder: Path
) -> None:
    """S3.6, S3.7"""
    result = await work.execute("a", "echo out; echo err >&2; echo kept > file; exit 3")
    assert (result.success, result.task_id, result.exit_code) == (False, "a", 3)
    assert (result.stdout, result.stderr, result.truncated) == ("out\n", "err\n", False)
    assert (result.reason, result.signal, result.sandbox) == ("exited", None, "none")
    assert result.duration >= 0
    assert (open_folder / "tasks/a/workspace/file").read_text() == "kept\n"
    assert (await work.execute("a", "cat file")).stdout == "kept\n"
    assert (await log_messages(rt))[-2:] == ["Command started", "Command finished"]
    stored = await work.execution("a", result.execution_id).result()
    assert stored == result


@pytest.mark.parametrize(
    "command, limit, expected",
    [
        ("kill -SEGV $$", 30, (139, 11, "exited", False)),
        ("echo before; sleep 60", 0.3, (124, None, "timeout", False)),
        ("true", 30, (0, None, "exited", True)),
    ],
)
async def test_signals_timeouts_and_exits_are_told_apart(
    memory_work: TaskLifecycle, command: str, limit: float, expected: tuple[Any, ...]
) -> None:
    """S3.7, S3.8"""
    result = await memory_work.execute("a", command, limit)
    shown = result.signal if result.reason == "exited" else None
    assert (result.exit_code, shown, result.reason, result.success) == expected
    if result.reason == "timeout":
        assert result.stdout == "before\n"


async def test_invalid_bytes_are_visible_and_long_output_keeps_its_ends(
    memory_work: TaskLifecycle,
) -> None:
    result = await memory_work.execute("a", r"printf '\377ok\342\202\254'")
    assert result.stdout == "\\xffok€"
    result = await memory_work.execute(
        "a", "echo first; yes 0123456789 | head -c 3000000; echo last"
    )
    assert result.truncated
    assert result.stdout.startswith("first\n")
    assert result.stdout.endswith("last\n")
    assert "bytes left out" in result.stdout
    assert len(result.stdout) < 300_000
    assert result.stdout_bytes == 3_000_000 + len("first\nlast\n")


async def test_a_follower_sees_output_while_the_command_runs(memory_work: TaskLifecycle) -> None:
    execution = await memory_work.start_command(
        "a", "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two"
    )
    texts: list[str] = []
    async with asyncio.timeout(30):
        async for channel, text in execution.follow():
            assert channel == "stdout"
            texts.append(text)
            if text == "one\n":
                await memory_work.write_file("a", "go", b"")
    assert "".join(texts) == "one\ntwo\n"
    assert (await execution.result()).success
    again = [text async for _, text in memory_work.execution("a", execution.id).follow()]
    assert "".join(again) == "one\ntwo\n"


async def test_a_cancelled_caller_stops_its_command(memory_work: TaskLifecycle) -> None:
    waiting = asyncio.create_task(memory_work.execute("a", "sleep 60"))
    async with asyncio.timeout(30):
        while not await is_busy(memory_work):
            pass
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await memory_work.execute("a", "echo free")).stdout == "free\n"


async def test_a_caller_cancelled_at_any_moment_of_the_start_leaves_no_command(
    memory_work: TaskLifecycle,
) -> None:
    for steps in range(40):  # of the event loop, before the caller is cancelled
        async with asyncio.timeout(30):
            waiting = asyncio.create_task(memory_work.execute("a", "sleep 60"))
            for _ in range(steps):
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await memory_work.execute("a", "echo free")).stdout == "free\n"


async def is_busy(lifecycle: TaskLifecycle) -> bool:
    try:
        await lifecycle.execute("a", "true", wait=0)
    except Conflict:
        return True
    return False


async def test_a_waiting_command_runs_before_one_that_came_later(
    memory_work: TaskLifecycle,
) -> None:
    waiting = asyncio.create_task(memory_work.execute("a", "touch turn"))
    async with asyncio.timeout(60):
        while not waiting.done():  # each of these comes later
            with suppress(Conflict):
                await memory_work.execute("a", "true", wait=0)
            await asyncio.sleep(0)
    assert (await waiting).success


async def test_commands_start_in_the_order_in_which_they_came(memory_work: TaskLifecycle) -> None:
    first = await memory_work.start_command("a", "while [ ! -e go ]; do sleep 0.05; done")
    commands = [
        asyncio.create_task(memory_work.execute("a", f"echo {number} >>order"))
        for number in range(4)
    ]
    await asyncio.sleep(0)
    await memory_work.write_file("a", "go", b"")
    assert (await first.result()).success
    await asyncio.gather(*commands)
    assert await memory_work.read_file("a", "order") == b"0\n1\n2\n3\n"


async def test_a_cancelled_command_in_the_queue_does_not_hold_up_the_next(
    memory_work: TaskLifecycle,
) -> None:
    first = await memory_work.start_command("a", "sleep 60")
    second = asyncio.create_task(memory_work.execute("a", "touch never"))
    third = asyncio.create_task(memory_work.execute("a", "echo third"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await first.cancel()
    assert (await third).stdout == "third\n"
    with pytest.raises(NotFound):
        await memory_work.read_file("a", "never")


async def test_commands_of_a_task_run_one_after_the_other(memory_work: TaskLifecycle) -> None:
    command = "mkdir held && sleep 0.1 && rmdir held"
    results = await asyncio.gather(*(memory_work.execute("a", command) for _ in range(4)))
    assert [result.exit_code for result in results] == [0, 0, 0, 0]
    first = await memory_work.start_command("a", "sleep 60")
    with pytest.raises(Conflict) as caught:
        await memory_work.execute("a", "true", wait=0)
    assert caught.value.code == "TASK_BUSY"
    assert caught.value.details == {"executionId": first.id}
    assert (await first.cancel()).reason == "cancelled"


async def test_no_checkpoint_and_no_restore_while_a_command_runs(
    rt: Runtime, work: TaskLifecycle
) -> None:
    layers = MultiLayerPersistence(rt)
    checkpoint = await layers.create_checkpoint("a", "before")
    execution = await work.start_command("a", "sleep 60")
    with pytest.raises(PerdureError, match="a command runs in its workspace"):
        await layers.create_checkpoint("a", "during")
    with pytest.raises(PerdureError, match="a command runs in its workspace"):
        await layers.restore_checkpoint("a", checkpoint)
    await execution.cancel()
    await layers.restore_checkpoint("a", checkpoint)
    assert (await work.execute("a", "true")).success


@pytest.mark.parametrize("end", ["cancel", "complete", "delete"])
async def test_the_end_of_a_task_stops_its_command_in_another_process(
    rt: Runtime, work: TaskLifecycle, store_url: Any, open_folder: Path, end: str
) -> None:
    """S3.8"""
    execution = await work.start_command("a", "sleep 60")
    waiting = asyncio.create_task(execution.result())
    async with AsyncExitStack() as stack, asyncio.timeout(30):
        options = task_options(open_folder)
        other = TaskLifecycle(await stack.enter_async_context(Runtime(store_url, tasks=options)))
        match end:
            case "cancel":
                await other.cancel_task("a")
            case "complete":
                await other.complete_task("a", {"success": True})
            case _:
                await other.delete_task("a")
                assert not (open_folder / "tasks/a").exists()
                waiting.cancel()
                return
        assert (await waiting).reason == "cancelled"


async def test_a_command_is_followed_and_cancelled_from_another_process(
    rt: Runtime, work: TaskLifecycle, store_url: Any, open_folder: Path
) -> None:
    started = await work.start_command("a", "echo here; sleep 60")
    async with asyncio.timeout(30):
        async with Runtime(store_url, tasks=task_options(open_folder)) as opened:
            there = TaskLifecycle(opened).execution("a", started.id)
            texts = []
            async for _, text in there.follow():
                texts.append(text)
                await there.cancel()
        assert "".join(texts) == "here\n"
        assert (await started.result()).reason == "cancelled"


async def test_a_follower_on_another_machine_gets_the_output_by_broadcasts(
    rt: Runtime, work: TaskLifecycle, store_url: Any, open_folder: Path
) -> None:
    """A runtime with another root stands for another machine: it has no files of the task."""
    command = "while [ ! -e go ]; do echo tick; sleep 0.1; done; printf 'end\\377'"
    started = await work.start_command("a", command)
    texts: list[str] = []
    options = task_options(open_folder, root=str(open_folder / "elsewhere"))
    async with asyncio.timeout(30), Runtime(store_url, tasks=options) as opened:
        async for _, text in TaskLifecycle(opened).execution("a", started.id).follow():
            texts.append(text)
            if len(texts) == 3:
                await work.write_file("a", "go", b"")
        with pytest.raises(Refused) as caught:
            await TaskLifecycle(opened).execute("a", "true")
        assert caught.value.code == "TASK_ELSEWHERE"
    result = await started.result()
    assert len(texts) > 3
    assert result.stdout.endswith("tick\nend\\xff")
    assert "".join(texts).endswith("tick\nend\\xff")


async def test_a_runtime_that_closes_stops_its_commands(store_url: Any, open_folder: Path) -> None:
    """G3"""
    async with Runtime(store_url, tasks=task_options(open_folder)) as opened:
        work = await running_task(opened)
        execution = await work.start_command("a", "echo so far; sleep 60")
        async for _ in execution.follow():
            break
    async with Runtime(store_url, tasks=task_options(open_folder)) as again:
        result = await TaskLifecycle(again).execution("a", execution.id).result()
        assert (result.reason, result.stdout) == ("interrupted", "so far\n")
        assert (await TaskLifecycle(again).execute("a", "echo free")).stdout == "free\n"


@pytest.mark.parametrize(
    "command, limit, text",
    [
        ("", 30, "the command is empty"),
        (" \n", 30, "the command is empty"),
        ("a\0b", 30, "NUL"),
        ("x" * 1_000_000, 30, "1,000,000 bytes"),
        ("\ud800", 30, "lone surrogate"),
        ("true", 0, "timeout is 0 ms"),
        ("true", "1d", "timeout is 86400000 ms, and must be above 0 and at most 3600000 ms"),
        ("true", "soon", "timeout"),
    ],
)
async def test_a_command_that_is_not_valid_is_refused_and_the_task_stays_usable(
    memory_work: TaskLifecycle, command: str, limit: Any, text: str
) -> None:
    """S3.72"""
    with pytest.raises(Refused, match=text) as caught:
        await memory_work.execute("a", command, limit)
    assert caught.value.code == "INVALID_REQUEST"
    assert (await memory_work.execute("a", "true")).success


async def test_a_deleted_task_is_not_found_and_its_folder_is_not_made_again(
    memory_work: TaskLifecycle, open_folder: Path
) -> None:
    assert (await memory_work.execute("a", "true")).success
    await memory_work.delete_task("a")
    with pytest.raises(NotFound):
        await memory_work.execute("a", "true")
    assert not (open_folder / "tasks/a").exists()


async def test_a_task_that_does_not_run_refuses_commands_and_names_the_way(
    open_folder: Path,
) -> None:
    """S3.6"""
    async with Runtime("memory:", tasks=task_options(open_folder)) as opened:
        lifecycle = TaskLifecycle(opened)
        await lifecycle.create_task({"name": "Work", "id": "a"})
        with pytest.raises(Conflict, match="attach_agent_to_task") as caught:
            await lifecycle.execute("a", "true")
        assert caught.value.code == "TASK_STATUS_CONFLICT"
        with pytest.raises(NotFound):
            await lifecycle.execute("b", "true")


async def test_without_a_sandbox_a_task_can_do_everything_but_commands(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.8"""
    monkeypatch.setenv("PATH", str(open_folder))  # no bwrap there
    options = task_options(open_folder, sandbox="bwrap")
    async with Runtime("memory:", tasks=options) as opened:
        lifecycle = TaskLifecycle(opened)
        task = await lifecycle.create_task({"name": "Work", "id": "a"})
        assert task.execution is not None
        assert task.execution["available"] is False
        assert "bwrap" in task.execution["reason"]
        assert "bubblewrap" in task.execution["remedy"]
        await lifecycle.attach_agent("a", "agent")
        with pytest.raises(SandboxUnavailable) as caught:
            await lifecycle.execute("a", "true")
        assert caught.value.code == "SANDBOX_UNAVAILABLE"
        assert not (open_folder / "tasks/a/executions").exists()
        assert await MultiLayerPersistence(opened).create_checkpoint("a", "still works")
        with pytest.raises(SandboxUnavailable):
            await lifecycle.create_task({"name": "Commands", "id": "b", "require": ["exec"]})
        with pytest.raises(NotFound):
            await lifecycle.get_task_status("b")
    async with Runtime("memory:", tasks={**options, "require_sandbox": True}) as opened:
        with pytest.raises(SandboxUnavailable):
            await TaskLifecycle(opened).create_task({"name": "Work"})


async def test_a_task_can_require_guarantees_of_its_sandbox(memory_work: TaskLifecycle) -> None:
    with pytest.raises(SandboxUnavailable, match="does not guarantee fs"):
        await memory_work.create_task({"name": "Safe", "id": "safe", "require": ["exec", "fs"]})
    with pytest.raises(Refused, match="is not one of"):
        await memory_work.create_task({"name": "Safe", "id": "safe", "require": ["magic"]})


async def test_bwrap_is_the_default_and_every_record_says_which_sandbox_was_used(
    open_folder: Path,
) -> None:
    """S3.8"""
    require_bwrap()
    options = task_options(open_folder)
    del options["sandbox"]
    async with Runtime(f"sqlite:///{open_folder}/h.db", tasks=options) as opened:
        work = await running_task(opened)
        result = await work.execute("a", "pwd; ls /home /root; echo x > inside")
        assert result.sandbox == "bwrap"
        assert result.stdout.startswith("/workspace\n")
        assert {"fs", "net", "kill_tree", "die_with_runtime"} <= set(result.guarantees)
        assert (await work.read_file("a", "inside")) == b"x\n"
        row = await service_of(opened).tasks.registry.get(TaskRef("", "a"))
        assert row.sandbox == "bwrap"


async def test_a_sandbox_that_fails_at_the_start_leaves_the_task_usable(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: a command that did not start says so, and the slot is free."""
    require_bwrap()
    options = task_options(open_folder, sandbox="bwrap")
    async with Runtime("memory:", tasks=options) as opened:
        work = await running_task(opened)
        assert (await work.execute("a", "true")).success
        with monkeypatch.context() as patch:
            patch.setenv("PATH", str(open_folder))
            with pytest.raises(SandboxUnavailable):
                await work.execute("a", "touch never")
        assert (await work.execute("a", "ls")).stdout == ""
        listed, _ = await service_of(opened).tasks.executions.history.list("t//a", 10)
        assert [item.reason for item in listed if isinstance(item, ExecutionRecord)] in (
            ["exited", "not_started", "exited"],
            ["exited", "exited"],
        )


@pytest.mark.parametrize(
    "options, text",
    [
        ({"run_as": "no-such-user"}, "there is no user"),
        ({"run_as": "root"}, "must not be root"),
        ({"sandbox": "docker"}, "must be bwrap"),
        ({"sandbox": "landlock"}, "allow_weak"),
        ({"network": "everything"}, "must be off, host"),
        ({"network": {"allow": ["https://example.org"]}}, "scheme"),
        ({"network": {"allow": ["10.0.0.1"]}}, "address"),
        ({"limits": {"processes": 0}}, "above 0"),
        ({"limits": {"disk": "a lot"}}, "must be a size, such as 500kB"),
        ({"limits": {"disk": "0GiB"}}, "above 0"),
        ({"limits": {"processes": "1GiB"}}, "above 0"),
        ({"limits": {"timeout": "1d"}}, "less than a day"),
        ({"limits": {"wheels": 4}}, "unknown key"),
        ({"ro_paths": ["/no/such/folder"]}, "does not exist"),
        ({"ro_paths": ["/"]}, "leads into"),
        ({"env": {"PATH": "/opt"}}, "set by perdure"),
        ({"env": {"A=B": "x"}}, "not the name of a variable"),
        ({"env": {"LD_PRELOAD": "x"}}, "set by perdure"),
        ({"sandboxed": True}, "unknown key"),
    ],
)
def test_settings_that_are_not_valid_are_refused_at_once(
    open_folder: Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        Runtime("memory:", tasks=task_options(open_folder, **options))


def test_sizes_are_written_in_python_as_in_yaml(open_folder: Path) -> None:
    limits = {"disk": "1GiB", "file_size": "500kB", "memory": "64 MiB", "tmp_size": 4096}
    rt = Runtime("memory:", tasks=task_options(open_folder, limits=limits))
    options = service_of(rt).tasks.sandbox.options.limits
    assert (options.disk_bytes, options.file_bytes) == (2**30, 500_000)
    assert (options.memory_bytes, options.tmp_bytes) == (64 * 2**20, 4096)


@pytest.mark.parametrize("root", [{"root": "./tasks"}, {}])
async def test_commands_run_below_relative_paths_also_after_the_program_has_changed_its_folder(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, root: TaskOptions
) -> None:
    require_bwrap()
    user: TaskOptions = {"run_as": "nobody"} if os.geteuid() == 0 else {}
    monkeypatch.chdir(open_folder)
    rt = Runtime("sqlite:///perdure.db", tasks={**root, **user})
    monkeypatch.chdir("/")
    async with rt:
        work = await running_task(rt)
        assert (await work.execute("a", "echo x > inside")).success
    folder = "tasks" if root else "perdure.db.tasks"
    assert (open_folder / folder / "a/workspace/inside").read_text() == "x\n"


def test_read_only_paths_must_not_lead_into_the_store(open_folder: Path) -> None:
    for path in (open_folder, open_folder / "tasks"):
        path.mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match="which commands must not see"):
            Runtime(
                f"sqlite:///{open_folder}/h.db",
                tasks=task_options(open_folder, ro_paths=[str(path)]),
            )


async def test_the_environment_of_a_command_is_the_one_of_the_configuration(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_TEST_SECRET", "hunter2")
    options = task_options(open_folder, env={"FROM_CONFIG": "yes"})
    async with Runtime("memory:", tasks=options) as opened:
        output = (await (await running_task(opened)).execute("a", "env")).stdout
    assert "FROM_CONFIG=yes\n" in output
    assert "hunter2" not in output


# --- files ----------------------------------------------------------------------------------------


async def test_files_are_read_and_written_but_never_through_a_link(
    memory_work: TaskLifecycle, open_folder: Path
) -> None:
    secret = open_folder / "secret"
    secret.write_text("0451")
    (open_folder / "outside").mkdir()
    assert await memory_work.write_file("a", "src/new/main.py", "print(1)\n") == 9
    assert await memory_work.read_file("a", "src/new/main.py") == b"print(1)\n"
    assert (await memory_work.execute("a", "echo more >> src/new/main.py")).success
    commands = f"ln -s {secret} link; ln -s {open_folder}/outside out; mkfifo pipe; ln -s loop loop"
    assert (await memory_work.execute("a", commands)).success
    for path in ("link", "out/x", "pipe", "loop", "src"):
        with pytest.raises(Refused, match="not a regular file") as caught:
            await memory_work.read_file("a", path)
        assert caught.value.code == "NOT_A_FILE"
    for path in ("link", "out/x", "pipe", "src"):
        with pytest.raises(Refused):
            await memory_work.write_file("a", path, b"changed")
    assert secret.read_text() == "0451"
    assert not list((open_folder / "outside").iterdir())


async def test_a_folder_is_listed_without_following_links(
    memory_work: TaskLifecycle, open_folder: Path
) -> None:
    (open_folder / "outside").mkdir()
    (open_folder / "outside/secret").write_text("0451")
    await memory_work.write_file("a", "src/main.py", "print(1)\n")
    await memory_work.write_file("a", "notes", "x")
    assert (await memory_work.execute("a", f"ln -s {open_folder}/outside out; mkfifo pipe")).success
    files = await memory_work.list_files("a")
    assert [(item.name, item.kind, item.path) for item in files] == [
        ("src", "folder", "src"),
        ("notes", "file", "notes"),
        ("out", "other", None),
        ("pipe", "other", None),
    ]
    assert [item.path for item in await memory_work.list_files("a", "src")] == ["src/main.py"]
    for folder, code in (("out", "NOT_A_FILE"), ("../..", "INVALID_REQUEST")):
        with pytest.raises(Refused) as caught:
            await memory_work.list_files("a", folder)
        assert caught.value.code == code
    with pytest.raises(NotFound):
        await memory_work.list_files("a", "missing")


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", ".", "a\0b"]
)
async def test_a_path_outside_the_workspace_is_refused(
    memory_work: TaskLifecycle, path: str
) -> None:
    with pytest.raises(Refused):
        await memory_work.read_file("a", path)
    with pytest.raises(Refused):
        await memory_work.write_file("a", path, b"x")


async def test_a_file_that_does_not_exist_is_not_found(memory_work: TaskLifecycle) -> None:
    with pytest.raises(NotFound) as caught:
        await memory_work.read_file("a", "no/such")
    assert caught.value.code == "FILE_NOT_FOUND"


async def test_files_of_callers_count_against_the_disk_limit(open_folder: Path) -> None:
    """S3.14: whoever may write a file must not fill the disk of the store with files."""
    options = task_options(open_folder, limits={"disk": 1_000_000})
    async with Runtime("memory:", tasks=options) as rt:
        work = await running_task(rt)
        for number in range(3):
            await work.write_file("a", f"f{number}", bytes(300_000))
        with pytest.raises(Refused, match=r"tasks\.limits\.disk") as refused:
            await work.write_file("a", "f3", bytes(300_000))
        assert refused.value.code == "DISK_LIMIT"
        workspace = open_folder / "tasks/a/workspace"
        assert not await asyncio.to_thread((workspace / "f3").exists)
        (workspace / "f0").unlink()
        await work.write_file("a", "f3", bytes(300_000))
    async with Runtime("memory:", tasks=options) as rt:  # a new process knows nothing yet
        work = await running_task(rt)
        with pytest.raises(Refused):
            await work.write_file("a", "f4", bytes(300_000))
