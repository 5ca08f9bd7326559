"""`python -m tests.older REVISION`: regions and a replica group of the present tree and of an older revision.

The revision is cloned and built in build/older (some minutes). Then two servers, one of each version, replicate a topic
and its subscription to each other. Messages are acknowledged out of order in one region, its server is killed with kill
-9, and the subscription goes on in the other one: what was acknowledged does not come again, and nothing is missing. The
region comes back, catches up, and at last the older server is stopped, and its directory is served by the present tree.
All of it happens twice, with either version as the region that is killed.

Last, a replica group of the older version is upgraded, one node at a time, in the order of docs/operations.md, while
entries are appended to it.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pyreplog.cli.geo import EXIT_ALARM, EXIT_NOT_READY
from tests.waiting import until_none

from .build import PATIENCE_S, ROOT, Build, build, expect
from .client import TOPIC
from .group import upgrade_group

_READINESS = (0, 2, EXIT_NOT_READY, EXIT_ALARM)
"""Exit codes of `geo readiness` that come with rows, perhaps none."""
_CLIENT = Path(__file__).with_name("client.py")


class Region:
    """A cluster in a directory, and the server of it."""

    def __init__(self, folder: Path, build: Build) -> None:
        self.name, self.folder, self.build = folder.name, folder, build
        self.address = "127.0.0.1:0"
        self._server: subprocess.Popen[str] | None = None

    def serve(self) -> None:
        """Start the server, at its former address."""
        command = [
            self.build.python, "-m", "pyreplog", "serve", self.folder, "--bookies", "1", "--listen", self.address, "--json",
        ]  # fmt: skip
        server = subprocess.Popen(command, cwd=self.build.folder, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        self._server = server
        for line in server.stdout:
            if "address" in (said := json.loads(line)):
                self.address = said["address"]
                return
        raise SystemExit(f"{self.name}: the server of {self.build.name} has ended with {server.wait()}")

    def stop(self, number: signal.Signals) -> None:
        """Send a signal to the server, and wait until it has ended."""
        server, self._server = self._server, None
        if server is not None:
            server.send_signal(number)
            server.wait(PATIENCE_S)
            assert server.stdout is not None
            server.stdout.close()

    def command(self, *arguments: str, accepted: Collection[int] = (0,)) -> Any:
        """Run a command of pyreplog on the directory."""
        return self.build.run("-m", "pyreplog", *arguments, accepted=accepted)

    def client(self, verb: str, *numbers: int) -> Any:
        """Run a client of this region (`client.py`)."""
        return self.build.run(str(_CLIENT), f"pyreplog://{self.address}", verb, *map(str, numbers))

    def replicate_to(self, other: Region) -> None:
        self.command("geo", "cluster", "add", str(self.folder), other.name, f"pyreplog://{other.address}", "--json")
        self.command(
            "geo", "set", str(self.folder), TOPIC, f"targets={other.name}", "replicated_subscriptions=true", "--json"
        )

    def is_ready(self) -> bool:
        rows = self.command("geo", "readiness", str(self.folder), TOPIC, "--json", accepted=_READINESS)
        return bool(rows) and all(row["is_ready"] and not row["error"] for row in rows)


def run(first: Build, second: Build, present: Build, folder: Path) -> None:
    """Replicate between two regions; the first one is killed. Then the present version serves both."""
    a, b = Region(folder / "a", first), Region(folder / "b", second)
    try:
        _fail_over(a, b)
        for region in (a, b):
            region.stop(signal.SIGTERM)
            region.build = present
            region.serve()
        a.client("publish", 200, 210)
        b.client("publish", 1200, 1210)
        for region in (a, b):
            region.client("wait", 230, 30)
        expect(b.client("drain", 30), {*range(100, 110), *range(200, 210), *range(1200, 1210)}, "after the upgrade")
        a.client("wait", 230, 0)
    finally:
        for region in (a, b):
            region.stop(signal.SIGKILL)


def _fail_over(a: Region, b: Region) -> None:
    for region in (a, b):
        region.serve()
    a.replicate_to(b)
    b.replicate_to(a)
    a.client("subscribe")
    a.client("publish", 0, 100)
    b.client("publish", 1000, 1100)
    a.client("wait", 200, 200)
    acknowledged = set(a.client("acknowledge", 200, 2))
    until_none(lambda: [] if a.is_ready() else [f"readiness, as {a.build.name} says"], PATIENCE_S)
    a.stop(signal.SIGKILL)
    rest = {*range(100), *range(1000, 1100)} - acknowledged
    expect(b.client("drain", len(rest)), rest, f"after the loss of {a.build.name}")
    a.serve()
    a.client("publish", 100, 110)
    for region in (a, b):
        region.client("wait", 210, 10)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.older",
        description="Replicate between this version and an older one, and upgrade a replica group.",
    )
    parser.add_argument("revision", help="a revision of this repository")
    older, present = build(parser.parse_args().revision), Build("the present tree", Path(sys.executable), ROOT)
    for first, second in ((present, older), (older, present)):
        with tempfile.TemporaryDirectory() as folder:
            run(first, second, present, Path(folder))
        print(
            f"{first.name} was killed and {second.name} went on: nothing missing, nothing twice; upgraded afterwards",
            flush=True,
        )
    with tempfile.TemporaryDirectory() as folder:
        upgrade_group(older, present, Path(folder))
    print(f"a replica group of {older.name} was upgraded: no acknowledged entry is missing", flush=True)


if __name__ == "__main__":
    main()
