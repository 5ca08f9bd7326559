"""`python -m tests.interleaving [NAME …] --seeds N --first M`: campaigns, and runs that an error has named."""

from __future__ import annotations

import argparse
import sys
import time

from tests.interleaving.harnesses import HARNESSES
from tests.interleaving.seam import controlled
from tests.interleaving.search import InterleavingError, repeat, try_preemptions, try_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interleaving")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(HARNESSES)}; all of them if none is given"
    )
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="random runs of each")
    parser.add_argument("--first", type=int, default=0, metavar="M", help="the first seed: to go on where one stopped")
    parser.add_argument(
        "--preemptions", type=int, default=2, metavar="P", help="of the runs that are tried one after the other"
    )
    parser.add_argument(
        "--budget", type=int, default=0, metavar="B", help="at most so many of them (default: as many as seeds)"
    )
    parser.add_argument(
        "--repeat", metavar="CHOICES", help="one run of one harness, as its error says, with its switches"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(HARNESSES)
    if unknown or (arguments.repeat is not None and len(arguments.names) != 1):
        parser.error(f"expected names of harnesses, found {' '.join(sorted(unknown)) or 'none'}")
    with controlled():
        if arguments.repeat is not None:
            world = repeat(HARNESSES[arguments.names[0]], arguments.repeat)
            print(*world.switches, sep="\n")
            print(f"{world.step} points; waited until time-outs: {world.timeouts}; {world.failure!r}")
            if world.failure is not None:
                print(world.failure)
            return int(world.failure is not None)
        failed = 0
        for name in arguments.names or HARNESSES:
            harness, began, points, runs = HARNESSES[name], time.monotonic(), 0, 0
            try:
                points = try_seeds(harness, arguments.first, arguments.seeds)
                runs = try_preemptions(
                    harness, arguments.preemptions, arguments.budget or arguments.seeds, seed=arguments.first
                )
            except InterleavingError as error:
                failed += 1
                print(error)
            took = time.monotonic() - began
            last = arguments.first + arguments.seeds - 1
            print(
                f"{name}: seeds {arguments.first} to {last}, {runs} with few preemptions, {points} points, {took:.1f} s",
                flush=True,
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
