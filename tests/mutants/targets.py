"""What is mutated: where a wrong comparison loses, repeats or blocks something. And the tests that look at each part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.trees import ROOT


@dataclass(frozen=True)
class Target:
    """Sources by patterns below `pyreplog`, and the tests that are run when those that cover a line find nothing.

    unseen: tests whose processes the map does not see; what the others let through has to pass them, too.
    """

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    unseen: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        files = {path for pattern in self.sources for path in (ROOT / "pyreplog").glob(pattern)}
        return sorted(path for path in files if path.suffix in (".py", ".pyx") and path.name != "__init__.py")


TARGETS = (
    Target(
        "ledger protocol",
        ("ledger/protocol/*.py", "ledger/closing.py", "ledger/placement.py", "_native/quorum/*.pyx", "_native/ledger/*.pyx"),
        ("tests/unit/test_quorum.py", "tests/property/test_quorum_property.py", "tests/ledger", "tests/simulation/test_simulation.py"),
    ),
    Target(
        "bookie",
        ("bookie/*.py", "_native/bookie/*.pyx", "_native/ledger_log/*.pyx"),
        ("tests/unit/test_index.py", "tests/unit/test_ledger_log.py", "tests/property", "tests/bookie", "tests/crash/test_ledgers.py"),
        ("tests/crash/test_ledgers.py", "tests/crash/test_bookies.py"),
    ),
    Target(
        "replica group",
        ("ha/protocol/*.py", "stream/*.py", "ha/node.py", "ha/election_runner.py", "_native/ha/*.pyx", "_native/log/log_position.pyx"),
        ("tests/unit/test_parking.py", "tests/ha", "tests/simulation/ha"),
        ("tests/crash/test_groups.py",),
    ),
    Target(
        "log",
        ("log/*.py", "_native/log/*.pyx"),
        ("tests/unit", "tests/property", "tests/native", "tests/crash"),
        ("tests/crash",),
    ),
    Target(
        "topic",
        (
            "topic/model/*.py", "topic/model/dispatch/*.py", "topic/owner/*.py", "topic/owner/managed/*.py", "cursors/*.py",
            "topic/client/*.py", "topic/client/publishing/*.py", "topic/client/partitions/*.py", "_native/topic/*.pyx",
        ),
        ("tests/unit/test_messages.py", "tests/unit/test_ack_set.py", "tests/unit/test_range_set.py", "tests/topic", "tests/simulation/topic"),
    ),
    Target("topic server and client", ("topic/client/remote/*.py", "topic/model/wire/*.py", "topic/server/*.py"), ("tests/topic",)),
    Target("requests", ("net/*.py", "_native/net/*.pyx", "purgatory.py", "timing_wheel.py"), ("tests/unit", "tests/net", "tests/ha/test_frame_feed.py")),
    Target(
        "tables",
        ("tables/*.py", "tables/cluster/*.py", "_native/tables/*.pyx"),
        ("tests/native", "tests/property", "tests/spark"),
    ),
)  # fmt: skip
