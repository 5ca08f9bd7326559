"""Other processes that use a store: they say on their standard output what they did."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from tests.waiting import stand_still, until

ROOT = Path(__file__).resolve().parents[2]

HOLDER = """
import sys
from pyreplog.metadata import LeaseState, open_store
url, ttl = sys.argv[1:]
say = lambda line: print(line + "\\n", end="", flush=True)  # one write, as two threads say something
with open_store(url) as store, store.lease(float(ttl), on_loss=lambda: say("on_loss")) as lease:
    lease.create("/holders/one", b"x")
    say("holding")
    for line in sys.stdin:
        say(lease.state.value)
"""
"""Holds /holders/one and answers each line with the state of its lease."""

COUNTER = """
import sys
from pyreplog import errors
from pyreplog.metadata import open_store
url, times = sys.argv[1:]
with open_store(url) as store:
    try:
        store.create("/counter", b"0")
    except errors.KeyExistsError:
        print("not the first")
    done = 0
    while done < int(times):
        found = store.get("/counter")
        try:
            store.put("/counter", b"%d" % (int(found.value) + 1), found.version)
            done += 1
        except errors.VersionConflictError:
            continue
"""
"""Opens a store, new or not, and adds to a counter."""


class Process:
    """A script in a process of its own; killed at the end."""

    def __init__(self, script: str, *arguments: object) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script, *map(str, arguments)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def line(self) -> str:
        """The next line it says."""
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def ask(self) -> str:
        """Its answer to an empty line."""
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()
        return self.line()

    def freeze(self, url: str) -> None:
        """SIGSTOP while it says that it holds what it is asked for, and not within a transaction: whoever stands still
        there keeps everybody else out of SQLite's file."""

        def stopped_outside() -> bool:
            until(lambda: self.ask() == "held")
            stand_still(self.popen)
            if url.startswith("zk:") or _may_write(url.removeprefix("sqlite://")):
                return True
            self.popen.send_signal(signal.SIGCONT)
            return False

        until(stopped_outside)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.communicate()


def _may_write(path: str) -> bool:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True
