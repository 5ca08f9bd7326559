"""`python -m tests.chaos [ledgers|topics|groups|partitions|transactions] [--seconds S] [--seed N]`: see the package."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.chaos import groups, ledgers, partitions, topics, transactions
from tests.chaos.victims import FAKETIME

SERVICES = {
    "ledgers": ledgers.run, "topics": topics.run, "groups": groups.run, "partitions": partitions.run,
    "transactions": transactions.run,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("services", nargs="*", metavar="SERVICE", help=f"of {', '.join(SERVICES)} (default: all)")
    parser.add_argument("--seconds", type=float, default=1200.0, metavar="S", help="for each (default 1200)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the faults (default 1)")
    arguments = parser.parse_args()
    if unknown := set(arguments.services) - set(SERVICES):
        parser.error(f"expected {', '.join(SERVICES)}, found {', '.join(sorted(unknown))}")
    if FAKETIME is None:
        print("libfaketime is not installed: no clock jumps")
    held = True
    for name in arguments.services or SERVICES:
        with tempfile.TemporaryDirectory(prefix="pyreplog-chaos-", ignore_cleanup_errors=True) as folder:
            outcome = SERVICES[name](Path(folder), arguments.seconds, arguments.seed)
            held &= outcome.held and not outcome.lost and not outcome.missing
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
