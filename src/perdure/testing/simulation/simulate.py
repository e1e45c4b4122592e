"""`simulate`: a story under the faults of many seeds, and the report of the first that fails."""

import asyncio
import gc
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from perdure.testing.simulation.faults import KINDS, Fault
from perdure.testing.simulation.fleet import Fleet, Role, SeedOutcome
from perdure.testing.simulation.shrink import shrink
from perdure.testing.simulation.story import Agents, Check, Story, StoryScenario

COMMAND: Final = "python -m perdure.testing.simulation"
_RUNS: Final = 3  # of a seed in which a callback took long
_TRACE_EXCERPT: Final = 3  # steps before the first that differs

MakeScenario = Callable[[], Any]  # a Scenario


@dataclass(frozen=True, slots=True)
class Simulated:
    """Report of the seeds, all of which kept the guarantees."""

    seeds: int
    crashes: int
    freezes: int
    lost_replies: int
    virtual_seconds: float


@dataclass(frozen=True, slots=True)
class Repetition:
    """One seed to run in place of those that a test names."""

    seed: int
    has_trace: bool = False


repetition: ContextVar[Repetition | None] = ContextVar("perdure_repeated_seed", default=None)


def simulate(
    story: Story,
    *,
    agents: Agents,
    deps: Any = None,
    seeds: int | Collection[int] = 100,
    processes: int = 3,
    faults: Collection[str] | None = None,
    check: Check | None = None,
) -> Simulated:
    """Play `story(runtime)` in a simulated fleet, once per seed, with faults on purpose.

    One process plays it, again from its beginning after a crash; the others are workers. A function
    for `agents` is called at each start of a process. Then faults stop, every session must come to
    rest, and `check` gets the end of each session. Raises AssertionError for the first seed that
    breaks a guarantee, with the few faults that are enough for it.
    """
    __tracebackhide__ = True  # pytest shows the failure, and the line of the test
    numbers = _checked(story, seeds, processes, faults, check)
    workers = [Role(f"worker-{number}") for number in range(1, processes)]
    scenario = partial(StoryScenario, story, agents, deps, check, workers)
    command = f"{COMMAND} {_caller_name(inspect.currentframe())}"
    return run_seeds(scenario, numbers, tuple(KINDS if faults is None else faults), command)


def run_seeds(
    scenario: MakeScenario, seeds: Iterable[int], kinds: Collection[str], command: str
) -> Simulated:
    """Run seeds of a scenario until one fails. Raises AssertionError."""
    __tracebackhide__ = True
    repeated = repetition.get()
    has_trace = repeated is not None and repeated.has_trace
    counts, virtual_s, number = Counter[str](), 0.0, 0
    with quiet_logs():
        for seed in seeds if repeated is None else [repeated.seed]:
            outcome = run_seed(scenario, seed, kinds, has_trace=has_trace)
            if has_trace:
                print("\n".join(outcome.trace))  # noqa: T201 - what --trace asks for
            if outcome.problems:
                _fail(outcome, scenario, kinds, f"{command} --seed {seed}")
            counts += counted(outcome)
            virtual_s += outcome.virtual_s
            number += 1
    return Simulated(
        number, counts["crashes"], counts["freezes"], counts["lost replies"], virtual_s
    )


def counted(outcome: SeedOutcome) -> Counter[str]:
    """Return what a seed has counted, with its faults by their places."""
    places = Counter(item.fault.place for item in outcome.fired)
    lost = places["lost reply"] + places["lost reply to a claim"]
    return outcome.counts + places + Counter({"lost replies": lost})


