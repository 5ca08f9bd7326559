"""A campaign of coverage-guided fuzzing: blocks of executions, each of which is run once and counted in executions.tsv.

    python -m tests.fuzz.campaign kafka 0:1000           # runs the blocks of the range that are not counted yet
    python -m tests.fuzz.campaign kafka 0:1000 --seconds 600
    python -m tests.fuzz.campaign --table                # the executions of each target

A block is one run of libFuzzer: its number is the seed, and it begins with the corpus that earlier blocks left in
build/fuzz. It counts when it ends without a finding, with the executions that libFuzzer reports. A finding ends the
campaign with exit code 1; its input stays in build/fuzz. Stopped at any time, the same command goes on behind the last
counted block; several processes may run different ranges.

Under sanitizers: `sh .ci/sanitize --run -m tests.fuzz.campaign kafka 0:1000`.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = Path(os.environ.get("PYREPLOG_SANITIZED_FROM", HERE.parents[1]))  # a copy counts in the tree that it is of
BLOCK_EXECUTIONS = 25_000
COUNTED = re.compile(r"^stat::number_of_executed_units: (\d+)$", re.MULTILINE)


class Blocks(NamedTuple):
    """Blocks first to end - 1 of a target, all run: their executions, and the sanitizers that watched."""

    target: str
    first: int
    end: int
    executions: int
    sanitizers: str


def read_blocks(table: str) -> list[Blocks]:
    """Return the rows of executions.tsv."""
    rows = [line.split("\t") for line in table.splitlines()[1:]]
    return [
        Blocks(target, int(first), int(end), int(executions), seen) for target, first, end, executions, seen in rows
    ]


def write_blocks(blocks: Iterable[Blocks]) -> str:
    """Return executions.tsv: rows of blocks that follow each other are one."""
    rows = list[Blocks]()
    for row in sorted(blocks):
        last = rows[-1] if rows else None
        if last is not None and (last.target, last.end, last.sanitizers) == (row.target, row.first, row.sanitizers):
            rows[-1] = last._replace(end=row.end, executions=last.executions + row.executions)
        else:
            rows.append(row)
    return "".join("\t".join(map(str, row)) + "\n" for row in [Blocks._fields, *rows])


def missing(blocks: Iterable[Blocks], target: str, wanted: range) -> list[int]:
    """Return the blocks of a range that were not run, whatever the sanitizers."""
    done = {number for row in blocks if row.target == target for number in range(row.first, row.end)}
    return [number for number in wanted if number not in done]


def executed(report: str) -> int:
    """Return the executions that libFuzzer reports at its end. Raises ValueError if it does not."""
    match = COUNTED.search(report)
    if match is None:
        raise ValueError(f"expected the number of executed units in what libFuzzer prints, found {report[-500:]!r}")
    return int(match[1])


def count(table: Path, row: Blocks) -> None:
    """Add a row to the table, which other processes may change as well."""
    with table.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        blocks = read_blocks(file.read())
        whole = write_blocks([*blocks, row])
        file.seek(0)
        file.truncate()
        file.write(whole)


def run_block(target: str, number: int) -> int | None:
    """Run a block. Return its executions; None: it found something, which libFuzzer has printed."""
    folder = ROOT / "build" / "fuzz" / target
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pyreplog-fuzz-") as temporary:  # of the seeds
        command = (
            sys.executable, HERE / f"fuzz_{target}.py", f"-seed={number + 1}", f"-runs={BLOCK_EXECUTIONS}", "-timeout=60",
            "-print_final_stats=1", f"-artifact_prefix={folder}/", folder / "corpus",
        )  # fmt: skip
        environment = {**os.environ, "TMPDIR": temporary, "PYTHONPATH": os.pathsep.join(filter(None, (
            str(HERE.parents[1]), os.environ.get("PYTHONPATH"))))}  # fmt: skip
        done = subprocess.run(command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout + done.stderr, flush=True)
        return None
    return executed(done.stderr)


def main(given: list[str] | None = None) -> int:
    targets = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py"))
    parser = argparse.ArgumentParser(description="Fuzz in blocks that are counted.")
    parser.add_argument("target", nargs="?", choices=targets)
    parser.add_argument("blocks", nargs="?", metavar="FIRST:END")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no block after so many seconds")
    parser.add_argument("--table", action="store_true", help="print the executions of each target")
    arguments = parser.parse_args(given)
    table = ROOT / "tests" / "fuzz" / "executions.tsv"
    if arguments.table:
        blocks = read_blocks(table.read_text())
        for target in targets:
            print(f"{target:10} {sum(row.executions for row in blocks if row.target == target):15,}")
        return 0
    if arguments.blocks is None or not re.fullmatch(r"\d+:\d+", arguments.blocks):
        parser.error("expected a target and blocks, FIRST:END")
    first, end = map(int, arguments.blocks.split(":"))
    began = time.monotonic()
    for number in missing(read_blocks(table.read_text()), arguments.target, range(first, end)):
        if time.monotonic() - began >= arguments.seconds:
            break
        executions = run_block(arguments.target, number)
        if executions is None:
            return 1
        sanitizers = os.environ.get("PYREPLOG_SANITIZERS", "none")
        count(table, Blocks(arguments.target, number, number + 1, executions, sanitizers))
        print(f"block {number}: {executions} executions", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
