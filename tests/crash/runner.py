"""Many seeded crash runs, several at a time."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from . import kill, ledgers, lives

KINDS: dict[str, Callable[[int, Path], None]] = {
    "power-cut": lives.run,
    "ledgers": ledgers.run,
    "kill": lambda seed, folder: kill.run(seed, folder / "log", rounds=4),
}


def repeat_command(kind: str, seed: int) -> str:
    """The line that runs one seed again; runs with threads may need a few turns."""
    return f"repeat with: python -m tests.crash --only {kind} --seed {seed} --times 20"


def main() -> int:
    options = _arguments()
    seeds = (
        [options.seed] * options.times
        if options.seed is not None
        else range(options.first, options.first + options.seeds)
    )
    runs = [(kind, seed) for seed in seeds for kind in ([options.only] if options.only else KINDS)]
    logging.disable()
    folder = Path(tempfile.mkdtemp(prefix="pyreplog-crash-"))
    print(f"{len(runs)} runs, seeds {seeds[0]} to {seeds[-1]}, {options.jobs} at a time, in {folder}")
    failures, done, began = 0, 0, time.monotonic()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        started = {
            pool.submit(_run, kind, seed, folder / f"{kind}-{i}"): (kind, seed) for i, (kind, seed) in enumerate(runs)
        }
        for future in as_completed(started):
            done += 1
            if message := future.result():
                failures += 1
                kind, seed = started[future]
                print(f"\nFAILED {kind} {seed}; {repeat_command(kind, seed)}\n{message}")
            if sys.stdout.isatty() or done % 100 == 0 or done == len(runs):
                print(
                    f"\r{done} of {len(runs)} runs, {failures} failed, {time.monotonic() - began:.0f} s",
                    end="",
                    flush=True,
                )
    print()
    if not failures:
        shutil.rmtree(folder)
    return 1 if failures else 0


def _run(kind: str, seed: int, folder: Path) -> str:
    """What went wrong; then the folder is kept."""
    folder.mkdir()
    try:
        KINDS[kind](seed, folder)
    except AssertionError as error:
        return f"{error}\nits files are in {folder}"
    except Exception:
        return f"{traceback.format_exc()}\nits files are in {folder}"
    shutil.rmtree(folder, ignore_errors=True)
    return ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (default 100)")
    parser.add_argument("--first", type=int, default=secrets.randbelow(1 << 32), help="the first seed (default: any)")
    parser.add_argument("--seed", type=int, help="this seed alone")
    parser.add_argument("--times", type=int, default=1, help="with --seed: so many times, until one fails")
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()
