"""Crashes at every write: one short schedule of two clusters again and again, with one crash each.

The moments are those when each write of the journal begins, when it is about to be durable, and behind it; before and
behind each cursor that is stored; and behind each message that is stored, in either cluster, until faults end.

`python -m tests.simulation.geo.crashes --seeds 10` tries all moments of ten schedules.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import secrets
import sys
from collections.abc import Iterator, Sequence

from ..runner import run_checked
from .schedule import Plan, Schedule

PROGRAM = "tests.simulation.geo.crashes"

PLAN = Plan(
    sites=2, shape="mesh", names=1, messages=12, publishers=2, filters=False, busy_s=1.0, delay_s=0.01, disk_s=0.1,
    down_s=0.1, faults=8, crash_at_write=0.0, recreates=False, removes=False, crashes=False,
)  # fmt: skip


def moments(seed: int) -> list[tuple[str, int]]:
    """Run the schedule of a seed without a crash; return the moments at which a cluster may crash."""
    schedule = Schedule(seed, plan=PLAN)
    run_checked(schedule)
    return [(site.letter, number) for site in schedule.sites for number in range(1, site.writes + 1)]


def failures(seed: int, chosen: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Run the schedule of a seed with a crash at each of these moments, twice: the cluster comes back and goes on, or its
    consumers go on in it before it is connected again. Yield what went wrong."""
    for (letter, number), fails_over in itertools.product(chosen, (False, True)):
        schedule = Schedule(seed, plan=PLAN, crash_at=(letter, number), fails_over=fails_over)
        try:
            run_checked(schedule)
            if all(site.boots == 1 for site in schedule.sites):
                yield f"{letter} did not crash at moment {number}"
        except Exception as error:
            yield f"seed {seed}, {letter} crashes at moment {number}: {type(error).__name__}: {error}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="how many schedules (default 10)")
    parser.add_argument("--first", type=int, default=secrets.randbelow(1 << 40), help="the first seed (default: any)")
    parser.add_argument("--share", type=int, default=1, help="one in how many moments is tried (default 1: all)")
    options = parser.parse_args(arguments)
    logging.disable()
    tried = failed = 0
    for seed in range(options.first, options.first + options.seeds):
        chosen = moments(seed)[seed % options.share :: options.share]
        tried += len(chosen)
        for message in failures(seed, chosen):
            failed += 1
            print(f"FAILED {message}")
    print(f"{tried} crashes in {options.seeds} schedules from seed {options.first}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
