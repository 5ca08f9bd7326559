"""A sample log, made once and copied by whoever damages it."""

from __future__ import annotations

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
