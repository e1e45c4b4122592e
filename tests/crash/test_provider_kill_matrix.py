"""Sessions of real libraries, killed at every event and inside the stream, and then resumed.

The endpoint refuses what the provider would, and an answer that comes back otherwise than it was
sent; a turn that is in the log is never asked for again.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import pytest
from tests.crash.harness import Forker, ended, of
from tests.support.models import FORMATS

from perdure.core.providers.target import CLOSED
from perdure.testing.endpoint import Endpoint, fake_endpoint
from perdure.testing.endpoint.samples import HARD, LAST, PAUSED
from perdure.testing.provider_rules import Format

AT_ONCE = 2
OTHERS: dict[Format, str] = {
    "anthropic": "anthropic:claude-opus-4-5",
    "openai-chat": "openai:gpt-4.1-mini",
    "openai-responses": "openai-responses:gpt-5-mini",
}
# The first call of each script.
CALLS: dict[Format, str] = {
    "anthropic": "toolu_00Xy",
    "openai-chat": "call_0aB",
    "openai-responses": "call_0aB",
}


class Libraries(Forker):
    """A process that has loaded the providers' libraries, and does its jobs in forks."""

    program = "tests.crash.provider_program"


@pytest.fixture(scope="session")
def forkers() -> Iterator[list[Forker]]:
    started: list[Forker] = [Libraries() for _ in range(AT_ONCE)]
    yield started
    for forker in started:
        forker.end()


def play(forker: Forker, folder: Path, format_: Format, at: str, then: str | None) -> Endpoint:
    """A story that is killed at a point and resumed, perhaps with another model."""
    with fake_endpoint(HARD[format_], asides=[CLOSED]) as endpoint:
        job = {"url": endpoint.url, "format": format_}
        forker.kill(folder, "story", at=at, **job)
        status = forker.run(folder, "story", **job, model=then)
    assert status == 0, (folder / "log").read_text()[-2000:]
    return endpoint


def unbroken(forker: Forker, folder: Path, format_: Format) -> list[str]:
    """The points of a story to which nothing happens."""
    with fake_endpoint(HARD[format_]) as endpoint:
        status = forker.run(folder, "story", url=endpoint.url, format=format_)
    assert status == 0, (folder / "log").read_text()[-2000:]
    check(folder, endpoint, [])
    return [point for point in forker.points(folder) if not point.startswith("commit:")]


def check(folder: Path, endpoint: Endpoint, lost: list[int]) -> None:
    """It came to its end, nothing was refused, and only lost turns were asked for again."""
    assert endpoint.refused == []
    end = ended(folder)
    assert (end["state"], end["output"]) == ("completed", LAST)
    assert len(of(end, "assistant")) == len(HARD["anthropic"])
    asked = sorted(one.turn for one in endpoint.requests)
    assert asked == sorted([*range(len(HARD["anthropic"])), *lost])


def chosen(points: list[str]) -> list[str]:
    """Every write, tool and answer; of each stream its first, middle and last piece."""
    streams: dict[str, list[str]] = {}
    for point in points:
        if point.startswith("stream:"):
            streams.setdefault(point.rpartition(":")[0], []).append(point)
    kept = {s[n] for s in streams.values() for n in (0, len(s) // 2, -1)}
    return [point for point in points if not point.startswith("stream:") or point in kept]


def at_once(
    forkers: list[Forker], points: list[str], one: Callable[[Forker, str], None]
) -> list[str]:
    """Do something for each point; answers what went wrong."""
    free: SimpleQueue[Forker] = SimpleQueue()
    for forker in forkers:
        free.put(forker)

    def tried(point: str) -> str | None:
        forker = free.get()
        try:
            one(forker, point)
        except Exception as error:  # noqa: BLE001 - told with all others
            return f"{point}: {type(error).__name__}: {error}"
        finally:
            free.put(forker)
        return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [told for told in pool.map(tried, points) if told is not None]


@FORMATS
def test_a_session_killed_anywhere_goes_on_with_what_the_provider_sent(
    format_: Format, tmp_path: Path, forkers: list[Forker], capsys: pytest.CaptureFixture[str]
) -> None:
    """S0.25, S2.33, G2, G6"""
    points = chosen(unbroken(forkers[0], tmp_path / "unbroken", format_))

    def one(forker: Forker, point: str) -> None:
        name = point.partition(" ")[0]
        folder = tmp_path / name.replace(":", "-")
        endpoint = play(forker, folder, format_, name, None)
        kind, _, turn = name.partition(":")
        lost = [int(turn.partition(":")[0]) - 1] if kind in ("stream", "model") else []
        check(folder, endpoint, lost)

    wrong = at_once(forkers, points, one)
    with capsys.disabled():
        print(f"\nkill matrix, {format_}: {len(points)} points, {len(wrong)} wrong")  # noqa: T201
    assert len([point for point in points if point.startswith("stream:")]) >= 8
    assert not wrong, "\n".join(wrong)


@FORMATS
def test_a_renderer_that_loses_a_sign_is_found_out(
    format_: Format, tmp_path: Path, forkers: list[Forker]
) -> None:
    """The endpoint can fail, also for what was recorded by a process that was killed."""
    with fake_endpoint(HARD[format_]) as endpoint:
        job = {"url": endpoint.url, "format": format_}
        forkers[0].kill(tmp_path, "story", at="tool:look:" + CALLS[format_] + ":after", **job)
        assert forkers[0].run(tmp_path, "story", **job, lossy=True) == 0
    assert len(endpoint.refused) == 1
    assert "changed" in endpoint.refused[0]
    assert ended(tmp_path)["state"] == "failed"


@FORMATS
def test_another_model_can_take_a_session_over_at_any_turn(
    format_: Format, tmp_path: Path, forkers: list[Forker]
) -> None:
    """S2.33, G6"""
    points = unbroken(forkers[0], tmp_path / "unbroken", format_)
    recorded = [point for point in points if "assistant" in point][:-1]

    def one(forker: Forker, point: str) -> None:
        name = point.partition(" ")[0]
        folder = tmp_path / name.replace(":", "-")
        endpoint = play(forker, folder, format_, name, OTHERS[format_])
        check(folder, endpoint, [])
        turn = recorded.index(point)
        models = [one.model == OTHERS[format_].partition(":")[2] for one in endpoint.requests]
        assert models == [n > turn for n in range(len(models))]

    wrong = at_once(forkers, recorded, one)
    assert len(recorded) == 3
    assert not wrong, "\n".join(wrong)


def test_a_paused_turn_goes_on_after_a_kill(tmp_path: Path, forkers: list[Forker]) -> None:
    """G2, G6: the part that is recorded is not asked for again."""
    with fake_endpoint(PAUSED) as endpoint:
        job = {"url": endpoint.url, "format": "anthropic"}
        assert forkers[0].run(tmp_path / "unbroken", "story", **job) == 0
    points = [one.partition(" ")[0] for one in forkers[0].points(tmp_path / "unbroken")]
    for point in [one for one in points if one.startswith(("write:", "model:", "commit:"))]:
        folder = tmp_path / point.replace(":", "-")
        with fake_endpoint(PAUSED) as endpoint:
            job = {"url": endpoint.url, "format": "anthropic"}
            forkers[0].kill(folder, "story", at=point, **job)
            assert forkers[0].run(folder, "story", **job) == 0, (folder / "log").read_text()
        assert endpoint.refused == []
        assert ended(folder)["output"] == "Let me look.Perdure is a clamp."
        recorded = [one["turn"] for one in of(ended(folder), "assistant")]
        assert recorded == [1, 2]
