"""The seed of what is drawn at random: drawn anew unless PYREPLOG_SEED says it, and printed. The size of segments, and a
ZooKeeper."""

from __future__ import annotations

import gc
import itertools
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pyreplog.config import LogConfig
from tests.metadata.zookeeper import Ensemble

SEED = int(os.environ.setdefault("PYREPLOG_SEED", str(secrets.randbelow(1 << 32))))  # processes that help inherit it

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")  # no verdict hangs on the speed of the machine

# Each log has a segment allocated or written with zeros, and two more soon after: with the default of 64 MiB all tests
# together would write more than 100 GiB, and wait for it. This is more than the largest entry of a ledger takes. Processes
# that tests start have the default.
_SHIPPED_SEGMENT_BYTES = LogConfig.default_segment_bytes
LogConfig.default_segment_bytes = (4 << 20) + (64 << 10)

_numbers = itertools.count()


def pytest_collection_finish() -> None:
    """The collected tests are many objects, which no collection of garbage looks at from here on."""
    gc.collect()
    gc.freeze()


_FROZEN_FROM = 100_000
"""Objects that a file of tests leaves behind, for example syntax trees of all sources that other tests need again."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """No collection of garbage looks at many objects that stay, either: each of them would take a second."""
    result = yield
    if (nextitem is None or nextitem.path != item.path) and len(gc.get_objects()) >= _FROZEN_FROM:
        gc.collect()
        gc.freeze()
    return result


def pytest_runtest_setup() -> None:
    """Spark takes Ctrl-C for itself, and does not give it back."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"drawn at random with PYREPLOG_SEED={SEED}; set it to repeat this run")


@pytest.fixture(scope="session")
def seed() -> int:
    """Of everything a test draws at random."""
    return SEED


@pytest.fixture(scope="session")
def shipped_segment_bytes() -> int:
    """The default of `segment_bytes` that other processes have."""
    return _SHIPPED_SEGMENT_BYTES


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """A server that all tests share; nobody stops it."""
    with Ensemble(tmp_path_factory.mktemp("zookeeper"), 1) as ensemble:
        yield ensemble


@pytest.fixture
def zookeeper_url(zookeeper: Ensemble) -> str:
    """Of a store with nothing in it."""
    return f"zk://{zookeeper.hosts}/tests/{next(_numbers)}"


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: Ctrl-C in a callback of the collector, such as hypothesis has, is nobody's to catch."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def ram_path(tmp_path: Path) -> Iterator[Path]:
    """Like tmp_path, in memory where there is such a file system: for disks that are simulated, whose cuts cost nothing
    but the waiting for the real one."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(dir=memory))
    yield path
    shutil.rmtree(path)
