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
from contextlib import ExitStack
from pathlib import Path

_OF_THIS_PROCESS = ("counts", "directory", "measure")
_OF_ONE_CLIENT = 2_500
_OTHER_DESCRIPTORS = 200


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


def allow_connections(count: int) -> None:
    """Raise this process's limit of descriptors, if it has to be, so that it can have so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_DESCRIPTORS
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise SystemExit(f"{count} connections need {wanted} descriptors, and ulimit -Hn is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def hold_connections(stack: ExitStack, command: Sequence[str], count: int) -> None:
    """Open connections in other processes, which keep them until the stack unwinds.

    command: takes `hold` and a number, prints "ready" once it has so many connections, and ends with its input.
    """
    left = count
    while left:
        size = min(left, _OF_ONE_CLIENT)
        client = stack.enter_context(
            subprocess.Popen([*command, "hold", str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        assert client.stdout is not None and client.stdin is not None
        stack.callback(_end, client)
        if client.stdout.readline() != "ready\n":
            raise RuntimeError(f"a client of {size} connections failed")
        left -= size


def _end(client: subprocess.Popen[str]) -> None:
    assert client.stdin is not None
    client.stdin.close()
    if client.wait():
        raise RuntimeError(f"a client with connections ended with status {client.returncode}")


def latencies_of(command: Sequence[str], action: str, count: int) -> list[float]:
    """Return what requests that a client makes one at a time took, in seconds, sorted."""
    measured = subprocess.run([*command, action, str(count)], check=True, stdout=subprocess.PIPE, text=True).stdout
    return sorted(json.loads(measured))
