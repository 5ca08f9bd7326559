"""Fixture: a cluster whose topics are replicated by fake replicators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.geo.fakes import Replicated, replicated


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Replicated]:
    with replicated(tmp_path / "cluster") as place:
        yield place
