"""Places to offload to: a directory, memory, and an S3 server of this process."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.offload.places import Place, serve_s3

_numbers = itertools.count()


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, Any]]:
    """Options of an S3 server with the bucket `bucket`."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with serve_s3() as options:
        yield options


@pytest.fixture(params=["file", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """One of each kind, with nothing in it."""
    if request.param == "file":
        return Place(f"file://{tmp_path}/away/log", {})
    if request.param == "memory":
        return Place(f"memory://{next(_numbers)}/log", {})
    return Place(f"s3://bucket/{next(_numbers)}/log", request.getfixturevalue("s3"))


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    """A directory with nothing in it."""
    return Place(f"file://{tmp_path}/away/log", {})
