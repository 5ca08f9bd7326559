"""A sample log, made once and copied by whoever damages it; and threads that switch eagerly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import samples


@pytest.fixture(scope="session")
def sample_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of `samples.make_log`, in four segments with three index files; for reading only."""
    path = tmp_path_factory.mktemp("sample") / "log"
    samples.make_log(path)
    assert len(samples.segments(path)) == 4 and len(samples.indexes(path)) == 3
    return path


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Makes threads lose the GIL as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
