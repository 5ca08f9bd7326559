"""`python -m tests.chaos.autorecovery [--seeds FIRST:END] [--store sqlite|zookeeper]`: see the package."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.autorecovery.kills import Kills
from tests.metadata.zookeeper import Ensemble

STORES = ("sqlite", "zookeeper")
SESSION_MS = 3_000
"""A session of ZooKeeper outlives its process by so much."""


def run(folder: Path, store: str, seed: int, *, rounds: int, closed: int, disturbances: int = 4) -> Kills:
    """Run a seed with a store of its own. Raises AssertionError, and whatever broke."""
    with ExitStack() as running:
        server, url = None, f"sqlite:{folder / 'metadata.sqlite'}"
        if store == "zookeeper":
            ensemble = running.enter_context(Ensemble(folder / "zookeeper", 1, session_max_ms=SESSION_MS))
            server, url = ensemble.leader(), f"zk://{ensemble.hosts}/cluster"
        kills = running.enter_context(
            Kills(folder, url, seed, rounds=rounds, closed=closed, disturbances=disturbances, server=server)
        )
        try:
            kills.run()
        except BaseException as error:
            error.add_note("\n".join(kills.events))
            raise
        return kills


def seeds_of(text: str) -> range:
    """Return the seeds of FIRST:END, without END."""
    first, _, end = text.partition(":")
    return range(int(first), int(end))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.autorecovery")
    parser.add_argument("--seeds", type=seeds_of, default=range(1, 11), metavar="FIRST:END", help="default 1:11")
    parser.add_argument("--store", choices=STORES, help="metadata store (default: each for every second seed)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="losses of each seed (default 5)")
    parser.add_argument("--trace", action="store_true", help="print what happened")
    arguments = parser.parse_args()
    failed = []
    for seed in arguments.seeds:
        folder = Path(tempfile.mkdtemp(prefix="pyreplog-chaos-"))
        store, began = arguments.store or STORES[seed % 2], time.monotonic()
        try:
            kills = run(folder, store, seed, rounds=arguments.rounds, closed=8)
        except Exception:
            failed.append(seed)
            print(f"seed {seed}, {store}: its files are in {folder}\n{traceback.format_exc()}", flush=True)
            continue
        shutil.rmtree(folder)
        if arguments.trace:
            print("\n".join(kills.events))
        ledgers, acked = len(kills.checker.ledgers()), kills.checker.acked
        seconds = time.monotonic() - began
        print(f"seed {seed}, {store}: {acked:,} entries of {ledgers} ledgers, {seconds:.0f} s", flush=True)
    print(f"{len(arguments.seeds) - len(failed)} of {len(arguments.seeds)} seeds held; failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
