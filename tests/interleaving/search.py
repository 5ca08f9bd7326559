"""Which runs of a harness are tried: at random, and all those with few preemptions.

Random runs follow PCT (Burckhardt, Kothari, Musuvathi, Nagarakatte: A Randomized Scheduler with Probabilistic Guarantees of
Finding Bugs, ASPLOS 2010): the task of the highest priority runs, and at a few random points it gets the lowest. The others
follow CHESS (Musuvathi, Qadeer: Iterative Context Bounding, PLDI 2007): all runs without a preemption, then all with one,
then with two, as far as the budget goes; of those that do not fit a random share is tried.

A run that fails is made short (preemptions that it fails without are left out), and its error says how to repeat it.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from tests.interleaving.scheduler import Decision, Task, World

Program = Callable[[World], object]

CHANGES = (1, 2, 3, 5)
"""Points at which a random run preempts: a bug that needs d orderings is met with d - 1 of them."""


class InterleavingError(AssertionError):
    """A run has failed."""


@dataclass(frozen=True)
class Harness:
    """A program that fails by its own assertions. files: see World. hasty: time-outs may come early."""

    name: str
    program: Program
    files: tuple[str, ...]
    hasty: bool = False


class Priorities:
    """PCT. steps: about how many points a run has."""

    def __init__(self, seed: int, steps: int) -> None:
        self._random = Random(seed)
        changes = CHANGES[seed % len(CHANGES)]
        self._changes = {self._random.randrange(1, max(steps, 2)) for _ in range(changes)}
        self._early = {self._random.randrange(1, max(steps, 2)) for _ in range(seed % 3)}
        self._priorities: dict[int, float] = {}
        self._lowest = 0.0

    def choose(self, step: int, options: list[Task], current: Task | None) -> Task:
        for task in options:
            if task.number not in self._priorities:
                self._priorities[task.number] = self._random.random()
        best = max(options, key=lambda task: self._priorities[task.number])
        if any(change <= step for change in self._changes):
            self._changes = {change for change in self._changes if change > step}
            self._lowest -= 1.0
            self._priorities[best.number] = self._lowest
            best = max(options, key=lambda task: self._priorities[task.number])
        return best

    def hurries(self, step: int) -> bool:
        return step in self._early


class Choices:
    """The choices of a run at some steps; elsewhere who runs goes on, or the one that began first does."""

    def __init__(self, choices: Mapping[int, int], hurried: frozenset[int] = frozenset()) -> None:
        self._choices, self._hurried = choices, hurried

    def choose(self, step: int, options: list[Task], current: Task | None) -> Task:
        number = self._choices.get(step)
        for task in options:
            if task.number == number:
                return task
        return options[0] if current is None else current

    def hurries(self, step: int) -> bool:
        return step in self._hurried


def attempt(harness: Harness, strategy: Priorities | Choices) -> World:
    """One run."""
    world = World(strategy, files=frozenset(harness.files), hasty=harness.hasty)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # what fails leaves handles open
        world.run(harness.program)
    return world


def try_seeds(harness: Harness, first: int, count: int) -> int:
    """So many random runs; returns how many points the longest had. InterleavingError: one failed."""
    longest = attempt(harness, Choices({})).step
    for seed in range(first, first + count):
        world = attempt(harness, Priorities(seed, longest))
        longest = max(longest, world.step)
        if world.failure is not None:
            raise _failed(harness, world, f"seed {seed}")
        _collect(seed)
    return longest


def try_preemptions(harness: Harness, most: int, budget: int, seed: int = 0) -> int:
    """All runs with at most so many preemptions, as far as `budget` runs go; returns how many were tried."""
    random = Random(seed)
    levels: list[list[tuple[tuple[int, int], ...]]] = [[()]] + [[] for _ in range(most)]
    tried = 0
    for level, prefixes in enumerate(levels):
        left = (budget - tried) // (len(levels) - level)  # no level takes what the next needs
        while prefixes and left > 0:
            at = random.randrange(len(prefixes))
            prefixes[at], prefixes[-1] = prefixes[-1], prefixes[at]
            prefix = prefixes.pop()
            world = attempt(harness, Choices(dict(prefix)))
            tried, left = tried + 1, left - 1
            if world.failure is not None:
                raise _failed(harness, world, f"{level} preemptions, run {tried}")
            for preempts, choice in _others(world.decisions, prefix[-1][0] if prefix else 0):
                if level + preempts <= most:
                    levels[level + preempts].append((*prefix, choice))
            _collect(tried)
    return tried


def _others(decisions: list[Decision], behind: int) -> Iterator[tuple[int, tuple[int, int]]]:
    for decision in decisions:
        if decision.step > behind:
            for number in decision.options:
                if number != decision.chosen:
                    yield int(decision.was is not None), (decision.step, number)


def _collect(number: int) -> None:
    if number % 64 == 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


# ---- failures ------------------------------------------------------------------------------------------------------


def repeat(harness: Harness, choices: str) -> World:
    """The run that an error named: "12=1,30=0,40!", tasks by steps, and steps at which time passed early."""
    parts = [part for part in choices.split(",") if part]
    hurried = frozenset(int(part[:-1]) for part in parts if part.endswith("!"))
    return attempt(harness, Choices(dict(tuple(map(int, part.split("="))) for part in parts if "=" in part), hurried))  # type: ignore[misc]


def _failed(harness: Harness, world: World, which: str) -> InterleavingError:
    choices = {decision.step: decision.chosen for decision in world.decisions if decision.chosen != decision.default}
    hurried = frozenset(world.hurried)
    for step in sorted(choices, reverse=True):
        fewer = {other: number for other, number in choices.items() if other != step}
        shorter = attempt(harness, Choices(fewer, hurried))
        if shorter.failure is not None:
            world = shorter
            choices = {
                decision.step: decision.chosen for decision in world.decisions if decision.chosen != decision.default
            }
            choices = {other: number for other, number in choices.items() if other in fewer}
    named = ",".join(
        [f"{step}={number}" for step, number in sorted(choices.items())] + [f"{step}!" for step in hurried]
    )
    switches = "\n".join(map(str, world.switches[-60:]))
    error = InterleavingError(
        f"{harness.name}, {which}: {type(world.failure).__name__}: {world.failure}\n"
        f"repeat it with: python -m tests.interleaving {harness.name} --repeat '{named}'\n"
        f"its switches, the last ones:\n{switches}"
    )
    error.__cause__ = world.failure
    return error