def run_seed(
    scenario: MakeScenario,
    seed: int,
    kinds: Collection[str] = tuple(KINDS),
    *,
    allowed: frozenset[Fault] | None = None,
    has_trace: bool = False,
) -> SeedOutcome:
    """Run one seed of a scenario, with all of its faults or those that are allowed.

    A callback that takes long is a problem only if one does in each run: the machine may be busy.
    """

    def run() -> SeedOutcome:
        return Fleet(seed, scenario(), kinds, allowed=allowed, has_trace=has_trace).run()

    outcome = run()
    for _ in range(_RUNS - 1):
        if outcome.counts["slow callbacks"]:
            outcome = run()
    return outcome


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Silence what a fleet logs about its faults; garbage is collected after each seed."""
    names = ("perdure", "asyncio")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    gc.collect()
    gc.freeze()  # what existed before is not looked at after each seed
    try:
        yield
    finally:
        gc.unfreeze()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


# --- a seed that fails ----------------------------------------------------------------------------


def _fail(
    failed: SeedOutcome, scenario: MakeScenario, kinds: Collection[str], command: str
) -> NoReturn:
    __tracebackhide__ = True
    run = partial(run_seed, scenario, failed.seed, kinds)
    text = f"{failed.problems[0]}\n  seed {failed.seed}: {command}\n"
    first = run(has_trace=True)
    if first.digest != failed.digest:
        raise AssertionError(text + _difference(first.trace, run(has_trace=True).trace))
    smallest = shrink(failed, lambda allowed: run(allowed=allowed))
    number, total = len(smallest.fired), len(failed.fired)
    lines = "\n".join(f"  {item}" for item in smallest.fired)
    shrunk = f"  {number} of {total} faults are enough:\n{lines}\n" if number else ""
    nothing = "" if number else "  it fails without any fault\n"
    problem = smallest.problems[0]
    again = "" if str(problem) == str(failed.problems[0]) else f"  then: {problem}\n"
    raise AssertionError(text + shrunk + nothing + again)


def _difference(first: list[str], second: list[str]) -> str:
    """Return the first step at which two runs of a seed differ."""
    pairs = zip(first, second, strict=False)
    place = next((i for i, (line, other) in enumerate(pairs) if line != other), None)
    text = "  the seed does not repeat: something depends on more than the seed"
    if place is None:
        return f"{text}; after the first run it does\n"
    before = "".join(f"\n    {line}" for line in first[max(0, place - _TRACE_EXCERPT) : place])
    return f"{text}\n  first step that differs:{before}\n  - {first[place]}\n  + {second[place]}\n"


# --- arguments ------------------------------------------------------------------------------------


def _checked(
    story: Story,
    seeds: int | Collection[int],
    processes: int,
    faults: Collection[str] | None,
    check: Check | None,
) -> Collection[int]:
    """Return the seeds. Raises an error of one line for arguments that cannot be."""
    if inspect.iscoroutinefunction(check):
        name = getattr(check, "__name__", check)
        raise TypeError(f"the check {name} is async, and nothing awaits it; write def {name}(ends)")
    if not inspect.iscoroutinefunction(story):
        name = getattr(story, "__name__", story)
        raise TypeError(f"the story {name} is not async; write async def {name}(rt)")
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    if not numbers:
        raise ValueError(f"seeds is {seeds!r}; write seeds=100, or seeds=[17] for one of them")
    if processes < 1:
        raise ValueError(f"processes is {processes}; write processes=3")
    if unknown := sorted(set(faults or ()) - set(KINDS)):
        raise ValueError(f"faults names {unknown[0]!r}; write some of {', '.join(KINDS)}")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return numbers
    raise RuntimeError("simulate has an event loop of its own; call it in a test without async")


def _caller_name(frame: FrameType | None) -> str:
    """Return the function that calls `simulate`, as the command line takes it."""
    caller = None if frame is None else frame.f_back
    if caller is None:
        return "MODULE:FUNCTION"
    path, module = Path(caller.f_code.co_filename), str(caller.f_globals.get("__name__"))
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    is_importable = ".".join(path.with_suffix("").parts) == module
    return f"{module if is_importable else path}:{caller.f_code.co_name}"
