"""Count, over the worker processes of a campaign, in how many schedules readiness was compared with a fail-over."""

from __future__ import annotations

import multiprocessing

from ..runner import main
from .schedule import Schedule

PROGRAM = "tests.simulation.geo"

_context = multiprocessing.get_context("fork")
_completed, _compared = _context.Value("q", 0), _context.Value("q", 0)


class CountedSchedule(Schedule):
    """A schedule that is counted when it ends well in a worker process."""

    def run(self) -> None:
        super().run()
        if multiprocessing.parent_process() is not None:
            with _completed.get_lock():
                _completed.value += 1
                _compared.value += self.truth.failed_over


def run() -> int:
    """Run the program of this simulation; print the share behind what the runner prints. Return the exit code."""
    code = main(CountedSchedule, PROGRAM)
    if completed := _completed.value:
        share = _compared.value / completed
        print(f"readiness was compared with a fail-over in {_compared.value} of {completed} schedules ({share:.1%})")
    return code
