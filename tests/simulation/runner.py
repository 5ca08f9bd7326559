"""Many schedules, several at a time; those that fail again, with a trace."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

from .schedule import Schedule

CHUNK = 200
REPORTED = 50_000
PROGRAM = "tests.simulation"

Runs = Callable[..., Any]
"""`Schedule`, or another class of runs: made of a seed, with `run` and `world`."""


def run_checked(schedule: Any) -> None:
    """Run a schedule. Raise what it raises, or else the first exception that the shipped code only logged: a demand in a
    callback of an AppendFuture does not end the run by itself."""
    logged: list[BaseException] = []

    def keep(logger: logging.Logger, text: object, *args: object, **_: object) -> None:
        error = sys.exception()
        logged.append(error if error is not None else AssertionError(f"{logger.name}: {text!s}", *args))

    with mock.patch.object(logging.Logger, "exception", keep):  # also where logging is disabled
        schedule.run()
    if logged:
        raise logged[0]


def run(seed: int, schedule: Runs = Schedule) -> str:
    """What went wrong with a seed; "" nothing."""
    try:
        run_checked(schedule(seed))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def explain(seed: int, schedule: Runs = Schedule, program: str = PROGRAM) -> str:
    """The trace of a seed, and how it ended."""
    traced = schedule(seed, tracing=True)
    end = "nothing went wrong"
    try:
        run_checked(traced)
    except Exception:
        end = traceback.format_exc()
    return "\n".join([*traced.world.trace, end, f"repeat with: python -m {program} --seed {seed}"])


def _run_chunk(schedule: Runs, seeds: range) -> tuple[int, list[tuple[int, str]]]:
    logging.disable()
    return len(seeds), [(seed, message) for seed in seeds if (message := run(seed, schedule))]


def run_many(schedule: Runs, first: int, count: int, jobs: int) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """(how many, which failed) of one chunk of seeds after the other, in any order."""
    chunks = [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)]
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(partial(_run_chunk, schedule), chunks)


def main(schedule: Runs = Schedule, program: str = PROGRAM) -> int:
    options = _arguments(program)
    logging.disable()
    if options.seed is not None:
        print(explain(options.seed, schedule, program))
        return 1 if run(options.seed, schedule) else 0
    print(f"{options.seeds} schedules from seed {options.first}, {options.jobs} at a time")
    done, failed, began = 0, 0, time.monotonic()
    for count, failures in run_many(schedule, options.first, options.seeds, options.jobs):
        done += count
        for seed, message in failures:
            failed += 1
            if failed <= options.show:
                print(f"\nFAILED seed {seed}: {message}")
        if sys.stdout.isatty() or done % REPORTED < count:
            print(f"\r{done} of {options.seeds}, {failed} failed", end="", flush=True)
    rate = done / (time.monotonic() - began)
    print(f"\n{done} schedules, {failed} failed, {rate:.0f} per second")
    return 1 if failed else 0


def _arguments(program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (default 10000)")
    parser.add_argument("--first", type=int, default=secrets.randbelow(1 << 40), help="the first seed (default: any)")
    parser.add_argument("--seed", type=int, help="this one alone, with a trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", type=int, default=20, help="at most so many failures are printed")
    return parser.parse_args()
