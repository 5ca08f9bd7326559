"""`python -m tests.ha.relay --seeds N [--first N]`: schedules of the applier, each with a crash at every step."""

from __future__ import annotations

import argparse
import logging
import sys

from .simulation import explore


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ha.relay", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable()
    crashes = failed = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        for exactly_once in (True, False):
            try:
                crashes += explore(seed, exactly_once=exactly_once)
            except AssertionError as error:
                failed += 1
                print(error)
    print(f"{2 * arguments.seeds} schedules, {crashes} crashes, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
