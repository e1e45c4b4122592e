"""`simulate`: a story under the faults of many seeds, and the report of the first that fails."""

import asyncio
import gc
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
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
UNREPEATED: Final = "  the seed does not repeat"
OUTLIVES: Final = "something outlives a seed; let check empty its fakes before it asserts"

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
    command = _command(inspect.currentframe())
    return run_seeds(scenario, numbers, tuple(KINDS if faults is None else faults), command)


def run_seeds(
    scenario: MakeScenario, seeds: Iterable[int], kinds: Collection[str], command: str
) -> Simulated:
    """Run seeds of a scenario until one fails. Raises AssertionError with the command for it."""
    __tracebackhide__ = True
    repeated = repetition.get()
    counts, virtual_s, passed = Counter[str](), 0.0, list[int]()
    with quiet_logs():
        for seed in seeds if repeated is None else [repeated.seed]:
            outcome = run_seed(scenario, seed, kinds)
            if repeated is not None and repeated.has_trace:
                print("\n".join(outcome.trace))  # noqa: T201 - what --trace asks for
            if outcome.problems:
                run = partial(run_seed, scenario, kinds=kinds)
                _fail(outcome, run, command.replace("{seed}", str(seed)), passed)
            counts += counted(outcome)
            virtual_s += outcome.virtual_s
            passed.append(seed)
    return Simulated(
        len(passed), counts["crashes"], counts["freezes"], counts["lost replies"], virtual_s
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
) -> SeedOutcome:
    """Run one seed of a scenario, with all of its faults or those that are allowed.

    A callback that takes long is a problem only if one does in each run: the machine may be busy.
    """

    def run() -> SeedOutcome:
        return Fleet(seed, scenario(), kinds, allowed=allowed).run()

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
    failed: SeedOutcome, run: Callable[..., SeedOutcome], command: str, passed: Sequence[int]
) -> NoReturn:
    __tracebackhide__ = True
    seed, problem = failed.seed, failed.problems[0]
    text = f"{problem}\n  seed {seed}: {command}\n"
    again = run(seed)
    if again.trace != failed.trace:
        raise AssertionError(text + _difference(failed.trace, again.trace))
    if not again.problems:
        raise AssertionError(f"{text}{UNREPEATED}: the same steps, and now every guarantee holds\n")
    smallest = shrink(failed, lambda allowed: run(seed, allowed=allowed))
    if smallest.fired:
        lines = "".join(f"\n  {item}" for item in smallest.fired)
        number, verb = len(smallest.fired), "is" if len(smallest.fired) == 1 else "are"
        text += f"  {number} of {len(failed.fired)} faults {verb} enough:{lines}\n"
    else:
        text += "  it fails without any fault\n"
        if passed and run(passed[0]).problems:
            text += f"  seed {passed[0]} has passed before, and fails now too: {OUTLIVES}\n"
        elif problem.guarantee == "check":
            text += f"  or {OUTLIVES}\n"
        raise AssertionError(text)
    if str(smallest.problems[0]) != str(problem):
        text += f"  then: {smallest.problems[0]}\n"
    raise AssertionError(text)


def _difference(first: list[str], second: list[str]) -> str:
    """Return the first step at which two runs of a seed differ."""
    pairs = zip_longest(first, second, fillvalue="(the end)")
    place, (line, other) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    before = "".join(f"\n    {step}" for step in first[max(0, place - _TRACE_EXCERPT) : place])
    text = f"{UNREPEATED}: something depends on more than the seed"
    return f"{text}\n  first step that differs:{before}\n  - {line}\n  + {other}\n"


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


def _command(frame: FrameType | None) -> str:
    """Return what repeats a seed of the function that calls `simulate`."""
    caller = None if frame is None else frame.f_back
    if caller is None:
        return f"{COMMAND} MODULE:FUNCTION --seed {{seed}}"
    path, module = Path(caller.f_code.co_filename), str(caller.f_globals.get("__name__"))
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    is_importable = ".".join(path.with_suffix("").parts) == module
    function = caller.f_code.co_qualname.split(".<locals>")[0]
    name = f"{module if is_importable else path}:{function}"
    arguments = caller.f_code.co_varnames[: caller.f_code.co_argcount]
    if arguments and arguments != ("self",):
        return f"write seeds=[{{seed}}] in {name} (it has fixtures, so that no command repeats it)"
    return f"{COMMAND} {name} --seed {{seed}}"
