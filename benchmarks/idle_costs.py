"""What benchmarks of idle things share: a table with a row for each count, and the sizes of a process.

Each count is measured in a process of its own, so that no row has what an earlier one has left behind.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

_OF_THIS_PROCESS = ("counts", "directory", "measure")


def print_table(
    module: str, parser: argparse.ArgumentParser, columns: Sequence[tuple[str, str]],
    measure: Callable[[argparse.Namespace, int], dict[str, float]],
) -> int:  # fmt: skip
    """Parse the command line, and print a row for each count. Returns the exit status.

    Args:
        module: name of the benchmark's module, which calls this function when it runs as a program.
        parser: with the positional `counts` and the benchmark's options, each of which takes a value. The options
            `--directory`, below which the benchmark works, and `--measure` are added.
        columns: heading and format of each column; formats name what `measure` returns.
        measure: measures one count; it may use the directory of its arguments, which is new and is deleted afterwards.
    """
    parser.add_argument("--directory", type=Path, default=Path(), help="the benchmark works below it")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments, arguments.counts[0])))
        return 0
    options = [
        f"--{name.replace('_', '-')}={value}" for name, value in vars(arguments).items() if name not in _OF_THIS_PROCESS
    ]
    print("\t".join(name for name, _ in columns))
    for count in arguments.counts:
        with tempfile.TemporaryDirectory(prefix="idle-costs-", dir=arguments.directory) as folder:
            command = [sys.executable, "-m", module, str(count), "--measure", "--directory", folder, *options]
            measured = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        print("\t".join(form.format(**measured) for _, form in columns), flush=True)
    return 0


def process_sizes() -> dict[str, float]:
    """Of this process: descriptors and maps; anonymous and all resident memory in KiB."""
    rollup = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "maps": len(Path("/proc/self/maps").read_text().splitlines()),
        "anonymous": float(rollup["Anonymous"].split()[0]),
        "resident": resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[1]) / 1024,
    }
